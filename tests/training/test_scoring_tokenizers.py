import pytest

from vanilla_transformer.training.scoring_tokenizers import moses_language, scoring_tokenizer

CHINESE = (
    "zh ZH zho chi cmn zh-CN zh_CN zh-cn zh_TW zh-Hans zh-Hant zh-Hans-CN zh_Hant_HK zho_Hans zho_Hant cmn_Hans "
    "yue yue_Hant lzh nan_Hant cn zht zh_CN.UTF-8 >>cmn_Hans<< Chinese 中文"
).split() + ["Chinese (Simplified)", "Mandarin Chinese", " zh "]
JAPANESE = "ja JA jpn jpn_Jpan ja_JP ja-JP ja_XX jp Japanese 日本語".split()
KOREAN = "ko kor kor_Hang ko_KR ko-KR kr Korean 한국어".split()
# nan_Latn and ja_Latn are romanised; en_JP is English; chy (Cheyenne) and kok (Konkani) only begin alike
OTHERS = "de de_DE deu_Latn en en_JP en-CN fr nan_Latn ja_Latn zh-Latn-pinyin chy kok xx".split() + ["", None, "German"]


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [(code, "zh") for code in CHINESE]
    + [(code, "ja-mecab") for code in JAPANESE]
    + [(code, "ko-mecab") for code in KOREAN]
    + [(code, "13a") for code in OTHERS],
)
def test_the_tokenizer_follows_the_language_in_every_spelling(language, tokenizer):
    assert scoring_tokenizer(language) == tokenizer


@pytest.mark.parametrize(
    ("language", "code"),
    [("de", "de"), ("de_DE", "de"), ("deu_Latn", "de"), ("ger", "de"), ("German", "de"), ("cz", "cs"), ("xx", "xx")],
)
def test_moses_gets_its_two_letter_codes(language, code):
    assert moses_language(language) == code

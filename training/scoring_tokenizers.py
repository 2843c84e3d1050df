"""Which tokenizer scores a target language, for language codes in the spellings people use."""

import re

# Chinese, Japanese and Korean do not put spaces where words end as 13a expects (facts: 13a scores an identical Chinese
# pair 0). ISO 639-1, 639-2/B, 639-2/T and 639-3 codes of the languages and of the Chinese ones written in Han script,
# then the spellings that come from country codes (cn, jp, kr) or from old data sets.
_PRIMARY = {
    "zh": "zh zho chi cmn yue lzh wuu hak gan hsn cdo cjy cn chn zhs zht zhcn zhtw zhhans zhhant",
    "ja": "ja jpn jp jap",
    "ko": "ko kor kr",
}
_NAMES = {
    "zh": "chinese mandarin cantonese 中文 汉语 漢語 普通话 國語 粵語",
    "ja": "japanese 日本語",
    "ko": "korean 한국어",
}
# ISO 15924 scripts: they decide where the language code alone does not, as in nan_Hant against nan_Latn.
_SCRIPTS = {"zh": "hans hant hani", "ja": "jpan hrkt hira kana", "ko": "kore hang"}

_SCORING_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}

# Languages with a non-breaking prefix list in Moses, by the other codes and the English name that people write.
_MOSES = {
    "as": "asm assamese",
    "bn": "ben bengali",
    "ca": "cat catalan",
    "cs": "ces cze cz czech",
    "de": "deu ger german",
    "el": "ell gre greek",
    "en": "eng english",
    "es": "spa spanish",
    "et": "est estonian",
    "fi": "fin finnish",
    "fr": "fra fre french",
    "ga": "gle irish",
    "gu": "guj gujarati",
    "hi": "hin hindi",
    "hu": "hun hungarian",
    "is": "isl ice icelandic",
    "it": "ita italian",
    "kn": "kan kannada",
    "lt": "lit lithuanian",
    "lv": "lav lvs latvian",
    "ml": "mal malayalam",
    "mr": "mar marathi",
    "nl": "nld dut dutch",
    "or": "ori ory oriya odia",
    "pa": "pan punjabi",
    "pl": "pol polish",
    "pt": "por portuguese",
    "ro": "ron rum romanian",
    "ru": "rus russian",
    "sk": "slk slo slovak",
    "sl": "slv slovenian",
    "sv": "swe swedish",
    "ta": "tam tamil",
    "te": "tel telugu",
}


def _index(table: dict[str, str]) -> dict[str, str]:
    return {spelling: language for language, spellings in table.items() for spelling in spellings.split()}


_PRIMARY_OF, _NAME_OF, _SCRIPT_OF = _index(_PRIMARY), _index(_NAMES), _index(_SCRIPTS)
_MOSES_OF = _index(_MOSES) | {language: language for language in _MOSES}


def _subtags(language: str | None) -> list[str]:
    return re.findall(r"[^\W_]+", (language or "").casefold())


def east_asian_language(language: str | None) -> str | None:
    """`zh`, `ja` or `ko` where the code or name means Chinese, Japanese or Korean in its own script, else None.

    Understands ISO 639-1/2/3, BCP 47 and locale forms in any case (zh-Hans-CN, zh_TW, zho_Hans, cmn, jpn_Jpan, ko_KR),
    English and native names (Chinese (Simplified), 日本語) and the country codes cn, jp, kr that stand in for a
    language. Romanised text (ja_Latn, nan_Latn) has spaces between its words, so it gives None.
    """
    subtags = _subtags(language)
    if not subtags or "latn" in subtags:
        return None
    if subtags[0] in _PRIMARY_OF:
        return _PRIMARY_OF[subtags[0]]
    for known in (_NAME_OF, _SCRIPT_OF):
        for subtag in subtags:
            if subtag in known:
                return known[subtag]
    return None


def scoring_tokenizer(target_lang: str | None) -> str:
    """The name of sacrebleu's BLEU tokenizer for a target language: `zh`, `ja-mecab`, `ko-mecab`, otherwise `13a`."""
    return _SCORING_TOKENIZERS.get(east_asian_language(target_lang) or "", "13a")


def moses_language(language: str) -> str:
    """The two-letter code that Moses' scripts take; an unknown language gives its own first subtag (English rules)."""
    subtags = _subtags(language)
    return next((_MOSES_OF[subtag] for subtag in subtags if subtag in _MOSES_OF), subtags[0] if subtags else "en")

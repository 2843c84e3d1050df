import gzip
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from vanilla_transformer.configuration.errors import CorpusError, UsageError
from vanilla_transformer.training.tokenizer import load_tokenizer, train_tokenizer

ENGLISH = ["the lower the better", "a newer and wider river", "the widest river is the newest", "Don't lower it."] * 20
CHINESE = ["连接到设备。", "设备已连接到WiFi网络", "设备名称", "网络设备已断开"] * 20


def config(vocab_size=340, kind="bpe"):
    return SimpleNamespace(vocab_size=vocab_size, path=None, type=kind, codes=None)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(ENGLISH + CHINESE, config())


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(path)
    return path


ODD_TEXTS = [
    "",
    " ",
    "   ",
    " leading",
    "trailing ",
    "two  spaces   three",
    "\tTab\nline\r\nCRLF",
    "ideographic\u3000space, no-break\u00a0space, line\u2028separator, zero\u200bwidth, \ufeffBOM",
    "连接 to the 设备，ＷｉＦｉ！；Привет мир, नमस्ते, שלום, ｶﾀｶﾅ",
    "👩‍👩‍👧🏽 ❤️ 🇨🇳",
    "e\u0301 against \u00e9, ﬁ ligature, ½, Å",
    "▁",
    "a▁b ▁ c",
    "\x1b \x1b1\x1b0▁\x1b",
    "</s> <s> <pad> <unk> <0x41>",
    "the</s>",
    "\x00\x01",
]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_texts_come_back_as_they_were(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    # 2 only at the end: no part of a text becomes a special token.
    assert ids[-1] == 2
    assert not {0, 1, 2, 3} & set(ids[:-1])


@given(st.text())
@example("\x1b▁1")
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back_as_it_was(text):
    tokenizer = _trained()
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def _trained(cache=[]):  # noqa: B006 hypothesis does not mix with fixtures of its own scope
    if not cache:
        cache.append(train_tokenizer(ENGLISH + CHINESE, config()))
    return cache[0]


def test_real_text_comes_back_as_it_was(shared_data):
    folder = shared_data("flores")
    lines = {
        language: gzip.open(folder / f"flores-dev.{language}.gz", "rt", encoding="utf-8", newline="\n")
        .read()
        .split("\n")
        for language in ("en", "zh", "fr")
    }
    tokenizer = train_tokenizer(lines["en"] + lines["zh"], config(4000))
    # 997 English and 997 Chinese sentences have more than enough to merge.
    assert len(tokenizer) == 4000
    for line in lines["zh"] + lines["fr"]:
        assert tokenizer.decode(tokenizer(line)["input_ids"], skip_special_tokens=True) == line


@pytest.mark.parametrize("text", ["WiFi", "WiFi is newer", "the WiFi is newer", "theWiFi", "  WiFi  the WiFi "])
def test_texts_with_added_tokens_come_back_as_they_were(tmp_path, folder, text):
    """A word that is added later is a token wherever a space or the beginning is before it, also when saved."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.add_tokens(["WiFi"]) == 1
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = one(text)["input_ids"]
        assert one.decode(ids, skip_special_tokens=True) == text
        assert ids.count(len(one) - 1) == sum(word == "WiFi" for word in text.split())


def test_special_tokens_have_the_agreed_ids_and_bytes_follow(tokenizer):
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4, 259]) == [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<0x00>",
        "<0xFF>",
    ]
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (
        0,
        1,
        2,
        3,
    )


def test_the_vocabulary_has_the_size_that_was_asked_for(tokenizer):
    assert len(tokenizer) == 340
    assert sorted(tokenizer.get_vocab().values()) == list(range(340))


def test_frequent_words_are_one_piece_and_punctuation_is_its_own(tokenizer):
    assert tokenizer.tokenize("the river.") == ["▁the", "▁river", "."]
    assert tokenizer.tokenize("设备.") == ["▁设备", "."]


def test_a_rare_character_is_spelled_in_its_utf8_bytes(tokenizer):
    # U+9F98 is E9 BE 98 in UTF-8.
    assert tokenizer.tokenize("龘") == ["▁", "<0xE9>", "<0xBE>", "<0x98>"]


def test_literal_special_tokens_in_the_corpus_teach_no_special_token():
    tokenizer = train_tokenizer(["</s> <s> <unk> </s>"] * 100 + ENGLISH, config(350))
    ids = tokenizer("</s> <s> <unk>")["input_ids"]
    assert not {0, 1, 2, 3} & set(ids[:-1])
    assert tokenizer.decode(ids, skip_special_tokens=True) == "</s> <s> <unk>"


@pytest.mark.integration
def test_a_fresh_process_loads_it_without_this_package(folder, tokenizer):
    texts = ["The lower river.", "  设备 </s>▁", "a\u3000b"]
    script = """
import json, sys
sys.modules["vanilla_transformer"] = None  # any import of it fails
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
texts = json.loads(sys.argv[2])
both = tokenizer(texts, text_target=texts)
print(json.dumps({
    "fast": tokenizer.is_fast, "inputs": tokenizer.model_input_names, "unlimited": tokenizer.model_max_length > 10**20,
    "keys": sorted(both), "ids": both["input_ids"], "labels": both["labels"],
    "back": tokenizer.batch_decode(both["input_ids"], skip_special_tokens=True),
    "padded": tokenizer(["the", ""], padding=True)["input_ids"],
}))
"""
    run = subprocess.run(
        [sys.executable, "-I", "-c", script, str(folder), json.dumps(texts)],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    got = json.loads(run.stdout)
    assert got["fast"] and got["unlimited"]
    assert got["inputs"] == ["input_ids", "attention_mask"]
    assert got["keys"] == ["attention_mask", "input_ids", "labels"]
    assert got["ids"] == got["labels"] == tokenizer(texts)["input_ids"]
    assert all(ids[-1] == 2 and ids.count(2) == 1 for ids in got["ids"])
    assert got["back"] == texts
    assert got["padded"] == [[tokenizer.convert_tokens_to_ids("▁the"), 2], [2, 1]]


@pytest.mark.integration
def test_the_same_corpus_gives_the_same_files_in_every_process(tmp_path):
    # 26 * 26 pairs of letters, all as frequent: any tie that is broken by a hash would show.
    script = """
import sys
from types import SimpleNamespace
from vanilla_transformer.training.tokenizer import train_tokenizer
letters = "abcdefghijklmnopqrstuvwxyz"
texts = [a + b + " " + b + a for a in letters for b in letters] * 3
texts += [chr(0x4E00 + i) * 2 for i in range(600)]
for kind, size in (("bpe", 1000), ("words", 500)):
    settings = SimpleNamespace(vocab_size=size, type=kind, codes=None)
    train_tokenizer(texts, settings).save_pretrained(f"{sys.argv[1]}/{kind}")
"""
    files = []
    for run in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / run)],
            check=True,
            env={"PATH": "", "PYTHONHASHSEED": run, "PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        files.append({file.relative_to(tmp_path / run): file.read_bytes() for file in (tmp_path / run).rglob("*.json")})
    assert len(files[0]) == 4
    assert files[0] == files[1]


def test_a_vocabulary_with_no_room_for_the_characters_is_a_usage_error():
    # 4 special tokens, 256 bytes, the characters a, b and the space mark
    with pytest.raises(UsageError, match=r"tokenizer.vocab_size = 262: too small; .* need 263"):
        train_tokenizer(["ab ab ab"] * 5, config(262))
    assert len(train_tokenizer(["ab ab ab"] * 5, config(263))) == 263


def test_a_small_corpus_gives_a_smaller_vocabulary_and_says_so(caplog):
    tokenizer = train_tokenizer(["ab ab ab"] * 5, config(1000))
    # the 263 above and the merges ab, ▁ab
    assert len(tokenizer) == 265
    assert "tokenizer.vocab_size = 1000: the corpus gives only 265 entries" in caplog.text


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_an_empty_corpus_is_a_corpus_error(kind):
    with pytest.raises(CorpusError, match="training corpus holds no"):
        train_tokenizer(["", " "], config(kind=kind))


def test_an_iterator_is_as_good_as_a_list(tokenizer):
    assert train_tokenizer(iter(ENGLISH + CHINESE), config()).get_vocab() == tokenizer.get_vocab()


def test_words_are_split_at_spaces_and_joined_by_one(tmp_path):
    # c and d twice, a and b once: the fifth and sixth of six entries are c and d.
    train_tokenizer(["d c  c", "d a b"], config(6, "words")).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.get_vocab() == {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "c": 4, "d": 5}
    assert tokenizer("d  a c")["input_ids"] == [5, 3, 4, 2]
    assert tokenizer("d </s> <s> c")["input_ids"] == [5, 3, 3, 4, 2]
    assert tokenizer.decode([5, 4, 4, 2, 1], skip_special_tokens=True) == "d c c"


def test_a_trained_tokenizer_can_be_used_again(folder, tokenizer):
    assert load_tokenizer(folder)("the river")["input_ids"] == tokenizer("the river")["input_ids"]


def test_a_reused_tokenizer_must_fit_a_translation_model(tmp_path, tokenizer):
    with pytest.raises(UsageError, match="no such folder"):
        load_tokenizer(tmp_path / "absent")
    with pytest.raises(UsageError, match="holds no tokenizer that loads"):
        load_tokenizer(tmp_path)
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = None
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="</s>").save_pretrained(tmp_path)
    with pytest.raises(UsageError) as raised:
        load_tokenizer(tmp_path)
    assert "3 problems" in str(raised.value)
    assert "has no bos_token" in str(raised.value)
    assert "uses one id for several of the bos, pad and eos tokens" in str(raised.value)
    assert "does not append </s>" in str(raised.value)


def test_a_tokenizer_that_is_damaged_is_one_sentence(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"type":"BPE"', '"type":"XYZ"').replace('"BPE"', '"XYZ"'))
    with pytest.raises(UsageError, match=f"^tokenizer.path = {tmp_path}: holds no tokenizer that loads .*") as raised:
        load_tokenizer(tmp_path)
    assert "\n" not in str(raised.value)

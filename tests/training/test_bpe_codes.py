"""Published BPE codes segment text as their authors did, and a faulty file is named."""

import gzip

import pytest
from transformers import AutoTokenizer

from vanilla_transformer.configuration.errors import CorpusError, UsageError
from vanilla_transformer.training.recipe import TokenizerConfig, recipe_from_mapping
from vanilla_transformer.training.tokenizer import train_tokenizer

# By hand: l o w</w> becomes lo w</w>, then low</w>; in "lower" only l o can be merged, then e r</w>.
CODES = "#version: 0.2\nl o\nlo w</w>\ne r</w>\n"


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "codes").write_text(CODES, encoding="utf-8")
    return train_tokenizer(["low lower x"], TokenizerConfig(codes=str(tmp_path / "codes")))


def test_merges_by_hand(tokenizer):
    ids = tokenizer("low lower wool")["input_ids"]
    pieces = ["low</w>", "lo", "w", "er</w>", "w", "o", "o", "l</w>", "</s>"]
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert tokenizer.decode(ids, skip_special_tokens=True) == "low lower wool"
    # 4 special tokens, 6 characters in two forms, 3 merges
    assert len(tokenizer) == 4 + 2 * 6 + 3


def test_unknown_characters_and_special_tokens_in_text_are_unknown(tokenizer):
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("lo\u00df </s>")["input_ids"])
    # one for the sharp s, one for each character of the word that spells the end token
    assert pieces == ["lo", *["<unk>"] * 5, "</s>"]


def test_it_reloads_as_a_fast_tokenizer(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert loaded("low lower")["input_ids"] == tokenizer("low lower")["input_ids"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a b\n", "codes:1: BPE codes of subword-nmt begin with #version: 0.2, and this is 'a b'"),
        ("#version: 0.2\na b\na b c\n", "codes:3: a merge is two pieces and a space, and this is 'a b c'"),
    ],
)
def test_a_faulty_file_is_named(tmp_path, content, message):
    (tmp_path / "codes").write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        train_tokenizer(["a"], TokenizerConfig(codes=str(tmp_path / "codes")))


def test_recipes_find_the_file_or_say_that_it_is_missing(tmp_path):
    mapping = {"data": {"corpus": "reverse", "source_lang": "a", "target_lang": "b"}, "tokenizer": {"codes": "codes"}}
    with pytest.raises(UsageError, match=r"tokenizer.codes = codes: no such file \(looked in"):
        recipe_from_mapping(mapping, folder=tmp_path)
    (tmp_path / "codes").write_text(CODES, encoding="utf-8")
    assert recipe_from_mapping(mapping, folder=tmp_path).tokenizer.codes == str(tmp_path / "codes")
    mapping["tokenizer"]["type"] = "words"
    with pytest.raises(UsageError, match="tokenizer.codes = .* belongs to type = bpe"):
        recipe_from_mapping(mapping, folder=tmp_path)


@pytest.mark.parametrize("split", ["train", "valid", "test.2016", "test.2017", "test.coco"])
def test_multi30k_is_segmented_as_published(shared_data, split):
    folder, tokenized = shared_data("multi30k_bpe_revisit"), shared_data("multi30k/tok")
    names = {"valid": "val", "test.2016": "test_2016_flickr", "test.2017": "test_2017_flickr"}
    name = names.get(split, "test_2017_mscoco" if split == "test.coco" else split)
    texts = read(tokenized / "train.lc.norm.tok.en.gz") + read(tokenized / "train.lc.norm.tok.de.gz")
    tokenizer = train_tokenizer(texts, TokenizerConfig(codes=str(folder / "en-de.code.gz")))
    for lang in ("en", "de"):
        published = read(folder / f"en-de.{split}.bpe.{lang}.gz")[:1000]
        lines = read(tokenized / f"{name}.lc.norm.tok.{lang}.gz")[:1000]
        for line, expected in zip(lines, published, strict=True):
            pieces = tokenizer.tokenize(line)
            ours = " ".join(p.removesuffix("</w>") if p.endswith("</w>") else f"{p}@@" for p in pieces)
            if "<unk>" not in pieces:
                assert ours == " ".join(expected.split())

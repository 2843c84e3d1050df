from pathlib import Path

import pytest

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.corpus_files import find_files

LANGS = ("en", "de")


@pytest.fixture
def folder(tmp_path):
    def make(*names: str) -> Path:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    return make


def names(found: dict[str, list[tuple[Path, ...]]], folder: Path) -> dict[str, list[str]]:
    return {
        split: ["+".join(str(path.relative_to(folder)) for path in files) for files in groups]
        for split, groups in found.items()
    }


def problems(corpus, **patterns) -> str:
    with pytest.raises(CorpusError) as caught:
        find_files(corpus, patterns, LANGS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (
            ["train.en", "train.de", "val.en.gz", "val.de.gz", "train.fr", "notes.txt"],
            {"train": ["train.en+train.de"], "dev": ["val.en.gz+val.de.gz"]},
        ),
        (
            ["train.tsv.gz", "valid.jsonl", "test.tmx"],
            {"train": ["train.tsv.gz"], "dev": ["valid.jsonl"], "test": ["test.tmx"]},
        ),
        (["train.parquet", "validation.parquet"], {"train": ["train.parquet"], "dev": ["validation.parquet"]}),
        (
            ["train-00001-of-00002.parquet", "train-00000-of-00002.parquet", "dev.tsv"],
            {"train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"], "dev": ["dev.tsv"]},
        ),
    ],
)
def test_a_folder_is_searched_by_name(folder, there, found):
    root = folder(*there)
    assert names(find_files(root, {}, LANGS), root) == found


def test_what_the_folder_leaves_open_is_asked(folder):
    root = folder("train.en", "train.de", "train.tsv", "dev.tsv", "val.tsv", "test.de")
    message = problems(root)
    assert "the train split could be train.en+train.de or train.tsv; say which with data.train" in message
    assert "the dev split could be dev.tsv or val.tsv; say which with data.dev" in message
    assert "test.de has no counterpart test.en" in message


def test_an_unsuitable_folder_says_what_was_expected_and_found(folder):
    assert "expected train.en and train.de, or train with one of .tsv" in problems(folder("a.txt", "train.fr"))
    assert "found a.txt, train.fr" in problems(folder())


def test_patterns_with_language_and_stars(folder):
    root = folder("x/b.en", "x/b.de", "x/a.en", "x/a.de", "dev.1[?].en", "dev.1[?].de", "t1.tsv", "t2.tsv")
    patterns = {"train": ["x/*.{lang}"], "dev": ["dev.1[?].{lang}"], "test": ["t*.tsv", str(root / "t1.tsv")]}
    assert names(find_files(root, patterns, LANGS), root) == {
        "train": ["x/a.en+x/a.de", "x/b.en+x/b.de"],
        "dev": ["dev.1[?].en+dev.1[?].de"],
        "test": ["t1.tsv", "t2.tsv", "t1.tsv"],
    }


def test_language_folders(folder):
    root = folder("en/train.txt", "de/train.txt")
    assert names(find_files(root, {"train": ["{lang}/train.txt"]}, LANGS), root) == {
        "train": ["en/train.txt+de/train.txt"]
    }


def test_all_problems_with_patterns_come_at_once(folder):
    root = folder("a.en", "b.en", "b.de", "c.1.en", "c.2.en", "c.2.de")
    message = problems(root, train=["a.{lang}", "c.*.{lang}"], dev=["z.{lang}"], test=["b.en", "z.tsv"])
    assert message.startswith(f"corpus {root}: 5 problems\n")
    assert f"data.train = a.{{lang}}: a.en has no counterpart a.de in {root}" in message
    assert f"data.train = c.*.{{lang}}: c.1.en has no counterpart c.*.de in {root}" in message
    assert f"data.dev = z.{{lang}}: no such files z.en and z.de in {root}" in message
    assert "data.test = b.en: not a bilingual file" in message and "write {lang}" in message
    assert f"data.test = z.tsv: no such file in {root}" in message


def test_a_file_or_a_text_pattern_is_the_training_split(folder):
    root = folder("t.tmx", "t.en", "t.de", "d.tsv")
    assert names(find_files(root / "t.tmx", {"dev": ["d.tsv"]}, LANGS), root) == {"train": ["t.tmx"], "dev": ["d.tsv"]}
    assert names(find_files(root / "t.{lang}", {}, LANGS), root) == {"train": ["t.en+t.de"]}
    assert "is a file and data.train is given as well" in problems(root / "t.tmx", train=["t.tmx"])
    assert "t.en: not a bilingual file" in problems(root / "t.en")


def test_dev_and_test_alone_train_nothing(folder):
    assert "data.train is missing (data.dev given)" in problems(folder("d.tsv"), dev=["d.tsv"])

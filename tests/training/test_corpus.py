import gzip
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vanilla_transformer.configuration.errors import CorpusError, UsageError
from vanilla_transformer.training import corpus_store
from vanilla_transformer.training.corpus import Corpus, load_corpus
from vanilla_transformer.training.recipe import DataConfig


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "vanilla_transformer"


@pytest.fixture
def folder(tmp_path) -> Callable[..., Path]:
    def write(**files: str | bytes) -> Path:
        root = tmp_path / "corpus"
        root.mkdir(exist_ok=True)
        for name, content in files.items():
            (root / name.replace("__", ".")).write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return write


def load(corpus: Path | str, **settings) -> Corpus:
    return load_corpus(DataConfig(corpus=str(corpus), source_lang="en", target_lang="de", **settings))


def pairs(table) -> list[tuple[str, str]]:
    return [(row["translation"]["en"], row["translation"]["de"]) for row in table]


def test_line_aligned_folder_end_to_end(folder):
    root = folder(
        train__en="one\ntwo\n\none\nIN test\n" + "x" * 200_000 + "\nsix\n",
        train__de="eins\nzwei\nleer\neins\ngestrichen\nlang\nsechs\n",
        val__en="dev\n\n",
        val__de="Dev\nohne Quelle\n",
        test__en__gz=gzip.compress(b"in  Test\nlast\n"),
        test__de__gz=gzip.compress(b"im Test\n\n"),
    )
    corpus = load(root)
    assert corpus.splits["train"].features == datasets.Features(
        {"translation": datasets.Translation(languages=["en", "de"])}
    )
    assert pairs(corpus.splits["train"]) == [("one", "eins"), ("two", "zwei"), ("six", "sechs")]
    assert pairs(corpus.splits["dev"]) == [("dev", "Dev"), ("", "ohne Quelle")]
    assert pairs(corpus.splits["test"]) == [("in  Test", "im Test"), ("last", "")]
    assert corpus.counters["train"] == {
        "read": 7,
        "kept": 3,
        "missing_language": 0,
        "empty": 1,
        "over_long": 1,
        "ratio": 0,
        "test_overlap": 1,
        "duplicate": 1,
        "limit": 0,
    }
    assert corpus.counters["dev"] == corpus.counters["test"] == {"read": 2, "kept": 2, "missing_language": 0}
    assert corpus.reported == {
        "dev": {"empty_source": 1, "empty_target": 0},
        "test": {"empty_source": 0, "empty_target": 1},
    }
    listed = [(entry["split"], Path(entry["file"]).name, entry["lines"]) for entry in corpus.sources]
    assert listed == [
        ("train", "train.en", 7),
        ("train", "train.de", 7),
        ("dev", "val.en", 2),
        ("dev", "val.de", 2),
        ("test", "test.en.gz", 2),
        ("test", "test.de.gz", 2),
    ]
    sums = subprocess.run(
        ["sha256sum", *(entry["file"] for entry in corpus.sources)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [entry["sha256"] for entry in corpus.sources] == [line.split()[0] for line in sums]


@pytest.mark.parametrize("name", ["train.tsv", "train.jsonl", "train.parquet", "train.tmx"])
@pytest.mark.parametrize("zipped", [False, True])
def test_every_format_gives_the_same_corpus(tmp_path, name, zipped):
    root = tmp_path / "corpus"
    root.mkdir()
    path = root / name
    if name == "train.tsv":
        path.write_text("a\tb\nc\u2028d\te\n")
    elif name == "train.jsonl":
        rows = [{"translation": {"de": "b", "en": "a"}}, {"translation": {"de": "e", "en": "c\u2028d"}}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name == "train.parquet":
        pq.write_table(pa.table({"de": ["b", "e"], "en": ["a", "c\u2028d"]}), path)
    else:
        units = "".join(
            f'<tu><tuv xml:lang="EN-us"><seg>{en}</seg></tuv><tuv xml:lang="de"><seg>{de}</seg></tuv></tu>'
            for en, de in (("a", "b"), ("c\u2028d", "e"))
        )
        path.write_text(f"<tmx><body>{units}</body></tmx>")
    if zipped:
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert pairs(load(root).splits["train"]) == [("a", "b"), ("c\u2028d", "e")]


def test_settings_reach_cleaning(folder):
    root = folder(train__tsv="A B C\tX\na\tb\na\tb\nd\te\nf\tg\n", dev__tsv="d\te\nh\ti\n")
    assert pairs(load(root, max_ratio=2.5, limit=1).splits["train"]) == [("a", "b")]
    assert load(root, max_ratio=2.5, limit=1).counters["train"]["limit"] == 1
    everything = load(root, drop_duplicates=False, drop_test_overlap=False, lowercase=True)
    assert pairs(everything.splits["train"]) == [("a b c", "x"), ("a", "b"), ("a", "b"), ("d", "e"), ("f", "g")]


def test_dev_limit_is_counted_and_does_not_change_training(folder):
    root = folder(train__tsv="a\tb\nc\td\n", dev__tsv="x\ty\na\tb\n")
    corpus = load(root, dev_limit=1)
    assert pairs(corpus.splits["dev"]) == [("x", "y")]
    assert corpus.counters["dev"] == {"read": 2, "kept": 1, "missing_language": 0, "limit": 1}
    assert corpus.counters["train"]["test_overlap"] == 1


def test_several_files_make_one_split(folder):
    root = folder(a__tsv="a\tb\n", b__tsv="c\td\n", c__en="e\n", c__de="f\n")
    corpus = load(root, train=["b.tsv", "a.tsv", "c.{lang}"])
    assert pairs(corpus.splits["train"]) == [("c", "d"), ("a", "b"), ("e", "f")]
    assert set(corpus.splits) == {"train"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train__en": "a\nb\n", "train__de": "a\n"}, "train.en:2: no such line in .*train.de"),
        ({"train__en": "", "train__de": ""}, "train.(en|de): the file is empty"),
        ({"train__en": "a\n", "train__de": b"\xff\n"}, "train.de:1: not valid UTF-8"),
        ({"train__tsv": "a\tb\nc\n"}, "train.tsv:2: 1 column"),
        ({"train__tsv": "a\tb\n", "dev__tsv": "c\n"}, "dev.tsv:1: 1 column"),
        ({"train__tsv": "a\t\n \tb\n"}, "no usable train pair in .*train.tsv: read 2, kept 0, empty 2"),
        ({"train__tsv": "a\tb\n", "test__tsv": "A\tb\n"}, "no usable train pair in .*: read 1, kept 0, test_overlap 1"),
        ({"train__tsv": "a\tb\n", "test__tsv": "c\t\n"}, "no usable test pair in .*test.tsv: read 1, kept 1, blank 1"),
        ({"other__txt": "a\n"}, "no training files"),
    ],
)
def test_unusable_corpora_stop_with_file_and_line_and_leave_nothing(folder, cache, files, message):
    with pytest.raises(CorpusError, match=message):
        load(folder(**files))
    assert not cache.exists() or not list(cache.iterdir())


def test_missing_paths_and_equal_languages(tmp_path):
    with pytest.raises(CorpusError, match="absent.tsv: no such file or folder"):
        load(tmp_path / "absent.tsv")
    with pytest.raises(UsageError, match="both 'en'"):
        load_corpus(DataConfig(corpus="reverse", source_lang="en", target_lang="en"))


def test_the_second_call_reads_the_cache_and_new_content_does_not(folder, cache, monkeypatch):
    root = folder(train__tsv="a\tb\n")
    first = load(root)

    with monkeypatch.context() as patch:
        patch.setattr(corpus_store, "_write", lambda *_: pytest.fail("read again"))
        moved = root.rename(root.with_name("elsewhere"))
        second = load(moved)
    assert pairs(second.splits["train"]) == pairs(first.splits["train"]) and second.counters == first.counters
    assert second.sources[0]["file"] == str(moved / "train.tsv")
    moved.joinpath("train.tsv").write_text("c\td\n")
    assert pairs(load(moved).splits["train"]) == [("c", "d")]
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", ["truncate", "remove", "record"])
def test_a_damaged_cache_is_written_again(folder, cache, damage):
    root = folder(train__tsv="a\tb\n", dev__tsv="c\td\n")
    load(root)
    (entry,) = cache.iterdir()
    if damage == "truncate":
        (entry / "train.arrow").write_bytes((entry / "train.arrow").read_bytes()[:-9])
    elif damage == "remove":
        (entry / "dev.arrow").unlink()
    else:
        (entry / "corpus.json").write_text("{")
    corpus = load(root)
    assert pairs(corpus.splits["train"]) == [("a", "b")] and pairs(corpus.splits["dev"]) == [("c", "d")]
    assert [path.name for path in cache.iterdir()] == [entry.name]


def test_a_cache_that_cannot_be_written_is_one_sentence(folder, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file")
    with pytest.raises(
        CorpusError, match="cannot write the corpus cache in .*; make room there, or set HF_DATASETS_CACHE"
    ):
        load(folder(train__tsv="a\tb\n"))


def _load_in_process(arguments: tuple[str, str]) -> list[tuple[str, str]]:
    datasets.config.HF_DATASETS_CACHE = Path(arguments[1])
    return pairs(load(arguments[0]).splits["train"])


@pytest.mark.integration
def test_processes_that_start_together_agree(folder, cache):
    root = folder(train__tsv="".join(f"source {n}\ttarget {n}\n" for n in range(3000)))
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        results = pool.map(_load_in_process, [(str(root), str(cache.parent))] * 4, chunksize=1)
    assert all(result == [(f"source {n}", f"target {n}") for n in range(3000)] for result in results)
    assert len(list(cache.iterdir())) == 1


def test_streaming_leaves_training_a_stream(folder):
    root = folder(train__tsv="A\tb\na\tb\n\tc\nd\te\nF\tg\nh\ti\n", more__en="j\n", more__de="k\n", dev__tsv="D\te\n")
    corpus = load(root, train=["train.tsv", "more.{lang}"], dev="dev.tsv", streaming=True, lowercase=True, limit=4)
    stream = corpus.splits["train"]
    assert isinstance(stream, datasets.IterableDataset) and isinstance(corpus.splits["dev"], datasets.Dataset)
    # duplicates stay, the empty pair and the dev sentence go
    expected = [("a", "b"), ("a", "b"), ("f", "g"), ("h", "i")]
    assert pairs(stream) == expected == pairs(stream)
    assert "train" not in corpus.counters and corpus.counters["dev"]["kept"] == 1
    everything = load(root, train=["train.tsv", "more.{lang}"], streaming=True)
    assert pairs(everything.splits["train"])[-1] == ("j", "k")
    # a stream taken up again goes on where it was
    rows = iter(everything.splits["train"])
    next(rows), next(rows)
    state = everything.splits["train"].state_dict()
    rest = [row for row in rows]
    everything.splits["train"].load_state_dict(state)
    assert list(everything.splits["train"]) == rest


def test_a_fault_in_a_stream_is_named_when_it_is_reached(folder):
    stream = load(folder(train__tsv="a\tb\nc\n"), streaming=True).splits["train"]
    rows = iter(stream)
    assert next(rows)["translation"]["en"] == "a"
    with pytest.raises(CorpusError, match="train.tsv:2: 1 column"):
        next(rows)


def test_named_corpora_keep_their_repetitions_where_those_are_the_point():
    corpus = load_corpus(DataConfig(corpus="reverse", source_lang="src", target_lang="trg"))
    assert {split: len(table) for split, table in corpus.splits.items()} == {"train": 50_000, "dev": 500, "test": 1_000}
    assert corpus.counters["train"]["kept"] == corpus.counters["train"]["read"] == 50_000
    row = corpus.splits["test"][0]["translation"]
    assert row["trg"].split() == row["src"].split()[::-1]
    assert {entry["file"] for entry in corpus.sources} == {"reverse (reverse, seed 1)"}


def test_a_local_folder_wins_over_a_hub_id_and_a_named_corpus_over_a_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(train__tsv="a\tb\n").rename(tmp_path / "wmt14")
    assert pairs(load("wmt14").splits["train"]) == [("a", "b")]
    (tmp_path / "wmt14").rename(tmp_path / "reverse")
    assert len(load_corpus(DataConfig(corpus="reverse", source_lang="en", target_lang="de")).splits["train"]) == 50_000
    assert pairs(load("./reverse").splits["train"]) == [("a", "b")]


lines = st.text(st.characters(exclude_characters="\n\r\t\0", exclude_categories=["Cs"]), max_size=6)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(lines, lines), min_size=1), st.lists(st.tuples(lines, lines), min_size=1), st.booleans())
def test_counters_add_up_and_evaluation_covers_every_line(folder, train, dev, drop):
    train[0], dev[0] = ("fixed source", "fixed target"), ("first", "first")
    texts = ["".join(f"{source}\t{target}\n" for source, target in split) for split in (train, dev)]
    root = folder(train__tsv=texts[0], dev__tsv=texts[1])
    try:
        corpus = load(root, drop_duplicates=drop, drop_test_overlap=drop)
    except CorpusError as error:
        # the one training pair may be a dev sentence
        assert "no usable train pair" in str(error) and "fixed source" in {source for source, _ in dev}
        return
    counters = corpus.counters["train"]
    assert counters["read"] == len(train) == sum(counters.values()) - counters["read"]
    rest = iter(train)
    assert all(pair in rest for pair in pairs(corpus.splits["train"]))
    assert pairs(corpus.splits["dev"]) == dev


# ------------------------------------------------------------------------------------------------------- real text


def test_multi30k(shared_data):
    # SOURCE.md: 29,000 / 1,014 / 1,000 pairs; one English val sentence occurs in train, none of test2016
    corpus = load(
        shared_data("multi30k"), train="train.{lang}.gz", dev="val.{lang}.gz", test="test_2016_flickr.{lang}.gz"
    )
    assert {split: counters["read"] for split, counters in corpus.counters.items()} == {
        "train": 29_000,
        "dev": 1_014,
        "test": 1_000,
    }
    train = corpus.counters["train"]
    assert train["test_overlap"] == 1 and train["empty"] == train["over_long"] == 0
    assert len(corpus.splits["train"]) == 29_000 - train["test_overlap"] - train["duplicate"]
    assert (len(corpus.splits["dev"]), len(corpus.splits["test"])) == (1_014, 1_000)
    assert corpus.sources[0]["sha256"] == "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"
    assert pairs(corpus.splits["train"].select([0])) == [
        (
            "Two young, White males are outside near many bushes.",
            "Zwei junge wei\u00dfe M\u00e4nner sind im Freien in der N\u00e4he vieler B\u00fcsche.",
        )
    ]


def test_tatoeba_is_found_by_its_file_names(shared_data):
    # SOURCE.md: 25,984 / 1,105 / 993 distinct pairs, no sentence shared by two splits
    corpus = load_corpus(DataConfig(corpus=str(shared_data("tatoeba_en-zh")), source_lang="en", target_lang="zh"))
    assert {split: len(table) for split, table in corpus.splits.items()} == {"train": 25_984, "dev": 1_105, "test": 993}
    assert all(counters["read"] == counters["kept"] for counters in corpus.counters.values())


@pytest.mark.integration
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """100 MB of text is read with less than that in memory, everything that Python and Arrow need included."""
    program = """
import resource, sys, datasets
from vanilla_transformer.training.corpus import load_corpus
from vanilla_transformer.training.recipe import DataConfig
def load(path):
    return load_corpus(DataConfig(corpus=path, source_lang="en", target_lang="de", drop_duplicates=False))
load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len(load(sys.argv[2]).splits["train"]) == 200_000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    small, large = tmp_path / "small.tsv", tmp_path / "large.tsv"
    small.write_text("a\tb\n")
    with open(large, "w") as stream:
        for number in range(200_000):
            stream.write(f"{number} {'word ' * 50}\t{number} {'Wort ' * 50}\n")
    assert large.stat().st_size > 100e6
    run = subprocess.run(
        [sys.executable, "-c", program, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "", "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
    )
    assert int(run.stdout) < 100, f"{run.stdout} MB more"

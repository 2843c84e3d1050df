import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training import hub_corpus
from vanilla_transformer.training.corpus import load_corpus
from vanilla_transformer.training.recipe import DataConfig

TRAIN = [("a", "b"), ("a", "b"), ("", "c"), ("d\n d", "e"), ("In Dev", "x"), ("f", "g")]
DEV = [("in dev", "y"), ("h", "")]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Data sets "user/NAME" that load_dataset itself reads, from a folder in place of the network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    true_load = datasets.load_dataset

    def load(path, *arguments, **options):
        return true_load(str(tmp_path / path), *arguments, **options, cache_dir=str(tmp_path / "downloads"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(
        "huggingface_hub.HfApi.dataset_info", lambda *_, **__: type("Info", (), {"sha": "0" * 40})(), raising=True
    )

    def publish(name: str, nested: bool = True, **splits: list[tuple[str | None, str | None]]) -> str:
        root = tmp_path / "user" / name / "data"
        root.mkdir(parents=True)
        for split, pairs in splits.items():
            rows = [{"en": source, "de": target} for source, target in pairs]
            table = pa.Table.from_pylist([{"translation": row} for row in rows] if nested else rows)
            if nested:
                features = datasets.Features({"translation": datasets.Translation(languages=["en", "de"])})
                table = datasets.Dataset.from_list([{"translation": row} for row in rows], features=features).data.table
            pq.write_table(table, root / f"{split}-00000-of-00001.parquet")
        return f"user/{name}"

    return publish


def load(corpus: str, **settings):
    return load_corpus(DataConfig(corpus=corpus, source_lang="en", target_lang="de", **settings))


def pairs(table) -> list[tuple[str, str]]:
    return [(row["translation"]["en"], row["translation"]["de"]) for row in table]


@pytest.mark.parametrize("nested", [True, False])
def test_translation_feature_and_language_columns(hub, nested):
    corpus = load(hub("pairs", nested, train=TRAIN, validation=DEV))
    assert pairs(corpus.splits["train"]) == [("a", "b"), ("d d", "e"), ("f", "g")]
    assert pairs(corpus.splits["dev"]) == DEV
    counters = corpus.counters["train"]
    assert (counters["read"], counters["empty"], counters["duplicate"], counters["test_overlap"]) == (6, 1, 1, 1)
    assert corpus.reported["dev"]["empty_target"] == 1
    assert [entry["file"] for entry in corpus.sources] == [
        "hub/user/pairs/train@main",
        "hub/user/pairs/validation@main",
    ]
    assert all(len(entry["sha256"]) == 64 for entry in corpus.sources)
    assert [entry["lines"] for entry in corpus.sources] == [6, 2]


@pytest.mark.parametrize("nested", [True, False])
def test_streaming_cleans_on_the_way(hub, nested):
    corpus = load(hub("pairs", nested, train=[*TRAIN, (None, "z")], validation=DEV), streaming=True)
    stream = corpus.splits["train"]
    assert isinstance(stream, datasets.IterableDataset)
    assert pairs(stream) == [("a", "b"), ("a", "b"), ("d d", "e"), ("f", "g")] == pairs(stream)
    assert pairs(corpus.splits["dev"]) == DEV
    limited = load("user/pairs", streaming=True, limit=3, lowercase=True).splits["train"]
    assert pairs(limited) == [("a", "b"), ("a", "b"), ("d d", "e")]


def test_a_stream_goes_on_where_it_was(hub):
    stream = load(hub("long", train=[(str(n), str(-n)) for n in range(100)]), streaming=True).splits["train"]
    rows = iter(stream)
    for _ in range(42):
        next(rows)
    state = json.loads(json.dumps(stream.state_dict()))
    stream.load_state_dict(state)
    assert pairs(stream) == [(str(n), str(-n)) for n in range(42, 100)]


def test_splits_by_name_and_slice(hub):
    name = hub("named", training=[("a", "b"), ("c", "d")], newstest=[("e", "f")])
    with pytest.raises(
        CorpusError, match="user/named: no training split; it has newstest, training; name one in data.train"
    ):
        load(name)
    corpus = load(name, train="training[:1]", dev="newstest")
    assert pairs(corpus.splits["train"]) == [("a", "b")] and pairs(corpus.splits["dev"]) == [("e", "f")]
    assert pairs(load(name, train=["training[1:]", "newstest"]).splits["train"]) == [("c", "d"), ("e", "f")]
    with pytest.raises(CorpusError, match="Hub data set user/named: Unknown split"):
        load(name, train="nothing")


def test_a_missing_side_is_counted(hub):
    corpus = load(hub("holes", train=[("a", "b"), (None, "c"), ("d", None)]))
    assert corpus.counters["train"]["missing_language"] == 2


def test_wrong_columns_list_what_is_there(hub):
    name = hub("columns", train=[("a", "b")])
    with pytest.raises(CorpusError, match="Hub data set user/columns: no language 'fr'; found de, en"):
        load_corpus(DataConfig(corpus=name, source_lang="en", target_lang="fr"))


def test_a_token_in_a_message_is_hidden():
    message = str(hub_corpus._hub_error("user/x", ValueError(f"Bearer hf_{'aB1' * 12} refused\nTraceback")))
    assert message == "Hub data set user/x: Bearer hf_*** refused"


@pytest.mark.integration
@pytest.mark.parametrize("offline", ["1", "0"])
def test_without_network_one_sentence_and_no_traceback(tmp_path, offline):
    program = (
        "from vanilla_transformer.configuration.errors import CorpusError\n"
        "from vanilla_transformer.training.corpus import load_corpus\n"
        "from vanilla_transformer.training.recipe import DataConfig\n"
        "try: load_corpus(DataConfig(corpus='user/absent', source_lang='en', target_lang='de'))\n"
        "except CorpusError as error: print(error)\n"
    )
    environment = {"HF_HUB_OFFLINE": offline, "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | environment, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("\n") == 1
    reason = "not in the cache, and HF_HUB_OFFLINE" if offline == "1" else "http://127.0.0.1:9 cannot be reached"
    assert run.stdout.startswith(f"Hub data set user/absent: {reason}")
    assert run.stdout.endswith("No local file or folder is called user/absent either.\n")
    assert "Traceback" not in run.stderr


def test_the_cache_follows_the_content(hub, tmp_path):
    name = hub("changing", train=[("a", "b")])
    assert pairs(load(name).splits["train"]) == [("a", "b")]
    file = next(Path(tmp_path / name).rglob("*.parquet"))
    file.unlink()
    pq.write_table(pa.table({"en": ["c"], "de": ["d"]}), file)
    assert pairs(load(name).splits["train"]) == [("c", "d")]

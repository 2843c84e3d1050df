"""Overlap counted by hand, and against what the data sets' own notes and the manifests of runs say."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ROWS = json.loads((BENCHMARKS / "results" / "overlap.json").read_text(encoding="utf-8"))


@pytest.fixture
def overlap(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import overlap

    yield overlap
    del sys.modules["overlap"]


def test_sources_targets_and_pairs_by_hand(overlap):
    train = [("A dog .", "Ein Hund ."), ("a  DOG .", "Der Hund ."), ("A cat .", "Eine Katze ."), ("x", "y")]
    held_out = [("a dog .", "ein hund ."), ("a cat .", "ein Hund ."), ("a cow .", "eine katze ."), ("new", "neu")]
    assert overlap.overlap(train, held_out) == {
        "lines": 4,
        "sources": 2,  # a dog, a cat
        "targets": 3,  # all but neu
        "pairs": 1,  # a dog, ein hund
        "training_pairs": 3,  # twice a dog, once a cat
    }


def test_the_committed_figures_come_out_again(overlap, shared_data):
    for row in ROWS:
        [(_, folder, langs, files)] = [entry for entry in overlap.DATA_SETS if entry[0] == row["data"]]
        if folder == "tatoeba_en-zh":
            shared_data(folder)
            splits = overlap.read(folder, langs, files)
            assert overlap.overlap(splits["train"], splits[row["set"]]).items() <= row.items()
    assert (BENCHMARKS / "results" / "overlap.md").read_text(encoding="utf-8") == overlap.report(ROWS)


def test_the_figures_agree_with_the_data_sets_notes():
    # multi30k/SOURCE.md: one English sentence of val also occurs in train, none of test2016 and mscoco; the one of
    # test2017 that it counts writes wetsuit as two words.
    found = {row["set"]: row["sources"] for row in ROWS if row["data"] == "multi30k en-de"}
    assert found == {"dev": 1, "test2016": 0, "test2017": 0, "mscoco": 0}
    # tatoeba_en-zh/SOURCE.md: no sentence of either side is shared by two splits
    for row in ROWS:
        if row["data"] == "tatoeba en-zh":
            assert (row["sources"], row["targets"], row["pairs"], row["training_pairs"]) == (0, 0, 0, 0)

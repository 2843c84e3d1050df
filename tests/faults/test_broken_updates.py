"""Two processes, one of which runs out of memory or computes NaN: both do the same, and neither waits for ever."""

import json
from pathlib import Path

import pytest
import yaml
from forked import Session, settings
from launching import Run, rows, start
from tiny_run import RECIPE, write_corpus

from vanilla_transformer.training.checkpoint import newest_whole

pytestmark = pytest.mark.integration

# Updates of about a dozen pairs in four parts, of which only single pairs fit into the memory where it fails.
SETTINGS = settings(
    *("model.dropout=0", "training.max_steps=20", "training.gradient_accumulation_steps=2", "training.eval_every=100"),
    *("training.max_skipped_in_a_row=3", "evaluation.decode=false"),
)
MEMORY = [
    (1, 1, "last forward"),  # DDP's very first update, in which it learns the order of its buckets
    (0, 2, "last backward"),
    (1, 3, "last backward"),
    (0, 4, "first forward"),
    (1, 5, "first backward"),
    (0, 6, "last forward"),
    (1, 6, "last backward"),
]
NOT_A_NUMBER = [(1, 8, "nan"), *((0, step, "nan") for step in range(10, 21))]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("recipe")
    return RECIPE.replace("CORPUS", str(write_corpus(folder / "pairs", "tsv")))


@pytest.fixture(scope="module")
def broken(recipe, tmp_path_factory) -> Run:
    """A run that meets all the faults, one after the other, until the last one ends it."""
    folder = tmp_path_factory.mktemp("runs") / "broken"
    script = Path(__file__).with_name("broken_training.py")
    program = (str(script), json.dumps(MEMORY + NOT_A_NUMBER))
    with start(recipe, folder, *SETTINGS, processes=2, program=program) as run:
        assert run.finish() == [1], run.stderr()[-3000:]
    return run


@pytest.fixture(scope="module")
def sound(recipe, tmp_path_factory) -> Path:
    """The same updates without a fault, up to where NaN comes in."""
    folder = tmp_path_factory.mktemp("runs") / "sound"
    path = folder.with_name("sound.yaml")
    path.write_text(recipe)
    with Session(path, folder, *SETTINGS, *settings("training.max_steps=7"), processes=2) as session:
        assert session.exit_codes() == [0, 0], session.errors()
    return folder


def test_updates_that_were_split_on_either_process_are_the_updates_that_were_not(broken, sound):
    assert [row["step"] for row in rows(broken.folder)] == list(range(1, 13))
    for whole, split in zip(rows(sound), rows(broken.folder)[:7], strict=True):
        for name in ("step", "epoch", "loss", "gradient_norm", "learning_rate"):
            assert split[name] == pytest.approx(whole[name], rel=1e-4), name


def test_split_batches_are_counted_and_their_lines_are_named(broken):
    found = {row["step"]: row for row in rows(broken.folder)}
    counts = [found[step]["split_batches"] for step in range(1, 7)]
    assert counts == sorted(set(counts)) and counts[0] >= 1
    assert "split_batches" not in found[7] and "lines" not in found[7]
    # In update 6 a part of each process was split; the lines of a part are those that its process had.
    assert all(len(found[6]["lines"]) > len(found[step]["lines"]) for step in (2, 3))
    assert len(set(found[6]["lines"])) == len(found[6]["lines"])
    assert broken.stderr().count("Out of memory in update 1: a batch of") == 1


def test_an_update_that_is_not_finite_on_one_process_is_skipped_on_both_and_names_all_its_lines(broken, recipe):
    found = {row["step"]: row for row in rows(broken.folder)}
    assert [step for step, row in found.items() if row["loss"] is None] == [8, 10, 11, 12]
    assert found[8]["skipped"] == 1 and found[12]["skipped"] == 4
    # An update holds 90 padded tokens a side at most, of which each process has about a half.
    corpus = (Path(yaml.safe_load(recipe)["data"]["corpus"]) / "train.tsv").read_text().splitlines()
    lines = found[8]["lines"]
    assert len(set(lines)) == len(lines)
    assert 60 < sum(len(corpus[line - 1].split("\t")[0].split()) + 1 for line in lines) <= 90


def test_updates_that_are_not_finite_in_a_row_end_the_run_with_one_sentence_and_a_whole_checkpoint(broken):
    errors = broken.stderr()
    assert errors.count("was not a finite number in 3 updates in a row, up to step 12") == 1
    assert "lower training.learning_rate" in errors
    assert "training/loop.py" not in errors  # torchrun shows a traceback of its own
    newest, skipped = newest_whole(broken.folder / "checkpoints")
    assert newest.name == "step-8" and not skipped

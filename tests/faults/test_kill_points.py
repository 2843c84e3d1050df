"""A run killed at every kind of moment and continued ends bitwise as the run that was never killed.

The kill points are dealt out by KILL_SEED over runs that differ in precision, data workers, accumulation and corpus.
Each run meets its points one session after the other, and a last session ends it.
"""

import json
import os
import random
from pathlib import Path

import pytest
from forked import Session, settings
from kill_at import KillPoint
from kill_points import DECODE, TRAINING, WRITE_ROW, while_beginning, while_ending, while_training
from launching import outcome, rows
from tiny_run import RECIPE, write_corpus

from vanilla_transformer.training.durable import fault

pytestmark = pytest.mark.integration

SEED = int(os.environ.get("KILL_SEED", 20170612))
KILLED = -9

# A run's settings, each with another accumulation, so that points inside an update fall into different parts.
RUNS = {
    "float32": ["training.gradient_accumulation_steps=2", "tracking.trackers=[tensorboard]"],
    "bfloat16 with data workers": [
        *("training.gradient_accumulation_steps=1", "training.precision=bfloat16", "training.num_workers=2"),
        "tracking.trackers=[trackio]",
    ],
    "streamed": ["training.gradient_accumulation_steps=3", "data.streaming=true"],
}
STREAM_BUFFER = 50  # pairs, so that an epoch is several buffers and a point falls between them


def dealt(draw: random.Random) -> dict[str, list[KillPoint]]:
    """The points of each run: every third of each phase. How a run begins and ends has an order, training has none."""
    hands: dict[str, list[KillPoint]] = {name: [] for name in RUNS}
    for phase in (while_beginning, while_training, while_ending):
        entries = phase(draw)
        if phase is while_training:
            draw.shuffle(entries)
        owners = [list(RUNS)[number % len(RUNS)] for number in range(len(entries))]
        draw.shuffle(owners)
        for owner, entry in zip(owners, entries, strict=True):
            hands[owner] += entry
    return hands


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    """The recipe of every run; CORPUS is a folder of line pairs."""
    folder = tmp_path_factory.mktemp("recipe")
    path = folder / "tiny.yaml"
    path.write_text(RECIPE.replace("CORPUS", str(write_corpus(folder / "pairs", "tsv"))))
    return path


def finish(recipe: Path, folder: Path, *options: str, **how) -> None:
    """A session that nothing happens to."""
    with Session(recipe, folder, *options, "--resume", **how) as session:
        codes = session.exit_codes()
        assert set(codes) == {0}, session.errors()


def meet(recipe: Path, folder: Path, point: KillPoint, *options: str, **how) -> None:
    """A session that must die at the point."""
    with Session(recipe, folder, *options, "--resume", kill=point, **how) as session:
        codes = session.exit_codes()
        assert KILLED in codes, f"{point} was not met: exit codes {codes}\n{session.errors()}"


def state(folder: Path) -> list[dict]:
    """The trainer state of every checkpoint, without its clock and the size of a log that holds tokens per second."""
    found = []
    for path in sorted(folder.glob("checkpoints/step-*/trainer_state.json")):
        values = json.loads(path.read_text())
        for name in ("seconds", "interval_seconds", "log_size"):
            del values[name]
        found.append(values)
    return found


def assert_same(killed: Path, whole: Path) -> None:
    assert rows(killed) == rows(whole)
    assert outcome(killed) == outcome(whole)
    assert state(killed) == state(whole)
    best = [json.loads((folder / "best" / "manifest.json").read_text()) for folder in (killed, whole)]
    assert (best[0]["step"], best[0]["scores"]) == (best[1]["step"], best[1]["scores"])
    scores = [json.loads((folder / "results" / "test.json").read_text())["scores"] for folder in (killed, whole)]
    assert scores[0] == scores[1]
    assert all(fault(path) is None for path in [*killed.glob("checkpoints/*"), killed / "best"])
    assert not [path for path in killed.rglob(".*") if path.name != ".lock"]  # nothing unfinished, nothing set aside


@pytest.mark.parametrize("name", RUNS)
def test_killed_at_every_kind_of_moment_a_run_ends_as_if_nothing_had_happened(name, recipe, tmp_path):
    print(f"KILL_SEED={SEED}")
    options, how = settings(*RUNS[name], f"tracking.project={tmp_path.name}"), {}
    if name == "streamed":
        corpus = write_corpus(tmp_path / "lines", "jsonl")
        options, how = [*options, "--set", f"data.corpus={corpus}"], {"stream_buffer": STREAM_BUFFER}
    finish(recipe, tmp_path / "whole", *options, **how)
    for point in dealt(random.Random(SEED))[name]:
        print(point)
        meet(recipe, tmp_path / "killed", point, *options, **how)
    finish(recipe, tmp_path / "killed", *options, **how)
    assert_same(tmp_path / "killed", tmp_path / "whole")
    logged = rows(tmp_path / "killed")
    assert [row["step"] for row in logged] == list(range(1, 61))
    tracked = {"float32": events, "bfloat16 with data workers": trackio_points}.get(name)
    for tag in ("loss", "validation_loss") if tracked else ():
        expected = [(row["step"], pytest.approx(row[tag], rel=1e-6)) for row in logged if tag in row]
        assert tracked(tmp_path, tag) == expected


def events(folder: Path, tag: str) -> list[tuple[int, float]]:
    """What TensorBoard shows of the killed run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "killed" / "trackers" / folder.name)).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def trackio_points(folder: Path, tag: str) -> list[tuple[int, float]]:
    """What trackio holds of the killed run, by step."""
    from trackio.sqlite_storage import SQLiteStorage

    return sorted((row["step"], row[tag]) for row in SQLiteStorage.get_logs(folder.name, "killed") if tag in row)


def test_two_processes_of_which_one_is_killed_end_as_two_that_never_were(recipe, tmp_path):
    draw, two = random.Random(SEED), {"processes": 2}
    options = settings("training.gradient_accumulation_steps=2", "training.max_steps=20", "training.num_workers=1")
    finish(recipe, tmp_path / "whole", *options, **two)
    for rank, point in (
        (1, KillPoint("torch.Tensor.backward", 2 * draw.randint(1, 5) - 1, "after")),  # between two parts
        (0, KillPoint("os.rename", where=r"\.unfinished-step-\d+ ")),
        (1, KillPoint(DECODE)),
        (0, KillPoint("os.fsync", draw.randint(1, 8), where=r"\.unfinished-best")),
        (0, KillPoint(f"{TRAINING}.averaging.save_file")),
    ):
        meet(recipe, tmp_path / "killed", point, *options, rank=rank, **two)
    finish(recipe, tmp_path / "killed", *options, **two)
    assert_same(tmp_path / "killed", tmp_path / "whole")


def test_what_ends_a_run_early_is_remembered_over_a_kill(recipe, tmp_path):
    # BLEU of a model that learns the commonest words first rises, then falls. A run that forgot its best score would
    # take a later model for the best, and end later.
    options = settings(
        *("training.early_stopping_metric=bleu", "training.patience=4", "training.max_steps=200"),
        *("training.save_every=2", "training.gradient_accumulation_steps=1"),
    )
    finish(recipe, tmp_path / "whole", *options)
    best, last = best_step(tmp_path / "whole"), rows(tmp_path / "whole")[-1]["step"]
    assert best < last == best + 4 * 5 < 200
    for rows_written in (best + 2, 6, 6):
        meet(recipe, tmp_path / "killed", KillPoint(WRITE_ROW, rows_written, "after"), *options)
    finish(recipe, tmp_path / "killed", *options)
    assert_same(tmp_path / "killed", tmp_path / "whole")


def best_step(folder: Path) -> int:
    return json.loads((folder / "best" / "manifest.json").read_text())["step"]

"""One of two processes dies or freezes: the other one ends in time and says why, and the run goes on exactly."""

import os
import signal
import time
from pathlib import Path

import pytest
from forked import Session, settings
from kill_at import KillPoint
from launching import outcome, rows, start
from tiny_run import RECIPE, write_corpus

from vanilla_transformer.training.checkpoint import newest_whole

pytestmark = pytest.mark.integration

TIMEOUT = 15  # seconds


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    path = folder / "tiny.yaml"
    path.write_text(RECIPE.replace("CORPUS", str(write_corpus(folder / "pairs", "tsv"))))
    return path


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory) -> Path:
    """The run of two processes that nothing happens to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    finish(recipe, folder)
    return folder


def finish(recipe: Path, folder: Path) -> None:
    with Session(recipe, folder, "--resume", processes=2) as session:
        assert session.exit_codes() == [0, 0], session.errors()


def assert_goes_on_exactly(recipe: Path, folder: Path, whole: Path) -> None:
    newest, damaged = newest_whole(folder / "checkpoints")
    assert newest is not None and not damaged
    finish(recipe, folder)
    assert rows(folder) == rows(whole)
    assert outcome(folder) == outcome(whole)


def assert_said(errors: str, survivor: int) -> None:
    assert errors.count("another one has died") == 1
    assert f"Process {survivor} of 2 (counted from 0) stops" in errors and "continue with --resume" in errors
    assert "training/loop.py" not in errors  # no traceback of ours


@pytest.mark.parametrize("dead", (0, 1))
def test_a_process_that_dies_ends_the_other_one_without_any_launcher(recipe, whole, tmp_path, dead):
    point = KillPoint("torch.Tensor.backward", 12)
    with Session(recipe, tmp_path / "run", processes=2, kill=point, rank=dead) as session:
        survivor = session.processes[1 - dead]
        survivor.join(60)
        assert session.processes[dead].exitcode == -signal.SIGKILL
        assert survivor.exitcode == 1, session.errors()
        assert_said(session.log.read_text(), 1 - dead)
    assert_goes_on_exactly(recipe, tmp_path / "run", whole)


def test_a_process_that_freezes_ends_the_other_one_in_the_recipes_time(recipe, whole, tmp_path):
    timeout = settings(f"training.process_timeout_minutes={TIMEOUT / 60}")
    with Session(recipe, tmp_path / "run", *timeout, processes=2) as session:
        log = tmp_path / "run" / "metrics.jsonl"
        while not log.exists() or log.read_bytes().count(b"\n") < 6:
            assert session.processes[0].is_alive(), session.errors()
            time.sleep(0.002)
        os.kill(session.processes[1].pid, signal.SIGSTOP)
        began = time.monotonic()
        session.processes[0].join(TIMEOUT + 60)
        assert session.processes[0].exitcode == 1, session.errors()
        assert time.monotonic() - began > TIMEOUT * 0.8  # it has been given that time
        assert_said(session.log.read_text(), 0)
    assert_goes_on_exactly(recipe, tmp_path / "run", whole)


def test_under_torchrun_the_other_process_leaves_by_itself_and_says_why(recipe, whole, tmp_path):
    with start(recipe.read_text(), tmp_path / "run", processes=2) as run:
        run.wait_for_rows(6)
        os.kill(run.workers()[1], signal.SIGKILL)
        assert run.finish(timeout=60) == [1]
        errors = run.stderr()
    assert_said(errors, 0)
    assert "forcefully exiting" not in errors  # torchrun kills what has not gone half a minute after its SIGTERM
    assert_goes_on_exactly(recipe, tmp_path / "run", whole)

"""Real disks that fill up, turn read-only or vanish under a real run: it keeps what it has, waits or ends, goes on."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Session
from launching import outcome, rows
from tiny_run import RECIPE, write_corpus

from vanilla_transformer.training.checkpoint import damage, newest_whole
from vanilla_transformer.training.durable import fault

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    path = folder / "tiny.yaml"
    path.write_text(RECIPE.replace("CORPUS", str(write_corpus(folder / "pairs", "tsv"))))
    return path


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory) -> Path:
    """The run that nothing happens to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    finish(recipe, folder)
    return folder


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """An empty file system of 16 MiB, of which the run needs three."""
    folder = tmp_path / "run"
    folder.mkdir()
    mount(folder, "-t", "tmpfs", "-o", "size=16m", "tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def mount(folder: Path, *options: str | Path) -> None:
    try:
        subprocess.run(["mount", *options, folder], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only who may mount can make a small disk")


def fill(folder: Path) -> Path:
    """Take all the room that is left; deleting the file that is returned gives it back."""
    filler = folder.parent / folder.name / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


def session(recipe: Path, folder: Path, minutes: float, processes: int = 1) -> Session:
    options = ("--set", f"training.write_retry_minutes={minutes}", "--resume")
    return Session(recipe, folder, *options, processes=processes)


def finish(recipe: Path, folder: Path, processes: int = 1) -> None:
    """A session that nothing happens to."""
    with session(recipe, folder, 0, processes) as done:
        assert done.exit_codes() == [0] * processes, done.errors()


def wait(running: Session, what: str, reached) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert None in [process.exitcode for process in running.processes], f"ended before {what}\n{running.errors()}"
        assert time.monotonic() < deadline, f"{what} is long in coming\n{running.errors()}"
        time.sleep(0.002)


def wait_for_step(running: Session, folder: Path, step: int) -> None:
    wait(running, f"step-{step}", (folder / "checkpoints" / f"step-{step}").exists)


def wait_for_word(running: Session, word: str) -> None:
    wait(running, word, lambda: running.log.exists() and word in running.errors())


def assert_nothing_half_written(folder: Path) -> None:
    kept = list((folder / "checkpoints").iterdir())
    assert kept and not [path for path in kept if damage(path)]
    assert fault(folder / "best") is None
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"]


def assert_same(folder: Path, whole: Path) -> None:
    assert rows(folder) == rows(whole)
    assert outcome(folder) == outcome(whole)
    assert_nothing_half_written(folder)


def test_a_run_waits_for_room_on_a_full_disk_and_ends_as_if_there_had_been_room(recipe, whole, small_disk):
    with session(recipe, small_disk, minutes=5) as running:
        wait_for_step(running, small_disk, 8)
        filler = fill(small_disk)
        wait_for_word(running, "Trying again in")
        assert_nothing_half_written(small_disk)
        filler.unlink()
        assert running.exit_codes() == [0], running.errors()
    assert "could not be written: No space left on device" in running.log.read_text()
    assert "the run goes on" in running.log.read_text()
    assert_same(small_disk, whole)


def test_a_run_told_not_to_wait_stops_with_its_last_good_checkpoint(recipe, whole, small_disk):
    with session(recipe, small_disk, minutes=0) as running:
        wait_for_step(running, small_disk, 8)
        filler = fill(small_disk)
        assert running.exit_codes() == [1]
    said = running.log.read_text()
    assert "could not be written: No space left on device" in said and "continue with --resume" in said
    assert "Traceback" not in said
    assert_nothing_half_written(small_disk)
    filler.unlink()
    finish(recipe, small_disk)
    assert_same(small_disk, whole)


def test_a_run_that_begins_on_a_full_disk_says_so(recipe, small_disk):
    fill(small_disk)
    with session(recipe, small_disk, minutes=5) as running:
        assert running.exit_codes() == [1]
    said = running.log.read_text()
    assert f"The output folder {small_disk} could not be written: No space left on device" in said
    assert "Traceback" not in said


def test_several_processes_wait_together_and_a_signal_to_any_ends_it(recipe, tmp_path_factory, small_disk):
    two = tmp_path_factory.mktemp("runs") / "two"
    finish(recipe, two, processes=2)
    with session(recipe, small_disk, minutes=5, processes=2) as running:
        wait_for_step(running, small_disk, 8)
        filler = fill(small_disk)
        wait_for_word(running, "Trying again in")
        os.kill(running.processes[1].pid, signal.SIGTERM)
        assert running.exit_codes(timeout=30) == [1, 1]
    said = running.log.read_text()
    assert said.count("continue with --resume") == 1 and "Traceback" not in said
    assert_nothing_half_written(small_disk)
    filler.unlink()
    finish(recipe, small_disk, processes=2)
    assert_same(small_disk, two)


def test_a_folder_that_turns_read_only_is_waited_for_too(recipe, whole, tmp_path):
    folder = tmp_path / "run"
    with session(recipe, folder, minutes=5) as running:
        wait_for_step(running, folder, 8)
        checkpoints = folder / "checkpoints"
        if os.geteuid():
            checkpoints.chmod(0o555)
        else:  # permissions do not stop root; a read-only mount does
            mount(checkpoints, "--bind", checkpoints)
            mount(checkpoints, "-o", "remount,bind,ro")
        try:
            wait_for_word(running, "Trying again in")
        finally:
            if os.geteuid():
                checkpoints.chmod(0o755)
            else:
                subprocess.run(["umount", "--lazy", checkpoints], check=True)
        assert running.exit_codes() == [0], running.errors()
    reason = "Permission denied" if os.geteuid() else "Read-only file system"
    assert f"could not be written: {reason}" in running.log.read_text()
    assert_same(folder, whole)


def test_checkpoints_deleted_under_the_run_are_not_missed(recipe, whole, tmp_path):
    folder = tmp_path / "run"
    with session(recipe, folder, minutes=5) as running:
        wait_for_step(running, folder, 8)
        os.rename(folder / "checkpoints", tmp_path / "deleted")
        assert running.exit_codes() == [0], running.errors()
    assert_same(folder, whole)


def test_a_run_deleted_whole_stops_and_does_not_come_back(recipe, tmp_path):
    folder = tmp_path / "run"
    with session(recipe, folder, minutes=0.02) as running:
        wait_for_step(running, folder, 8)
        os.rename(folder, tmp_path / "deleted")
        assert running.exit_codes() == [1]
    assert f"folder {folder} was deleted or replaced while the run was writing to it" in running.log.read_text()
    assert "Traceback" not in running.log.read_text()
    assert not folder.exists()


def test_a_second_run_on_the_folder_is_refused_and_the_first_goes_on(recipe, whole, tmp_path):
    folder = tmp_path / "run"
    with session(recipe, folder, minutes=0) as first:
        wait_for_step(first, folder, 4)
        with session(recipe, folder, minutes=0) as second:
            assert second.exit_codes() == [1]
        assert first.exit_codes() == [0], first.errors()
    assert f"Another run is writing to {folder} (process {first.processes[0].pid} on " in first.log.read_text()
    assert_same(folder, whole)


def test_the_damaged_are_named_and_passed_over_before_training_starts(recipe, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    newest, older = (folder / "checkpoints" / f"step-{step}" for step in (60, 56))
    os.truncate(newest / "model.safetensors", 1000)
    (older / "optimizer.safetensors").unlink()
    (folder / "best" / "config.json").unlink()
    with session(recipe, folder, minutes=0) as running:
        assert running.exit_codes() == [0], running.errors()
    said = running.log.read_text()
    assert f"{newest} is skipped: model.safetensors has 1000 bytes instead of" in said
    assert f"{older} is skipped: optimizer.safetensors is missing." in said
    assert f"{folder / 'best'} is damaged: config.json is missing." in said
    assert said.index("is skipped") < said.index(f"Continuing from {folder / 'checkpoints' / 'step-52'}")
    assert rows(folder) == rows(whole)
    assert newest_whole(folder / "checkpoints") == (newest, [])
    assert (newest / "model.safetensors").read_bytes() == (whole / "checkpoints/step-60/model.safetensors").read_bytes()

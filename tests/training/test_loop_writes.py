"""The loop when the file system refuses, in one process: real disks that fill up are in tests/faults."""

import os
import shutil
import signal
import threading

import pytest
import torch
from toy_training import toy_loop, toy_model

from vanilla_transformer.training import checkpoint, write_retries
from vanilla_transformer.training.checkpoint import newest_whole
from vanilla_transformer.training.folder_lock import locked
from vanilla_transformer.training.write_errors import WriteError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(write_retries, "FIRST_PAUSE", 0.01)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def disk(monkeypatch):
    """A function that makes the disk full for the tries numbered so, from 1, of a function that writes."""

    def full_for(module, name, tries, during=lambda: None):
        write, count = getattr(module, name), [0]

        def nearly(*arguments, **options):
            count[0] += 1
            if count[0] in tries:
                during()
                raise OSError(28, "No space left on device")
            return write(*arguments, **options)

        monkeypatch.setattr(module, name, nearly)
        return count

    return full_for


def improving():
    losses = iter([3.0, 2.0, 1.0, 0.5])
    return lambda model: {"validation_loss": next(losses)}


CONFIG = {"max_steps": 8, "save_every": 2, "eval_every": 4, "early_stopping_metric": "loss", "keep_last": 3}
STOP, SOON, LONG = ({"write_retry_minutes": minutes} for minutes in (0, 0.1, 10))


def weights(folder):
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}
    assert found
    return found


def test_a_run_that_waited_for_the_disk_is_the_run_that_never_had_to(tmp_path, disk, caplog):
    toy_loop(tmp_path / "whole", validate=improving(), **CONFIG).train()
    disk(checkpoint, "save_file", {1, 4, 5, 6})  # optimizer.safetensors: the first checkpoint, and the third for long
    disk(checkpoint, "write_manifest", {2, 3})  # the first best model, twice
    toy_loop(tmp_path / "run", validate=improving(), **CONFIG, **SOON).train()
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert (tmp_path / "run" / "best" / "config.json").exists()
    assert "best could not be written: No space left on device. Trying again" in caplog.text
    assert "step-2 could not be written" in caplog.text and "Written at the try" in caplog.text


def test_without_retries_the_run_ends_with_its_last_good_checkpoint(tmp_path, disk):
    disk(checkpoint, "save_file", {3})
    with pytest.raises(WriteError, match="step-6 could not be written: No space left on device.*with --resume"):
        toy_loop(tmp_path, **CONFIG, **STOP).train()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-2", "step-4"]
    assert newest_whole(tmp_path / "checkpoints")[0].name == "step-4"


def test_the_former_best_model_stays_where_the_next_cannot_be_written(tmp_path, disk):
    loop = toy_loop(tmp_path, validate=improving(), **CONFIG, **STOP)
    disk(checkpoint, "write_manifest", {5})  # of step-2, best, step-4, step-6, best
    with pytest.raises(WriteError, match="best model .*best could not be written"):
        loop.train()
    assert checkpoint.fault(tmp_path / "best") is None
    assert '"step": 4' in (tmp_path / "best" / "manifest.json").read_text()


def test_a_signal_ends_the_waiting(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(write_retries, "FIRST_PAUSE", 60.0)
    told = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    tries = disk(checkpoint, "save_file", range(2, 99), during=lambda: told.is_alive() or told.ident or told.start())
    with pytest.raises(WriteError) as stopped:
        toy_loop(tmp_path, **CONFIG, **LONG).train()
    assert stopped.value.exit_code == 1  # not 75: what was asked for could not be done
    assert tries[0] == 3 and newest_whole(tmp_path / "checkpoints")[0].name == "step-2"


def test_a_signal_that_frees_the_disk_is_answered_as_any_other(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(write_retries, "FIRST_PAUSE", 60.0)
    disk(checkpoint, "save_file", {2}, during=lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Exception, match="Stopped by a signal after step 5, which is saved") as stopped:
        toy_loop(tmp_path, **CONFIG, **LONG).train()
    assert stopped.value.exit_code == 75
    assert [path.name for path in checkpoint.checkpoints(tmp_path / "checkpoints")] == ["step-2", "step-4", "step-5"]


def after_update(loop, step, do):
    """Do something when that update's row has been logged, before its checkpoint."""
    write = loop.log.write

    def write_and_do(row):
        write(row)
        if row["step"] == step:
            do()

    loop.log.write = write_and_do


def test_a_deleted_folder_of_checkpoints_is_made_again(tmp_path):
    toy_loop(tmp_path / "whole", **CONFIG).train()
    loop = toy_loop(tmp_path / "run", **CONFIG, **SOON)
    after_update(loop, 5, lambda: shutil.rmtree(tmp_path / "run" / "checkpoints"))
    loop.train()
    whole = weights(tmp_path / "whole")
    assert weights(tmp_path / "run") == {name: whole[name] for name in whole if "step-4" not in name}


def test_a_deleted_run_ends_and_leaves_nothing_where_it_was(tmp_path):
    run = tmp_path / "run"
    with locked(run) as lock:
        loop = toy_loop(run, **CONFIG, **STOP)
        loop.run.lock = lock
        after_update(loop, 4, lambda: shutil.rmtree(run))
        with pytest.raises(WriteError, match="folder .*run was deleted or replaced while the run was writing to it"):
            loop.train()
    assert not run.exists()


def test_a_run_whose_folder_comes_back_goes_on(tmp_path, monkeypatch):
    run, lost = tmp_path / "run", tmp_path / "lost"
    toy_loop(tmp_path / "whole", **CONFIG).train()
    with locked(run) as lock:
        loop = toy_loop(run, **CONFIG, **SOON)
        loop.run.lock = lock
        after_update(loop, 4, lambda: os.rename(run, lost))
        waited = write_retries._wait

        def mounted_again(*arguments):
            if lost.exists():
                os.rename(lost, run)
            return waited(*arguments)

        monkeypatch.setattr(write_retries, "_wait", mounted_again)
        loop.train()
    assert weights(run) == weights(tmp_path / "whole")
    assert (run / "metrics.jsonl").read_text().count("\n") == 8


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, caplog):
    loop = toy_loop(tmp_path, toy_model(), max_steps=3)

    def full(values, step):
        raise RuntimeError("database or disk is full")

    loop.accelerator.log = full
    loop.train()
    assert caplog.text.count("A tracker lacks step 1 and may lack later ones") == 1
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 3

import errno
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training import folder_lock
from vanilla_transformer.training.folder_lock import locked
from vanilla_transformer.training.write_errors import WriteError

# A second process that locks the folder, says so, and waits to be killed. With "without-locks" its kernel has none.
OTHER = """
import errno, fcntl, sys, time
from pathlib import Path
from vanilla_transformer.training.folder_lock import locked

def flock(descriptor, operation):
    raise OSError(errno.ENOLCK, "No locks available")

if sys.argv[2] == "without-locks":
    fcntl.flock = flock
try:
    with locked(Path(sys.argv[1])):
        print("locked", flush=True)
        time.sleep(60)
except Exception as error:
    print(error, flush=True)
"""


@pytest.fixture
def other():
    """Starts the second process on a folder; gives it and its first words."""
    started = []

    def start(folder, locks="with-locks"):
        process = subprocess.Popen([sys.executable, "-c", OTHER, folder, locks], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def without_locks(monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder_lock.fcntl, "flock", flock)


def test_a_second_process_is_refused_until_the_first_has_ended_however_it_ended(tmp_path, other):
    first, said = other(tmp_path / "run")
    assert said == "locked"
    with pytest.raises(
        UserError, match=f"Another run is writing to .*run .process {first.pid} on {socket.gethostname()}"
    ):
        with locked(tmp_path / "run"):
            pass
    first.send_signal(signal.SIGKILL)
    first.wait()
    with locked(tmp_path / "run"):
        _, said = other(tmp_path / "run")
        assert said.startswith("Another run is writing to") and f"process {os.getpid()} on" in said


def test_without_locks_a_live_process_of_this_machine_is_recognised(tmp_path, other, without_locks, caplog):
    first, said = other(tmp_path, "without-locks")
    assert said == "locked"
    with pytest.raises(
        UserError, match=f"Another run is writing.*process {first.pid} on .*no training, delete .*.lock"
    ):
        with locked(tmp_path):
            pass
    first.kill()
    first.wait()
    with locked(tmp_path):
        assert "has no locks (No locks available): see to it yourself" in caplog.text
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}"


@pytest.mark.parametrize("holder", ["", "process 1 on another-machine", "nonsense"])
def test_without_locks_nobody_else_is_guessed_at(tmp_path, without_locks, holder):
    (tmp_path / ".lock").write_text(holder)
    with locked(tmp_path):
        pass


def test_a_forked_worker_does_not_hold_the_lock(tmp_path):
    started, done = multiprocessing.get_context("fork").Event(), multiprocessing.get_context("fork").Event()
    with locked(tmp_path):
        worker = multiprocessing.get_context("fork").Process(target=lambda: (started.set(), done.wait(30)), daemon=True)
        worker.start()
        assert started.wait(30)
    with locked(tmp_path):  # the worker is still there
        assert worker.is_alive()
    done.set()
    worker.join(30)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="output folder .*run could not be written: Not a directory"):
        with locked(tmp_path / "file" / "run"):
            pass


def test_a_disk_too_full_for_the_holders_name_is_one_sentence(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder_lock.os, "pwrite", full)
    with pytest.raises(WriteError, match="could not be written: No space left on device"), locked(tmp_path):
        pass
    monkeypatch.undo()
    with locked(tmp_path):  # nothing holds the lock of the failed attempt
        pass


def test_the_folder_is_the_runs_until_it_is_deleted_or_replaced(tmp_path):
    with locked(tmp_path / "run") as lock:
        (tmp_path / "run" / "checkpoints").mkdir()
        lock.require()
        os.rename(tmp_path / "run", tmp_path / "elsewhere")  # as a mount that is lost
        with pytest.raises(WriteError, match="run was deleted or replaced while the run was writing to it"):
            lock.require()
        (tmp_path / "run").mkdir()
        with pytest.raises(WriteError, match="deleted or replaced"):
            lock.require()
        (tmp_path / "run").rmdir()
        os.rename(tmp_path / "elsewhere", tmp_path / "run")  # and is mounted again
        lock.require()
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(WriteError, match="deleted or replaced"):
            lock.require()
        assert not (tmp_path / "run").exists()


def test_a_deleted_lock_is_taken_again_unless_another_run_was_quicker(tmp_path, other, caplog):
    with locked(tmp_path) as lock:
        (tmp_path / ".lock").unlink()
        lock.require()
        assert ".lock was deleted and is made again" in caplog.text
        process, said = other(tmp_path)
        assert said.startswith("Another run is writing to")
        (tmp_path / ".lock").unlink()
        process, said = other(tmp_path)
        assert said == "locked"
        with pytest.raises(UserError, match=f"Another run is writing to .*process {process.pid} on") as error:
            lock.require()
        assert not isinstance(error.value, WriteError)  # waiting for the other run would not help

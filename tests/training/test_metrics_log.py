import errno
import json
import os

import pytest

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training import metrics_log
from vanilla_transformer.training.metrics_log import MetricsLog
from vanilla_transformer.training.write_errors import WriteError


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_after_the_checkpoint_are_written_again_not_twice(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"step": 1, "loss": 2.5})
    size, count = log.sync()
    log.write({"step": 2, "loss": 2.0})
    with open(path, "ab") as file:
        file.write(b'{"step": 3, "lo')  # killed in the middle of a row
    log = MetricsLog(path, size, count)
    log.write({"step": 2, "loss": 2.0})
    assert rows(path) == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0}]
    assert log.rows == 2 and log.size == path.stat().st_size


def test_a_run_without_a_checkpoint_begins_with_an_empty_log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    MetricsLog(path)
    assert path.read_text() == ""


def test_lost_rows_are_an_error_and_not_papered_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UserError, match="3 bytes.*saved when it had 12"):
        MetricsLog(path, 12, 2)


def test_a_number_that_json_does_not_have_becomes_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"loss": float("nan"), "perplexity": float("inf"), "sentence": "字"})
    assert rows(path) == [{"loss": None, "perplexity": None, "sentence": "字"}]


class NearlyFull:
    """A file on a disk that takes so many bytes more and then refuses, until `room` is made."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, content):
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(content[: self.room])
        self.room -= taken
        return taken

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("room", range(0, 40, 7))
def test_rows_wait_in_memory_while_the_disk_is_full(tmp_path, caplog, room):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"step": 1})
    log.sync()
    log._file = NearlyFull(log._file, room)  # from no byte to two rows and a half
    for step in (2, 3, 4):
        log.write({"step": step})
    assert caplog.text.count("could not be written: No space left on device") == 1
    assert log.rows == 4
    with pytest.raises(WriteError, match="metrics.jsonl could not be written.*continue with --resume"):
        log.sync()
    log._file.room = 1000
    log.write({"step": 5})
    assert rows(path) == [{"step": step} for step in range(1, 6)]
    assert log.sync() == (path.stat().st_size, 5)


def test_what_a_failed_fsync_may_have_lost_is_written_again(tmp_path, monkeypatch):
    # On NFS a full disk is told at fsync, and the bytes that it could not take are gone.
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"step": 1})
    log.sync()
    log.write({"step": 2})

    def loses(descriptor):
        os.truncate(descriptor, path.stat().st_size - 5)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patched:
        patched.setattr(metrics_log.os, "fsync", loses)
        with pytest.raises(WriteError, match="Disk quota exceeded"):
            log.sync()
    assert log.sync() == (path.stat().st_size, 2)
    assert rows(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_deleted_under_the_run_is_written_again(tmp_path, caplog, replaced):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"step": 1})
    log.sync()
    log.write({"step": 2})
    path.unlink()
    if replaced:
        path.write_text("something else\n")
    log.write({"step": 3})
    assert log.sync() == (path.stat().st_size, 3)
    assert "was deleted or replaced and is written again" in caplog.text
    log.write({"step": 4})
    assert rows(path) == [{"step": step} for step in (1, 2, 3, 4)]


def test_a_log_whose_folder_is_gone_can_be_synced_when_it_is_back(tmp_path):
    (tmp_path / "run").mkdir()
    log = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    log.write({"step": 1})
    os.rename(tmp_path / "run", tmp_path / "elsewhere")
    with pytest.raises(WriteError, match="No such file or directory"):
        log.sync()
    os.rename(tmp_path / "elsewhere", tmp_path / "run")
    assert log.sync()[1] == 1
    assert rows(tmp_path / "run" / "metrics.jsonl") == [{"step": 1}]

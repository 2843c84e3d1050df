import os
import signal
import threading
import time

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from vanilla_transformer.training import write_retries
from vanilla_transformer.training.stopping import PreemptionSignal
from vanilla_transformer.training.write_errors import WriteError
from vanilla_transformer.training.write_retries import write_on_main


@pytest.fixture
def accelerator():
    AcceleratorState._reset_state()
    return Accelerator(cpu=True)


class Clock:
    """Stands for `time`: sleeping takes no time, and every second that passes is counted."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(write_retries, "time", clock)
    return clock


class Disk:
    """Refuses to be written for the first so many times; remembers when it was tried."""

    def __init__(self, clock, refusals):
        self.clock, self.refusals, self.tried = clock, refusals, []

    def write(self):
        self.tried.append(self.clock.now)
        if len(self.tried) <= self.refusals:
            raise WriteError("The disk is full.", "Make room.")
        return "written"


def test_without_minutes_the_first_error_is_the_last(accelerator, clock, caplog):
    disk = Disk(clock, refusals=1)
    with pytest.raises(WriteError, match="The disk is full. Make room."):
        write_on_main(accelerator, disk.write, retry_minutes=0)
    assert len(disk.tried) == 1 and not caplog.text


def test_pauses_double_up_to_a_minute_until_it_is_written(accelerator, clock, caplog):
    disk = Disk(clock, refusals=9)
    assert write_on_main(accelerator, disk.write, retry_minutes=60) == "written"
    pauses = [after - before for before, after in zip(disk.tried, disk.tried[1:], strict=False)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60], abs=0.2)
    warnings = [record.message for record in caplog.records]
    assert warnings[0] == (
        "The disk is full. Trying again in 1 s, for 60.0 minutes more (training.write_retry_minutes)."
    )
    assert len(warnings) == 10 and warnings[-1] == "Written at the try 10; the run goes on."


def test_after_the_minutes_the_error_is_raised_and_the_last_try_is_at_their_end(accelerator, clock):
    disk = Disk(clock, refusals=99)
    with pytest.raises(WriteError, match="Make room"):
        write_on_main(accelerator, disk.write, retry_minutes=0.5)
    assert disk.tried[-1] - disk.tried[0] == pytest.approx(30, abs=0.2)
    assert len(disk.tried) == 6  # after 0, 1, 3, 7, 15 and 30 seconds


def test_other_errors_are_not_tried_again(accelerator, clock):
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_on_main(accelerator, broken, retry_minutes=60)


def test_who_is_told_to_stop_tries_once_more(accelerator, clock):
    disk = Disk(clock, refusals=99)
    with pytest.raises(WriteError):
        write_on_main(accelerator, disk.write, 60, told_to_stop=lambda: len(disk.tried) == 3)
    assert len(disk.tried) == 4
    assert disk.tried[3] - disk.tried[2] < 0.2  # and does not sit out the pause
    disk = Disk(clock, refusals=3)
    assert write_on_main(accelerator, disk.write, 60, told_to_stop=lambda: len(disk.tried) == 3) == "written"


def test_a_signal_ends_a_pause_at_once(accelerator):
    disk, started = Disk(Clock(), refusals=99), time.monotonic()
    with PreemptionSignal() as told, pytest.raises(WriteError):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        write_on_main(accelerator, disk.write, 60, lambda: told.received)
    assert len(disk.tried) == 2
    assert time.monotonic() - started < write_retries.FIRST_PAUSE

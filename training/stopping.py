"""Being told to stop: a scheduler's signal asks for one more checkpoint and an exit code of its own."""

import signal
import threading
from types import FrameType
from typing import Any

from vanilla_transformer.configuration.errors import UserError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Preempted(UserError):
    """The run was asked to stop and saved a checkpoint: not a failure, run the same command with --resume.

    75 is EX_TEMPFAIL of sysexits.h, "try again later", which no crash of Python and no death by a signal gives.
    """

    exit_code = 75


class PreemptionSignal:
    """While entered, SIGTERM and SIGUSR1 only set `received`; the loop looks at it between updates."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "PreemptionSignal":
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True

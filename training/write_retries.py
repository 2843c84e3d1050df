"""How long a write that failed is tried again before the run ends, and how the processes wait together meanwhile.

What a run keeps is written whole or not at all (`durable`), so a failed write costs nothing but itself: it is tried
again until there is room, and the run that waited computes what it would have computed.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate import Accelerator

from vanilla_transformer.training.processes import from_main
from vanilla_transformer.training.write_errors import WriteError

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between two tries; each pause is twice the one before
# Seconds that a process waits by itself: far below any timeout of the exchange in which all of them meet, and below the
# half minute that schedulers leave between SIGTERM and SIGKILL.
SLICE = 5.0


def write_on_main(
    accelerator: Accelerator,
    write: Callable[[], Answer],
    retry_minutes: float,
    told_to_stop: Callable[[], bool] = lambda: False,
) -> Answer | None:
    """Run `write` on the main process while the others wait, again and again while it raises WriteError.

    Every process calls it; the main one gets the answer. After `retry_minutes`, or one try after `told_to_stop` has
    become true on any process, the error is raised on the main process and the others leave, as `on_main` describes.
    Other errors are raised at once.
    """
    deadline = time.monotonic() + retry_minutes * 60
    answer: Answer | None = None
    tries, stopping = 0, False

    def attempt() -> float | None:
        """None when it is written, else the seconds until the next try."""
        nonlocal answer, tries
        try:
            answer = write()
        except WriteError as error:
            left = deadline - time.monotonic()
            if stopping or left <= 0:
                raise
            pause = min(FIRST_PAUSE * 2 ** min(tries, 10), LONGEST_PAUSE, left)
            tries += 1
            logger.warning(
                f"{error.happened} Trying again in {pause:.0f} s, for {left / 60:.1f} minutes more "
                "(training.write_retry_minutes)."
            )
            return pause
        if tries:
            logger.warning(f"Written at the try {tries + 1}; the run goes on.")
        return None

    while (pause := from_main(accelerator, attempt)) is not None:
        stopping = _wait(accelerator, pause, told_to_stop)
    return answer


def _wait(accelerator: Accelerator, seconds: float, told_to_stop: Callable[[], bool]) -> bool:
    """Wait so long, or until some process is told to stop; whether one is. The same answer on every process."""
    slices = math.ceil(seconds / SLICE)
    for _ in range(slices):
        until = time.monotonic() + seconds / slices
        while time.monotonic() < until and not told_to_stop():
            time.sleep(min(0.1, max(until - time.monotonic(), 0)))
        told = torch.tensor([float(told_to_stop())], device=accelerator.device)
        if accelerator.reduce(told, "sum").item():
            return True
    return False

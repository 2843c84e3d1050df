"""What one process does for all of them, so that all succeed or all stop and none waits for one that has failed."""

import atexit
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from vanilla_transformer.configuration.errors import UserError

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Joined = TypeVar("Joined", Accelerator, PartialState)

_AGAIN = "again"  # scheme of the way in which processes meet that torchrun has started again
# What the main process tells those that wait for it, beside an exit code.
_BUSY, _DONE = -2, -1
_held: list[Any] = []
_SECONDS_BETWEEN_SIGNS = 1.0
# A process that has lost another one may find its connections, or its device, stuck while it cleans up.
_SECONDS_TO_LEAVE = 20.0


_CONTINUE = (
    "Every checkpoint is whole: continue with --resume, and with a longer training.process_timeout_minutes where the "
    "other one was only slow."
)


class ProcessLost(SystemExit):
    """Another process has died or hangs. The sentence about it has been said where this is raised."""


def joined_processes() -> PartialState:
    """The processes that this program was started as, by torchrun or otherwise, when they have found each other.

    Raises UserError where they cannot.
    """
    # On the CPU it must be said, or torchrun's processes do not find each other.
    return require_all(PartialState(cpu=not torch.accelerator.is_available(), **process_group().to_kwargs()))


def process_group(timeout_minutes: float = 30.0) -> InitProcessGroupKwargs:
    """How processes talk, and how long one waits for an answer of another."""
    # Accelerate passes on only what differs from a default of 10 minutes, which gloo does not share.
    options: dict[str, Any] = {"timeout": timedelta(minutes=timeout_minutes, milliseconds=1)}
    if torch.cuda.is_available() and int(os.environ.get("WORLD_SIZE", 1)) > 1 and "LOCAL_RANK" in os.environ:
        options["backend"] = "cuda:nccl,cpu:gloo"  # what is on the CPU stays off the GPUs, which may be busy or stuck
    if _is_started_again():
        options["init_method"] = f"{_AGAIN}://"
    return InitProcessGroupKwargs(**options)


def _is_started_again() -> bool:
    """Whether torchrun has started these processes in the place of others that failed, all on this machine.

    Several machines may count their attempts differently: there, torchrun needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
    """
    count, alone = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("GROUP_WORLD_SIZE") == "1"
    return count != "0" and alone and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _meet_again(url: str, **options: Any) -> Iterator[tuple[torch.distributed.Store, int, int]]:
    """A store for this attempt alone: torchrun's own still holds the addresses of the processes that have died.

    https://github.com/pytorch/pytorch/issues/135712
    """
    for store, rank, world_size in rendezvous("env://", **options):
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        yield torch.distributed.PrefixStore(f"attempt-{attempt}", store), rank, world_size


register_rendezvous_handler(_AGAIN, _meet_again)


def require_all(state: Joined) -> Joined:
    """Return the Accelerator or state; UserError where its processes are not all that were launched."""
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if state.num_processes != launched:
        raise UserError(
            f"{launched} processes were launched but each sees {state.num_processes}: every one would do the whole "
            "work by itself. On a machine without a GPU start them with torchrun."
        )
    return state


def on_main(accelerator: Accelerator | PartialState, do: Callable[[], Answer]) -> Answer | None:
    """Run `do` on the main process while the others wait, however long; its answer, None on the others.

    `do` must not talk to the other processes. What it raises is raised on the main process; the others leave with the
    same exit code and without a word.
    """
    if accelerator.num_processes == 1:
        return do()
    if not accelerator.is_main_process:
        while (told := _broadcast(accelerator, _BUSY)) == _BUSY:
            pass
        if told != _DONE:
            raise SystemExit(told)
        return None
    try:
        with _signs_of_life(accelerator):
            answer = do()
    except BaseException as error:
        with suppress(RuntimeError):  # they may be gone, and the error says more
            _broadcast(accelerator, error.exit_code if isinstance(error, UserError) else 1)
        raise
    _broadcast(accelerator, _DONE)
    return answer


def said_once(accelerator: Accelerator | PartialState, error: UserError) -> BaseException:
    """What to raise for an error that all processes meet together: the error on the main one, a mere exit on others."""
    return error if accelerator.is_main_process else SystemExit(error.exit_code)


def from_main(accelerator: Accelerator | PartialState, do: Callable[[], Answer]) -> Answer:
    """As `on_main`, but every process gets the answer."""
    answer = [on_main(accelerator, do)]
    if accelerator.num_processes > 1:
        broadcast_object_list(answer)
    return answer[0]  # type: ignore[return-value]


def hold_group() -> None:
    """Call before leaving the group of processes: its end then waits for no thread that waits for this one.

    Whoever lets go of a group last joins its threads. DDP's reducer does so while it holds Python's lock, which a
    thread with a tensor to give back needs: a deadlock at the end of a run. Python's own reference, kept here for as
    long as the program lives, is let go without the lock.
    """
    if torch.distributed.is_initialized():
        _held.append(torch.distributed.group.WORLD)


def _end_groups() -> None:
    """End the groups' threads while Python still runs, and wait for that.

    A thread that gives back a tensor needs Python's lock, and asking for it from a Python that has begun to end aborts
    the whole process.
    """

    def end() -> None:
        gc.collect()  # so that ours are the last references
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        _held.clear()

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    ending.join(_SECONDS_TO_LEAVE)  # a thread may wait for a process that is lost


atexit.register(_end_groups)


@contextmanager
def lost_process_said(remedy: str = _CONTINUE) -> Iterator[None]:
    """Turn the failure to reach another process into one sentence on stderr and exit code 1, by ProcessLost.

    Said at once and not where the program ends: as soon as torchrun sees one process die, it sends SIGTERM to the rest.
    `remedy` is what to do next.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_about_processes(error):
            raise
        # Without the place in gloo's sources before it and the general advice behind it.
        reason = str(error).strip().splitlines()[0].split("] ", 1)[-1].split(". ")[0]
        logger.error(
            f"Process {os.environ.get('RANK')} of {os.environ.get('WORLD_SIZE')} (counted from 0) stops: another one "
            f"has died, or has not answered in time ({reason}). Its own output says why, or the system's log where it "
            f"was killed. {remedy}"
        )
        guard = threading.Timer(_SECONDS_TO_LEAVE, os._exit, (1,))
        guard.daemon = True
        guard.start()
        raise ProcessLost(1) from error


def _is_about_processes(error: RuntimeError) -> bool:
    """Whether torch's connection between processes raised it; gloo has no exception of its own."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return False
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error) or "NCCL" in str(error)


@contextmanager
def _signs_of_life(accelerator: Accelerator | PartialState) -> Iterator[None]:
    """While the main process works, tell the others now and then, so that their waiting does not run out of time."""
    done = threading.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # a lost process is met again, and spoken of, by the main thread
            while not done.wait(_SECONDS_BETWEEN_SIGNS):
                _broadcast(accelerator, _BUSY)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _broadcast(accelerator: Accelerator | PartialState, number: int) -> int:
    """The main process's number, on every process."""
    on_cpu = "cpu" in torch.distributed.get_backend_config()
    told = torch.tensor([number], device="cpu" if on_cpu else accelerator.device)
    torch.distributed.broadcast(told, src=0)
    return int(told.item())

"""Runs forked from one process that has imported everything: a session costs its own work, not seconds of imports.

The forked process is `train` as the command line starts it, with the environment that torchrun gives a process where
there are several. It is killed with a real SIGKILL, by its own kill point or from outside.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest import mock

from kill_at import KillPoint, arm

_context = multiprocessing.get_context("forkserver")
# With what our modules import late, so that no session has to; what is not installed is left out.
_context.set_forkserver_preload(
    ["vanilla_transformer.training.command", "vanilla_transformer.training.train"]
    + ["vanilla_transformer.training.saved_model", "vanilla_transformer.configuration.configuration_recurrent_seq2seq"]
    + ["sacrebleu", "numpy.ctypeslib", "pydantic.type_adapter", "torch.utils.tensorboard", "trackio.sqlite_storage"]
)


def settings(*values: str) -> list[str]:
    """Keys of a recipe, "training.seed=2", as options of the command line."""
    return [word for value in values for word in ("--set", value)]


class Session:
    """The processes of one session of a run, in the order of rank; leaving it kills whatever is left of them."""

    def __init__(
        self,
        recipe: Path,
        folder: Path,
        *options: str,
        processes: int = 1,
        kill: KillPoint | None = None,
        rank: int = 0,
        stream_buffer: int | None = None,
    ):
        """Start `train recipe --output-dir folder`; the process of `rank` dies at the point `kill`.

        A streamed corpus is read in buffers of `stream_buffer` pairs.
        """
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}):
            forkserver.ensure_running()
        self.log = folder.with_name(f"{folder.name}.log")
        arguments = ["train", str(recipe), "--output-dir", str(folder), *options]
        common = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
        common["MASTER_PORT"] = str(_free_port())
        self.processes: list[ForkServerProcess] = []
        for number in range(processes):
            environment = {**common, "RANK": str(number), "LOCAL_RANK": str(number)} if processes > 1 else {}
            point = kill if number == rank else None
            process = _context.Process(
                target=_train, args=(arguments, environment, str(self.log), point, stream_buffer), daemon=False
            )
            process.start()
            self.processes.append(process)

    def exit_codes(self, timeout: float = 120.0) -> list[int | None]:
        """How each process ended, all within `timeout` seconds; where one was killed, the others are killed after it.

        torchrun and every scheduler do the latter.
        """
        deadline = time.monotonic() + timeout
        while None in (codes := [process.exitcode for process in self.processes]):
            if -signal.SIGKILL in codes or time.monotonic() > deadline:
                self.kill()
            time.sleep(0.002)
        assert time.monotonic() < deadline, f"not done in {timeout} s\n{self.errors()}"
        return codes

    def kill(self) -> None:
        """SIGKILL for the training processes; data workers notice it by themselves."""
        for process in self.processes:
            process.kill()

    def errors(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for process in self.processes:
            process.join()


def _train(
    arguments: list[str],
    environment: dict[str, str],
    log: str,
    point: KillPoint | None,
    stream_buffer: int | None,
) -> None:
    os.environ |= environment
    multiprocessing.set_start_method("fork", force=True)  # for data workers, as in a process that was not forked
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    from vanilla_transformer.training.command import main
    from vanilla_transformer.training.streaming import StreamedPairs

    if stream_buffer is not None:
        StreamedPairs.__init__.__defaults__ = (stream_buffer,)
    if point is not None:
        arm(point)
    sys.argv = arguments
    main()


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]

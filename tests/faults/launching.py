"""Starts tiny runs in processes of their own, under torchrun or bare as a scheduler does, for tests that break them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

TRAIN = ("-m", "vanilla_transformer.training.train")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass
class Run:
    """A run that has been started, and is killed where the `with` block around it ends, if it has not ended itself."""

    folder: Path
    launched: list[subprocess.Popen]  # torchrun's agent, or every process of the run in the order of rank
    errors: list[Path]  # stderr of each of `launched`
    agent: bool  # whether `launched` is torchrun's

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def workers(self) -> list[int]:
        """The ids of the processes that train, in the order of rank; under torchrun once it has started them."""
        if not self.agent:
            return [process.pid for process in self.launched]
        agent = self.launched[0].pid
        try:
            children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        except OSError:  # it has ended, and with it they
            return []
        ranks = {int(_environment(int(child)).get("RANK", -1)): int(child) for child in children}
        return [ranks[rank] for rank in sorted(ranks) if rank >= 0]

    def wait_until(self, reached: Callable[[], bool], timeout: float = 240.0) -> None:
        """Return when `reached` says so; fail where the run ends, or the time is over, before it does."""
        deadline = time.monotonic() + timeout
        while not reached():
            over = [process.poll() for process in self.launched]
            assert None in over, f"the run ended too early: {over}\n{self.stderr()[-3000:]}"
            assert time.monotonic() < deadline, f"not reached in {timeout} s\n{self.stderr()[-3000:]}"
            time.sleep(0.002)

    def wait_for_rows(self, count: int, session: int = 1) -> None:
        """Until that session (from 1) trains and the log has `count` rows; an earlier session may have left more."""
        manifest, log = self.folder / "manifest.json", self.folder / "metrics.jsonl"

        def reached() -> bool:
            if not manifest.exists() or not log.exists():
                return False
            sessions = json.loads(manifest.read_text())["sessions"]
            return len(sessions) == session and log.read_bytes().count(b"\n") >= count

        self.wait_until(reached)

    def finish(self, timeout: float = 240.0) -> list[int]:
        """The exit code of each of `launched`; it is a failure if one still runs after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.launched]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s\n{self.stderr()[-3000:]}") from None

    def kill(self) -> None:
        """SIGKILL for everything that the run has started."""
        for leader in {*self.workers(), *(process.pid for process in self.launched)}:  # each has a session of its own
            try:
                os.killpg(leader, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.launched:
            process.wait()

    def stderr(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.errors)


def start(
    recipe: str, folder: Path, *options: str, processes: int = 1, bare: bool = False, program: Sequence[str] = TRAIN
) -> Run:
    """Start `train` with the text of a recipe and further options ("--resume", "--set", "training.seed=2"); use `with`.

    Several processes are torchrun's, or with `bare` each is started alone with the environment that srun or a container
    gives it. `program` takes the place of `-m vanilla_transformer.training.train`: a script that breaks things.
    """
    path = folder.with_name(f"{folder.name}.yaml")
    path.write_text(recipe)
    arguments = [*program, str(path), "--output-dir", str(folder), *options]
    environments: list[dict[str, str]] = [{}]
    if processes > 1 and bare:
        common = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    elif processes > 1:
        arguments = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *arguments]
    launched, errors = [], []
    for number, environment in enumerate(environments):
        errors.append(folder.with_name(f"{folder.name}.stderr.{number}"))
        with open(errors[-1], "w") as stderr:
            command, environment = [sys.executable, *arguments], {**ENVIRONMENT, **environment}
            pipes = {"stdout": subprocess.DEVNULL, "stderr": stderr, "start_new_session": True}
            launched.append(subprocess.Popen(command, env=environment, **pipes))
    return Run(folder, launched, errors, agent=processes > 1 and not bare)


def rows(folder: Path) -> list[dict]:
    """The rows of a run's log without their clock."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in found:
        del row["tokens_per_second"]
    return found


def outcome(folder: Path) -> dict[str, bytes]:
    """All that must be bitwise the same in two runs of one recipe: weights, optimiser states, translations."""
    files = [*folder.glob("checkpoints/step-*/*.safetensors"), folder / "final" / "model.safetensors"]
    files += [folder / "best" / "model.safetensors", folder / "results" / "test.hypotheses.txt"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(pair.decode(errors="replace").split("=", 1) for pair in pairs if b"=" in pair)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]

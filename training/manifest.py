"""RUN/manifest.json: what a stranger needs to trust or repeat a run. Holds no environment variables and no secrets."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from vanilla_transformer.training.durable import write_json
from vanilla_transformer.training.loop import Loop

LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "sacrebleu", "numpy")


class RunManifest:
    """The manifest of one session of a run, added to those of earlier sessions in the file; main process only.

    Entered, it is written with all that is known at the start; left, with how the session ended.
    """

    def __init__(self, path: Path, facts: dict[str, Any], accelerator: Accelerator, loop: Loop):
        sessions = json.loads(path.read_text(encoding="utf-8"))["sessions"] if path.exists() else []
        self._path, self._loop = path, loop
        self._session: dict[str, Any] = {
            "started": _now(),
            "processes": accelerator.num_processes,
            "first_step": loop.state.step,
            "outcome": "running",
        }
        self._content = {
            **facts,
            "code": code_version(),
            "libraries": {name: version(name) for name in LIBRARIES},
            "hardware": hardware(accelerator),  # of the newest session
            "training_seconds": loop.state.seconds,
            "sessions": [*sessions, self._session],
        }

    def __enter__(self) -> "RunManifest":
        write_json(self._path, self._content)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        state, outcome = self._loop.state, "finished" if kind is None else kind.__name__
        self._session.update(ended=_now(), last_step=state.step, outcome=outcome)
        self._content.update(
            training_seconds=round(state.seconds, 3),
            tokens_seen={"source": state.source_tokens, "target": state.target_tokens},
            epoch_plan=self._loop.counters,
        )
        write_json(self._path, self._content)


def code_version() -> dict[str, Any]:
    """This package's version and, in a git checkout, the commit and whether files were changed after it."""
    try:
        release = version("vanilla-transformer")
    except PackageNotFoundError:
        release = "unknown"
    folder = Path(__file__).resolve().parent
    # An installed copy may lie in an environment inside somebody else's repository.
    if _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return {"version": release, "commit": None}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"version": release, "commit": _git(folder, "rev-parse", "HEAD"), "changed": bool(changed)}


def hardware(accelerator: Accelerator) -> dict[str, Any]:
    """The machine of the main process, and how many processes share the work."""
    cuda = torch.cuda.is_available()
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": accelerator.device.type,
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        "processes": accelerator.num_processes,
        "distributed": str(accelerator.distributed_type.value),
        "precision": accelerator.mixed_precision,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of a git command, or None where it fails or there is no git."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""RUN/manifest.json: what a stranger needs to trust or repeat a run. Holds no environment variables and no secrets."""

import json
import logging
import os
import platform
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.durable import write_json
from vanilla_transformer.training.energy import EnergyMeter
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.write_errors import WriteError, explained

logger = logging.getLogger(__name__)

LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "sacrebleu", "numpy")


class RunManifest:
    """The manifest of one session of a run, added to those of earlier sessions in the file; main process only.

    Entered, it is written with all that is known at the start; left, with how the session ended. Raises UserError
    where the file of earlier sessions cannot be read, WriteError where it cannot be written at the start; at the end,
    where an error may be on its way already, that is only told.
    """

    def __init__(
        self, run: RunFolder, facts: dict[str, Any], accelerator: Accelerator, progress: Callable[[], dict[str, Any]]
    ):
        """`progress` says at any moment how far the run is: `step`, `training_seconds` and what else is to be told."""
        sessions = _sessions(run.manifest)
        self._run, self._progress = run, progress
        # The processors' share would say little about training on a GPU.
        self._meter = EnergyMeter() if accelerator.device.type == "cpu" else None
        start = progress()
        self._session: dict[str, Any] = {
            "started": _now(),
            "processes": accelerator.num_processes,
            "first_step": start["step"],
            "outcome": "running",
        }
        self._content = {
            **facts,
            "code": code_version(),
            "libraries": libraries(),
            "hardware": hardware(accelerator),  # of the newest session
            "training_seconds": start["training_seconds"],
            "sessions": [*sessions, self._session],
        }

    def __enter__(self) -> "RunManifest":
        self._write()
        if self._meter:
            self._meter.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end = self._progress()
        self._session.update(
            ended=_now(), last_step=end.pop("step"), outcome="finished" if kind is None else kind.__name__
        )
        if self._meter and (joules := self._meter.stop()) is not None:
            self._session["energy_joules"] = round(joules, 1)
        self._content.update(end)
        try:
            self._write()
        except UserError as error:
            why = error.happened if isinstance(error, WriteError) else error
            logger.warning(f"How this session ended is not in the run's manifest. {why}")

    def _write(self) -> None:
        self._run.require()
        with explained(str(self._run.manifest), "Make room or mend the folder, then continue with --resume."):
            write_json(self._run.manifest, self._content)


def _sessions(path: Path) -> list[dict[str, Any]]:
    """What the manifest says of earlier sessions; none where there is no manifest."""
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["sessions"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}). It only tells of earlier sessions: delete it, and the run goes on."
        ) from error


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


def libraries() -> dict[str, str]:
    """The versions of the libraries that a result may depend on."""
    return {name: version(name) for name in LIBRARIES}


def hardware(accelerator: Accelerator) -> dict[str, Any]:
    """The machine of the main process, and how many processes share the work."""
    return {
        **machine(),
        "device": accelerator.device.type,
        "processes": accelerator.num_processes,
        "distributed": str(accelerator.distributed_type.value),
        "precision": accelerator.mixed_precision,
    }


def machine() -> dict[str, Any]:
    """This machine, as far as it decides how fast something runs."""
    cuda = torch.cuda.is_available()
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
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

"""RUN: where its parts lie, who may write to it, and whether a recipe may continue what is in it."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vanilla_transformer.configuration.errors import UsageError, UserError, problems_error
from vanilla_transformer.training.durable import MANIFEST, recover, write_text
from vanilla_transformer.training.recipe import Recipe, to_yaml
from vanilla_transformer.training.recipe_yaml import read_mapping, read_value

LOCK = ".lock"
# Keys that may differ between the sessions of one run: they say how long it is, what is kept and shown, how the work is
# laid out and where the data lies, but not what an update computes nor which model is the best. What the data holds is
# checked by its fingerprint. A key ending in a dot stands for a whole section.
FREE_KEYS = (
    *("training.max_steps", "training.max_epochs", "training.max_minutes", "training.patience"),
    *("training.log_every", "training.save_every", "training.eval_every"),
    *("training.keep_last", "training.average_last"),
    *("training.gradient_accumulation_steps", "training.num_workers", "training.threads", "training.compile"),
    *("training.activation_checkpointing", "generation.", "tracking."),
    *("evaluation.metrics", "evaluation.lowercase_tokenized", "evaluation.tokenize", "evaluation.dev_limit"),
    *("data.corpus", "data.name", "data.revision", "data.train", "data.dev", "data.test", "tokenizer.path"),
)


class RunFolder:
    """The places of a run's files."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.recipe = self.path / "recipe.yaml"
        self.manifest = self.path / MANIFEST
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.final = self.path / "final"
        self.results = self.path / "results"
        self.trackers = self.path / "trackers"

    def begin(self, recipe: Recipe, resume: bool) -> None:
        """Make the folder ready for this session; call on the main process, under `locked`.

        Raises UsageError where the folder is in use by a finished or broken-off run and `resume` is false, or where the
        recipe would change what that run computes.
        """
        # prepared/ may be the product of an earlier `prepare`.
        content = sorted(entry.name for entry in self.path.iterdir() if entry.name not in {LOCK, "prepared"})
        if content and not resume:
            raise UsageError(
                f"{self.path} is not empty (it holds {', '.join(content[:5])}{', ...' if len(content) > 5 else ''}): "
                "continue the run in it with --resume, or give a new folder."
            )
        recover(self.path)
        recover(self.checkpoints)
        if self.recipe.exists():
            _refuse_changes(read_mapping(self.recipe), recipe)
        write_text(self.recipe, to_yaml(recipe))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the folder, made where it is missing, for this process alone; UserError when another run holds it.

    The lock is the kernel's and ends with the process, however it dies; the file .lock only says who it was.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"The output folder {path} cannot be written: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        os.close(descriptor)
        raise UserError(
            f"Another run is writing to {path} ({holder or 'process unknown'}). Wait for it to end, or give this one "
            "another folder."
        ) from None
    # Data workers are forked, would share the lock, and may outlive a killed run by seconds.
    held = [descriptor]
    os.register_at_fork(after_in_child=lambda: os.close(held.pop()) if held else None)
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(held.pop())


def _refuse_changes(before: dict[str, Any], recipe: Recipe) -> None:
    old, new = _flat(before), flat(recipe)
    changes = [
        f"{key} = {new.get(key)}: the run in the folder has {old.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not key.startswith(FREE_KEYS)
    ]
    if changes:
        raise problems_error("the recipe would change a run that has begun; start a new one in another folder", changes)


def flat(recipe: Recipe) -> dict[str, Any]:
    """Every key of the resolved recipe as section.key."""
    return _flat(read_value(to_yaml(recipe)))


def _flat(mapping: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, keys in mapping.items() for key, value in (keys or {}).items()}

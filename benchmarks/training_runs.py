"""Trainings and evaluations by the command line, as a reader would start them, each of them once: what is finished is
kept, and what was interrupted goes on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# A run that only shows whether everything works: a minute on one core.
SMOKE = [
    "training.max_steps=12",
    "training.warmup_steps=4",
    "training.eval_every=6",
    "training.save_every=4",
    "training.keep_last=2",
    "training.average_last=2",
    "training.threads=1",
    "training.max_source_tokens=1024",
    "training.max_target_tokens=1024",
    "data.limit=300",
    "data.dev_limit=20",
]


def train(recipe: Path, run: Path, settings: Sequence[str] = ()) -> None:
    """Train, or go on, until RUN/final is there; raises SystemExit with training's exit code where it fails."""
    if not finished(run):
        options = [part for setting in settings for part in ("--set", setting)]
        _vanilla_transformer("train", recipe, "--output-dir", run, "--resume", *options)


def finished(run: Path) -> bool:
    """Whether a training has come to its end."""
    try:
        sessions = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["sessions"]
    except FileNotFoundError:
        return False
    return sessions[-1]["outcome"] == "finished" and (run / "final" / "README.md").exists()


def evaluate(run: Path, name: str, *options: object, model: bool = True) -> None:
    """Leave RUN/results/NAME.json and its hypotheses, of RUN/final or of the --hypotheses among the options."""
    if not (run / "results" / f"{name}.json").exists():
        subject = [run / "final"] if model else []
        _vanilla_transformer("evaluate", *subject, *options, "--name", name, "--output-dir", run / "results")


def _vanilla_transformer(*arguments: object) -> None:
    command = [sys.executable, "-m", "vanilla_transformer", *map(str, arguments)]
    print("$", *command[2:], flush=True)
    if code := subprocess.run(command, env=_environment()).returncode:
        raise SystemExit(code)


def _environment() -> dict[str, str]:
    """With tcmalloc where it is installed, as `make quickstart`: batches of ever new sizes fragment the C heap."""
    found = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    return {**({"LD_PRELOAD": str(found[0])} if found else {}), **os.environ}

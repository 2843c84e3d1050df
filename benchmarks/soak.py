"""Soak: tiny runs killed and continued 200 times, and compared with runs that were never killed.

    python benchmarks/soak.py

Half of the cycles end at a random time: SIGKILL, now and then SIGTERM, wherever the session happens to be. The other
half end at a kill point of tests/faults/kill_points.py. The number of data workers changes from session to session, the
precision from run to run. Everything is drawn from --seed; where a time falls depends on the machine. Writes
benchmarks/results/soak.json and prints it; exit code 1 where anything was lost, doubled or different.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "faults"))

from forked import Session, settings  # noqa: E402
from kill_at import KillPoint  # noqa: E402
from kill_points import while_beginning, while_ending, while_training  # noqa: E402
from launching import rows  # noqa: E402
from tiny_run import RECIPE, write_corpus  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "soak.json"
UPDATES = 600  # of each run
LONGEST = 2.5  # seconds that a session gets; a third of them is its start
PRECISIONS = ("float32", "bfloat16")
# A session that is told to stop ends with 75, or by the signal while it starts or ends.
STOPPED = {-signal.SIGKILL, -signal.SIGTERM, 75}
CLOCK = ("seconds", "interval_seconds", "log_size")  # of a trainer state; the log holds tokens per second


class Soak:
    """Runs in one folder, killed again and again; `kills` and `differences` count what happened and what it did."""

    def __init__(self, folder: Path, seed: int):
        self.kills, self.differences = Counter[str](), Counter[str]()
        self.runs = 0
        self._folder, self._draw = folder, random.Random(seed)
        self._points: list[KillPoint] = []  # still to be met, one a session
        self._recipe = folder / "tiny.yaml"
        self._recipe.write_text(RECIPE.replace("CORPUS", str(write_corpus(folder / "pairs", "tsv"))))

    def whole(self, precision: str) -> Path:
        """The run that nothing happens to; the first call makes it."""
        folder = self._folder / precision
        if not folder.exists():
            self._finish(folder, precision)
        return folder

    def run(self, cycles: int) -> int:
        """One run, killed up to `cycles` times, then taken to its end and compared; returns how often it was killed."""
        precision = PRECISIONS[self.runs % len(PRECISIONS)]
        folder = self._folder / f"run-{self.runs}" / "killed"
        folder.parent.mkdir()
        self.runs += 1
        killed = 0
        while killed < cycles and self._cycle(folder, precision):
            killed += 1
        self._points.clear()
        self._finish(folder, precision)
        self._compare(folder, self.whole(precision))
        return killed

    def _finish(self, folder: Path, precision: str) -> None:
        with Session(self._recipe, folder, *_options(precision), "--resume") as session:
            if session.exit_codes(600) != [0]:
                raise SystemExit(session.errors())

    def _cycle(self, folder: Path, precision: str) -> bool:
        """One session that is killed; False where the run came to its end before."""
        draw = self._draw
        if not self._points and draw.random() < 0.5:
            self._points = draw.choice(_entries(draw, folder))
        point = self._points.pop(0) if self._points else None
        seconds, blow = (LONGEST, signal.SIGKILL) if point else (draw.uniform(0, LONGEST), _blow(draw))
        workers = f"training.num_workers={draw.randint(0, 2)}"
        options = _options(precision, workers)
        with Session(self._recipe, folder, *options, "--resume", kill=point) as session:
            [process] = session.processes
            process.join(seconds)
            met = process.exitcode is not None
            if not met:
                os.kill(process.pid, blow)
            [code] = session.exit_codes()
            if code not in STOPPED | {0}:
                raise SystemExit(f"exit code {code}\n{session.errors()}")
        if point and not met:
            self._points.clear()  # what follows it is met only after it
        if code in STOPPED:
            self.kills[point.call if point and met else f"{blow.name} at a random time"] += 1
        return code in STOPPED

    def _compare(self, killed: Path, whole: Path) -> None:
        count = self.differences
        logs = [{row["step"]: row for row in rows(folder)} for folder in (killed, whole)]
        steps = [Counter(row["step"] for row in rows(folder)) for folder in (killed, whole)]
        count["rows"] += steps[1].total()
        count["rows_lost"] += (steps[1] - steps[0]).total()
        count["rows_doubled"] += (steps[0] - steps[1]).total()
        count["rows_differing"] += sum(logs[0][step] != logs[1][step] for step in logs[0].keys() & logs[1].keys())
        for name, pattern, read in (
            ("weight_files", "**/*.safetensors", Path.read_bytes),
            ("trainer_states", "checkpoints/*/trainer_state.json", _state),
            ("best_models", "best/manifest.json", _best),
            ("translations", "results/*.txt", Path.read_bytes),
        ):
            contents = [{path.relative_to(f): read(path) for path in f.glob(pattern)} for f in (killed, whole)]
            names = contents[0].keys() | contents[1].keys()
            count[name] += len(contents[1])
            count[f"{name}_differing"] += sum(contents[0].get(name) != contents[1].get(name) for name in names)
        count["unfinished_left"] += sum(path.name != ".lock" for path in killed.rglob(".*"))


def _options(precision: str, *more: str) -> list[str]:
    return settings(f"training.max_steps={UPDATES}", f"training.precision={precision}", *more)


def _entries(draw: random.Random, folder: Path) -> list[list[KillPoint]]:
    """Kill points that the run has before it."""
    log = folder / "metrics.jsonl"
    done = log.read_bytes().count(b"\n") if log.exists() else 0
    if not done:
        return while_beginning(draw)
    return while_training(draw) if done < UPDATES - 10 else while_ending(draw)


def _blow(draw: random.Random) -> signal.Signals:
    return signal.SIGTERM if draw.random() < 0.1 else signal.SIGKILL


def _state(path: Path) -> dict[str, Any]:
    return {name: value for name, value in json.loads(path.read_text()).items() if name not in CLOCK}


def _best(path: Path) -> dict[str, Any]:
    values = json.loads(path.read_text())
    return {"step": values["step"], "scores": values["scores"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=200, help="how often a run is killed and continued")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.environ |= {"HF_HOME": f"{folder}/hf", "HF_HUB_OFFLINE": "1"}  # of the sessions, which start after this
        soak, cycles = Soak(Path(folder), arguments.seed), 0
        while cycles < arguments.cycles:
            cycles += soak.run(arguments.cycles - cycles)
            print(f"{cycles} cycles, {soak.runs} runs: {dict(soak.differences)}", file=sys.stderr, flush=True)
        manifest = json.loads((soak.whole(PRECISIONS[0]) / "manifest.json").read_text())
    result = {
        "name": "soak",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/soak.py --cycles {arguments.cycles} --seed {arguments.seed}",
        "seed": arguments.seed,
        "cycles": cycles,
        "runs": soak.runs,
        "updates_a_run": UPDATES,
        "compared": dict(soak.differences),
        "kills": dict(soak.kills.most_common()),
        "wall_seconds": round(time.monotonic() - started, 1),
        **{name: manifest[name] for name in ("code", "libraries", "hardware")},
    }
    text = json.dumps(result, indent=1)
    print(text)
    RESULT.write_text(text + "\n", encoding="utf-8")
    wrong = ("_lost", "_doubled", "_differing", "_left")
    sys.exit(any(count for name, count in soak.differences.items() if name.endswith(wrong)))


if __name__ == "__main__":
    main()

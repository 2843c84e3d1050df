"""Cost against length, batch, vocabulary, processes and accumulation, and the paper's runs on paper: make bench-scale.

    python benchmarks/bench_scale.py                # about ten minutes on two cores
    python benchmarks/bench_scale.py --quick        # under two minutes; nothing is written

Measured here, on this machine's CPU: time and peak memory of a training step for lengths from 64 to 4,096, batches and
vocabularies; training on two processes against two single ones side by side; accumulation over eight micro-batches
against none. Not measured, arithmetic from the makers' data sheets: hours on GPUs (bench_scale_arithmetic.py). Writes
benchmarks/results/bench_scale.json, .md and .png.
"""

import argparse
import gzip
import json
import math
import os
import shlex
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import bench_scale_runs
from accelerate import Accelerator
from bench_scale_arithmetic import arithmetic
from bench_scale_report import draw, report
from started import watched

from vanilla_transformer.training.durable import write_json, write_text
from vanilla_transformer.training.manifest import LIBRARIES, code_version, hardware

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "bench_scale.json"
TEXT = "multi30k/train.{lang}.gz"
ACCUMULATION = 8
VOCABULARY = 8000  # where it is not what varies
# Blocks of 64 KiB and more come from the kernel and go back to it: peak memory then is what is in use.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "LD_PRELOAD": ""}

LENGTHS = {
    "one sentence, sdpa": ({"rows": 1, "padded": False, "attention": "sdpa"}, 4096),
    "two sentences, one padded, sdpa": ({"rows": 2, "padded": True, "attention": "sdpa"}, 2048),
    "one sentence, eager": ({"rows": 1, "padded": False, "attention": "eager"}, 2048),
}
BATCHES = (1, 4, 16, 64, 256)  # of sentences of SENTENCE tokens
VOCABULARIES = (1000, 4000, 16_000, 64_000)
SENTENCE = 32


def points(quick: bool) -> dict[str, list[dict[str, Any]]]:
    """What is measured, by the line or table that it belongs to."""
    plain = {"rows": 1, "length": SENTENCE, "vocabulary": VOCABULARY, "attention": "sdpa", "padded": False}
    series = {}
    for name, (kind, longest) in LENGTHS.items():
        longest = min(longest, 512) if quick else longest
        lengths = [2**power for power in range(6, int(math.log2(longest)) + 1)]
        series[name] = [plain | kind | {"length": length} for length in lengths]
    series["batch"] = [plain | {"rows": rows} for rows in (BATCHES[:3] if quick else BATCHES)]
    vocabularies = VOCABULARIES[:2] if quick else VOCABULARIES
    series["vocabulary"] = [plain | {"rows": SENTENCE, "vocabulary": size} for size in vocabularies]
    return series


def growth(series: list[dict[str, Any]], key: str) -> float:
    """The power of the length that `key` grows with, between the two longest: 1 is linear, 2 quadratic."""
    shorter, longest = series[-2:]
    return math.log(longest[key] / shorter[key]) / math.log(longest["length"] / shorter["length"])


def steps(quick: bool, threads: int) -> dict[str, list[dict[str, Any]]]:
    """Every series in a process of its own."""
    script = str(Path(__file__).with_name("bench_scale_steps.py"))
    result = {}
    for name, series in points(quick).items():
        command = [sys.executable, script, json.dumps(series), "--threads", str(threads)]
        result[name] = json.loads(watched(command, GIVE_BACK | {"OMP_NUM_THREADS": str(threads)}).stdout)
        print(f"{name}: {result[name][-1]['seconds']:.2f} s for the largest", file=sys.stderr)
    return result


def write_corpus(data: Path, folder: Path) -> Path:
    """The first pairs of Multi30k as text, for training runs; the speed of preparing is not measured here."""
    folder.mkdir()
    for lang in ("en", "de"):
        with gzip.open(data / TEXT.format(lang=lang), "rt", encoding="utf-8", newline="\n") as file:
            (folder / f"train.{lang}").write_text("".join(islice(file, bench_scale_runs.PAIRS)), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short sentences, a small model, one round")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the steps; runs have one each")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data"))
    )
    parser.add_argument("--output", type=Path, help="write the result here; default for the whole: results/")
    arguments = parser.parse_args()
    began = time.perf_counter()
    size = bench_scale_runs.QUICK if arguments.quick else bench_scale_runs.FULL
    measured = steps(arguments.quick, arguments.threads)
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        os.environ["HF_DATASETS_CACHE"] = str(Path(folder) / "cache")
        runs = bench_scale_runs.Runs(size, Path(folder), write_corpus(arguments.data, Path(folder) / "corpus"))
        processes = bench_scale_runs.two_processes(runs, size)
        print(f"two processes: {processes['share']}", file=sys.stderr)
        accumulated = bench_scale_runs.accumulation(runs, size, ACCUMULATION)
        print(f"accumulation: {accumulated['share']}", file=sys.stderr)
    result = {
        "name": "bench_scale",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/bench_scale.py", *sys.argv[1:]]),
        "code": code_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "hardware": hardware(Accelerator(cpu=True)),
        "threads": arguments.threads,
        "steps": measured,
        "growth_with_length": {
            name: {"memory": growth(measured[name], "peak_bytes"), "time": growth(measured[name], "seconds")}
            for name in LENGTHS
        },
        "runs": asdict(size),
        "two_processes": processes,
        "accumulation": {"steps": ACCUMULATION, **accumulated},
        "on_paper": arithmetic(),
        "seconds": round(time.perf_counter() - began, 1),
    }
    if output := arguments.output or (None if arguments.quick else RESULT):
        write_json(output, result)
        write_text(output.with_suffix(".md"), report(result, output.with_suffix(".png").name))
        draw(result, output.with_suffix(".png"))
    print(report(result, "bench_scale.png"))


if __name__ == "__main__":
    main()

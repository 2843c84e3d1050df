"""What preparing a corpus as large as WMT 2014's costs, and how fast batches come from it: make bench-data.

    python benchmarks/bench_data.py                 # 4.5 million pairs, about twenty minutes on two cores
    python benchmarks/bench_data.py --quick         # 40,000 pairs, a minute; nothing is written
    python benchmarks/bench_data.py --pairs 1000000 --output /tmp/million.json

A corpus is made of real sentences (wmt_size_corpus.py) and `vanilla-transformer prepare` runs on a tenth of its size
and on the whole: the memory of the two is to be alike. The counters that it reports must be those that were sown. Then
a fresh process opens the larger one and makes batches. Last, what --help and the import cost. Writes
benchmarks/results/bench_data.json and .md.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from bench_data_report import report
from started import Started, watched
from wmt_size_corpus import LANGS, MAX_RATIO, SOWN, written

from vanilla_transformer.training.durable import write_json, write_text
from vanilla_transformer.training.manifest import LIBRARIES, code_version, hardware

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "bench_data.json"
PAIRS, QUICK_PAIRS, VOCABULARY = 4_500_000, 40_000, 37_000
SEED = 1
TOKENS = 25_000  # a side of an update, as the paper's
MAX_LENGTH = 250  # the recipe's default
STARTS = 5  # of --help and of the import
RECIPE = """\
data:
  corpus: {corpus}
  source_lang: {source}
  target_lang: {target}
  max_length: {max_length}
  max_ratio: {max_ratio}
tokenizer:
  vocab_size: {vocabulary}
training:
  max_steps: 1
"""
# What `prepare` says when a stage begins.
STAGES = {"Learning a vocabulary": "vocabulary", "Tokenising": "tokenise"}


def stages(started: Started) -> dict[str, float]:
    """Wall seconds of each stage, by the lines that announce them; the first is all before the vocabulary."""
    began = [(0.0, "read_clean_store")]
    for seconds, line in started.said:
        began += [(seconds, name) for announced, name in STAGES.items() if line.startswith(announced)]
    ends = [seconds for seconds, _ in began[1:]] + [started.seconds]
    return {name: end - start for (start, name), end in zip(began, ends, strict=True)}


def problems(counters: dict[str, int], expected: dict[str, int]) -> list[str]:
    """Where the counters of cleaning are not what was sown."""
    found = {name: counters[name] for name in ("read", *SOWN)}
    found["kept"] = counters["kept"] + counters["too_many_tokens"]  # what tokenising drops, cleaning kept
    return [f"{name}: {found[name]:,} instead of {expected[name]:,}" for name in found if found[name] != expected[name]]


def prepare(pairs: int, cache: Path, shared: Path, vocabulary: int) -> tuple[dict[str, Any], Path]:
    """Prepare a corpus of so many pairs from its text; what it took, and its train.arrow."""
    corpus, run, stored = (cache / f"{name}-{pairs}" for name in ("corpus", "run", "stored"))
    began = time.perf_counter()
    expected = written(corpus, shared, pairs, SEED)
    print(f"{pairs:,} pairs lie in {corpus} after {time.perf_counter() - began:.0f} s", file=sys.stderr)
    for folder in (run, stored):  # of an earlier measurement
        shutil.rmtree(folder, ignore_errors=True)
    recipe = cache / f"recipe-{pairs}.yaml"
    source, target = LANGS
    recipe.write_text(
        RECIPE.format(
            corpus=corpus,
            source=source,
            target=target,
            max_length=MAX_LENGTH,
            max_ratio=MAX_RATIO,
            vocabulary=vocabulary,
        ),
        encoding="utf-8",
    )
    program = str(Path(sys.executable).with_name("vanilla-transformer"))
    started = watched(
        [program, "prepare", str(recipe), "--output-dir", str(run), "--json"],
        {"HF_DATASETS_CACHE": str(stored), "TOKENIZERS_PARALLELISM": "true"},
    )
    counters = json.loads(started.stdout)["train"]
    if wrong := problems(counters, expected):
        sys.exit(f"prepare did not count what was sown in {corpus}: {'; '.join(wrong)}")
    (prepared,) = run.glob("prepared/*/train.arrow")
    tokens = json.loads((prepared.parent / "manifest.json").read_text(encoding="utf-8"))["tokens"]
    result = {
        "pairs": pairs,
        "lines_read": counters["read"],
        "counters": counters,
        "tokens": tokens,
        "text_bytes": sum((corpus / f"train.{lang}").stat().st_size for lang in LANGS),
        "prepared_bytes": prepared.stat().st_size,
        "seconds": started.seconds,
        "seconds_of_stages": stages(started),
        "cpu_seconds": started.cpu_seconds,
        "sentences_per_second": 2 * counters["read"] / started.seconds,
        "peak_anonymous_bytes": started.anonymous,
        "peak_resident_bytes": started.resident,
    }
    print(f"prepared in {started.seconds:.0f} s", file=sys.stderr)
    return result, prepared


def import_time() -> dict[str, Any]:
    """Processor and wall seconds of --help and of the import, medians; neither may load torch."""
    program = Path(sys.executable).with_name("vanilla-transformer")
    loaded = "; import sys; sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    commands = {
        "vanilla-transformer --help": [str(program), "--help"],
        "vanilla-transformer train --help": [str(program), "train", "--help"],
        "import vanilla_transformer": [sys.executable, "-c", f"import vanilla_transformer{loaded}"],
        "import of the command line": [sys.executable, "-c", f"import vanilla_transformer.cli{loaded}"],
        "python alone": [sys.executable, "-c", "pass"],
    }
    result = {}
    for name, command in commands.items():
        runs = [watched(command) for _ in range(STARTS)]
        result[name] = {
            "cpu_seconds": statistics.median(run.cpu_seconds for run in runs),
            "seconds": statistics.median(run.seconds for run in runs),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS:,} pairs and a small vocabulary")
    parser.add_argument("--pairs", type=int, help=f"of the larger corpus; default {PAIRS:,}")
    parser.add_argument("--vocabulary", type=int, help=f"default {VOCABULARY:,}")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data"))
    )
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench" / "data", help="where the corpora are kept")
    parser.add_argument("--output", type=Path, help="write the result here; default for the whole: results/")
    arguments = parser.parse_args()
    pairs = arguments.pairs or (QUICK_PAIRS if arguments.quick else PAIRS)
    vocabulary = arguments.vocabulary or (8000 if arguments.quick else VOCABULARY)
    began = time.perf_counter()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    tenth, _ = prepare(pairs // 10, arguments.cache, arguments.data, vocabulary)
    whole, prepared = prepare(pairs, arguments.cache, arguments.data, vocabulary)
    script = Path(__file__).with_name("bench_data_batches.py")
    batches = watched([sys.executable, str(script), str(prepared), "--tokens", str(TOKENS)])
    result = {
        "name": "bench_data",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/bench_data.py", *sys.argv[1:]]),
        "code": code_version(),
        "libraries": {name: version(name) for name in (*LIBRARIES, "pyarrow")},
        "hardware": hardware(Accelerator(cpu=True)),
        "vocabulary": vocabulary,
        "prepare": {"tenth": tenth, "whole": whole},
        "batches": json.loads(batches.stdout),
        "import_time": import_time(),
        "seconds": round(time.perf_counter() - began, 1),
    }
    default = not arguments.quick and (pairs, vocabulary) == (PAIRS, VOCABULARY)
    if output := arguments.output or (RESULT if default else None):
        write_json(output, result)
        write_text(output.with_suffix(".md"), report(result))
    print(report(result))


if __name__ == "__main__":
    main()

"""Decoding speed beside transformers and CTranslate2: make bench-decode, about ten minutes on two cores.

    python benchmarks/bench_decode.py             # writes benchmarks/results/bench_decode.json and .md
    python benchmarks/bench_decode.py --quick     # under two minutes, every side runs, nothing is written

Each side is a process that stays alive and has the same random weights of the paper's base model, by this package's
own converters. All decode the same batches to exactly the same number of tokens, so that none gains by ending early,
and in float32 their outputs are compared. They take turns, A B C A B C; between the rounds the machine's matrix
products are measured, which are the limit. A side that does not run here is reported with its reason.
"""

import argparse
import os
import random
import shlex
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from bench_decode_report import report
from bench_train_figures import limits, ratio, spread
from bench_train_workers import Worker
from peer_environments import PeerUnavailable
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.converters import marian
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.conversion import convert_to
from vanilla_transformer.training.durable import write_json, write_text
from vanilla_transformer.training.manifest import code_version, hardware

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "bench_decode.json"
VOCABULARY, SPECIAL = 37_000, ("<s>", "<pad>", "</s>", "<unk>")
SEED = 1
# Sentences of a batch and beams.
SETTINGS = {"1 greedy": (1, 1), "1 beam 4": (1, 4), "32 greedy": (32, 1), "32 beam 4": (32, 4)}
# Tokens of each source, new tokens of each output, rounds. 28 is the mean length of a WMT sentence in these tokens.
FULL, QUICK = (28, 28, 5), (12, 6, 2)
SIDES = {
    "ours float32": ("decode_ours.py", "float32"),
    "ours bfloat16": ("decode_ours.py", "bfloat16"),
    "ours int8": ("decode_ours.py", "int8"),
    "ours float32 packed once": ("decode_ours.py", "float32 packed"),
    "ours bfloat16 packed once": ("decode_ours.py", "bfloat16 packed"),
    "marian float32": ("decode_marian.py", "float32"),
    "marian bfloat16": ("decode_marian.py", "bfloat16"),
    "ctranslate2 float32": ("decode_ctranslate2.py", "float32"),
    "ctranslate2 bfloat16": ("decode_ctranslate2.py", "bfloat16"),
    "ctranslate2 int8": ("decode_ctranslate2.py", "int8"),
}


def write_models(folder: Path) -> None:
    """FOLDER/ours, FOLDER/marian and FOLDER/ctranslate2 of one random base model, whose tokens are numbered words."""
    torch.manual_seed(SEED)
    config = VanillaTransformerConfig.from_preset("base", vocab_size=VOCABULARY)
    model = VanillaTransformerForConditionalGeneration(config).eval()
    words = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), VOCABULARY))]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    model.save_pretrained(folder / "ours")
    tokenizer.save_pretrained(folder / "ours")
    marian.write(model, tokenizer, folder / "marian")
    convert_to("ctranslate2", str(folder / "ours"), folder / "ctranslate2")


def operations(source: int, target: int, beams: int) -> int:
    """Of the matrix products of one sentence of base: encoder once, then each step for all hypotheses, the first for
    one. A multiplication and an addition are two."""
    d, f, layers = 512, 2048, 6
    encoder = source * (4 * d * d + 2 * d * f) + 2 * source * source * d + source * 2 * d * d
    total = layers * encoder
    for position in range(1, target + 1):
        rows = 1 if position == 1 else beams
        total += rows * (layers * (6 * d * d + 2 * d * f + 2 * (position + source) * d) + d * VOCABULARY)
    return 2 * total


class Measurement:
    """All sides that work, started once and timed in turns."""

    def __init__(self, folder: Path, threads: int, at_end: ExitStack):
        self.absent: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self._workers: dict[str, Worker] = {}
        self._threads = threads
        for name, (script, precision) in SIDES.items():
            try:
                worker = Worker(name.replace(" ", "-"), sys.executable, script, threads, folder)
                at_end.callback(worker.close)
                request = {"do": "setup", "folder": str(folder), "precision": precision, "threads": threads}
                self.versions[name] = worker.ask(request)["versions"]
            except PeerUnavailable as error:
                self.absent[name] = str(error)
                print(f"  {name}: {error}", file=sys.stderr)
            else:
                self._workers[name] = worker
        self._limit = Worker("limits", sys.executable, "limits.py", threads, folder)
        at_end.callback(self._limit.close)

    def products(self) -> dict[str, Any]:
        """GFLOP/s of the vocabulary layer's product of many rows, by precision."""
        request = {"layers": {"vocabulary": (1024, VOCABULARY, 512)}, "threads": self._threads}
        return self._limit.ask(request)

    def turn(self, sources: list[list[int]], beams: int, new_tokens: int) -> dict[str, dict[str, Any]]:
        """Every side once on the same sentences; one that fails is left out from then on."""
        answers = {}
        for name, worker in list(self._workers.items()):
            request = {"do": "decode", "sources": sources, "beams": beams, "new_tokens": new_tokens}
            try:
                answers[name] = worker.ask(request)
            except PeerUnavailable as error:
                self.absent[name] = str(error)
                del self._workers[name]
                print(f"  {name}: {error}", file=sys.stderr)
        return answers


def measure(measurement: Measurement, lengths: tuple[int, int, int]) -> dict[str, Any]:
    """Seconds of every side in every round of every setting, and what follows from them."""
    source, target, rounds = lengths
    chooser, measured = random.Random(SEED), []
    seconds: dict[str, dict[str, list[float]]] = {setting: {} for setting in SETTINGS}
    same: dict[str, dict[str, list[float]]] = {setting: {} for setting in SETTINGS}
    for number in range(rounds + 1):  # the first warms up
        measured.append(measurement.products())
        for setting, (sentences, beams) in SETTINGS.items():
            words = [[chooser.randrange(len(SPECIAL), VOCABULARY) for _ in range(source - 1)] for _ in range(sentences)]
            answers = measurement.turn([[*row, SPECIAL.index("</s>")] for row in words], beams, target)
            for name, answer in answers.items() if number else ():
                seconds[setting].setdefault(name, []).append(answer["seconds"])
                pairs = list(zip(answer["outputs"], answers["ours float32"]["outputs"], strict=True))
                same[setting].setdefault(name, []).append(sum(a == b for a, b in pairs) / len(pairs))
        print(f"  round {number} of {rounds}", file=sys.stderr)
    rates = limits(measured[1:])
    return {
        "gflops": rates,
        "settings": {
            setting: _setting(sentences, beams, lengths, rates, seconds[setting], same[setting])
            for setting, (sentences, beams) in SETTINGS.items()
        },
    }


def _setting(
    sentences: int,
    beams: int,
    lengths: tuple[int, int, int],
    rates: dict[str, Any],
    seconds: dict[str, list[float]],
    same: dict[str, list[float]],
) -> dict[str, Any]:
    source, target, rounds = lengths
    sides, work = {}, sentences * operations(source, target, beams)
    complete = {name: taken for name, taken in seconds.items() if len(taken) == rounds}
    for name, taken in complete.items():
        found: dict[str, Any] = {"tokens_per_second": spread([sentences * target / each for each in taken])}
        precision = name.split()[1]
        if precision in rates:
            limit = rates[precision]["vocabulary"]["forward"] * 1e9
            found["share_of_limit"] = spread([work / each / limit for each in taken])
        found["identical_to_ours_float32"] = sum(same[name]) / len(same[name])
        sides[name] = found | {"seconds": taken}
    ours = [name for name in complete if name.startswith("ours")]
    ratios = {
        name: {peer: ratio(complete[name], complete[peer]) for peer in complete if peer not in ours} for name in ours
    }
    return {"sentences": sentences, "beams": beams, "sides": sides, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short sentences, two rounds: whether every side runs")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    began, lengths = time.perf_counter(), QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix="bench-decode-") as name, ExitStack() as at_end:
        write_models(Path(name))
        measurement = Measurement(Path(name), arguments.threads, at_end)
        found = measure(measurement, lengths)
    result = {
        "name": "bench_decode",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/bench_decode.py", *sys.argv[1:]]),
        "quick": arguments.quick,
        "code": code_version(),
        "hardware": hardware(Accelerator(cpu=True)),
        "allocator": Path(os.environ.get("LD_PRELOAD", "")).name or "the C library's",
        "seconds": round(time.perf_counter() - began, 1),
        "threads": arguments.threads,
        "source_tokens": lengths[0],
        "new_tokens": lengths[1],
        "rounds": lengths[2],
        "versions": measurement.versions,
        "absent": measurement.absent,
        **found,
    }
    print(report(result))
    if not arguments.quick:
        write_json(RESULT, result)
        write_text(RESULT.with_suffix(".md"), report(result))


if __name__ == "__main__":
    main()

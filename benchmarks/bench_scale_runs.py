"""Training itself, as a user starts it: two processes against two single ones, and accumulation against none.

All runs train one small model on the same real text. Speeds are those of their metrics.jsonl, without the first rows.
"""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_train_figures import spread

WARM_UP = 1  # updates
PAIRS = 12_000  # of the corpus
RECIPE = """\
data: {{corpus: {corpus}, source_lang: en, target_lang: de}}
tokenizer: {{vocab_size: {vocabulary}}}
model: {{preset: C-d256, num_encoder_layers: {layers}, num_decoder_layers: {layers}}}
training:
  max_steps: {updates}
  max_source_tokens: {tokens}
  max_target_tokens: {tokens}
  gradient_accumulation_steps: {accumulation}
  log_every: 1
  eval_every: 1000000
  save_every: 1000000
  threads: 1
"""


@dataclass(frozen=True)
class Size:
    """How large the runs are; tokens are padded, a side, of an update.

    The whole is accumulated over parts of 2,048 tokens: every part adds to all gradients anew, which takes as long
    however small it is.
    """

    layers: int
    vocabulary: int
    tokens_a_process: int
    updates: int
    accumulated_tokens: int
    accumulated_updates: int
    rounds: int


FULL = Size(2, 4000, 3000, 6, 16_384, 3, 2)
QUICK = Size(1, 2000, 400, 6, 1600, 3, 1)


class Runs:
    """Starts runs in folders of their own below `folder`."""

    def __init__(self, size: Size, folder: Path, corpus: Path):
        self._size, self._folder, self._corpus = size, folder, corpus
        self._number = 0

    def started(self, processes: int, steps: int, tokens: int, updates: int) -> tuple[subprocess.Popen, Path]:
        """A training of so many processes, accumulating over so many steps, and where its rows will be."""
        self._number += 1
        run = self._folder / f"run-{self._number}"
        run.mkdir()
        recipe = run / "started.yaml"
        size = self._size
        text = RECIPE.format(
            corpus=self._corpus,
            vocabulary=size.vocabulary,
            layers=size.layers,
            updates=updates + WARM_UP,
            tokens=tokens,
            accumulation=steps,
        )
        recipe.write_text(text, encoding="utf-8")
        launcher = [sys.executable, "-m"]
        if processes > 1:
            launcher += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
        command = [*launcher, "vanilla_transformer.training.train", str(recipe), "--output-dir", str(run / "run")]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with open(run / "log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        return process, run

    def finished(self, process: subprocess.Popen, run: Path) -> float:
        """Wait for the end of a training; its tokens a second, the median of its updates behind the warm-up."""
        if process.wait():
            sys.exit(f"A run failed:\n{(run / 'log').read_text(encoding='utf-8')}")
        lines = (run / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return statistics.median(json.loads(line)["tokens_per_second"] for line in lines[WARM_UP:])


def summary(first: list[float], second: list[float]) -> dict[str, Any]:
    """Speeds of two kinds of runs that took turns, and the first as a share of the second in each round."""
    shares = [one / other for one, other in zip(first, second, strict=True)]
    return {
        "tokens_per_second": {"first": first, "second": second},
        "share": spread(shares),
    }


def two_processes(runs: Runs, size: Size) -> dict[str, Any]:
    """torchrun with two processes (first) against two single runs side by side, their speeds added up (second)."""
    together, apart = [], []
    for _ in range(size.rounds):
        together.append(runs.finished(*runs.started(2, 1, 2 * size.tokens_a_process, size.updates)))
        both = [runs.started(1, 1, size.tokens_a_process, size.updates) for _ in range(2)]
        apart.append(sum(runs.finished(*each) for each in both))
    return summary(together, apart)


def accumulation(runs: Runs, size: Size, steps: int) -> dict[str, Any]:
    """An update in so many parts (first) against the same update in one (second), one process each."""
    parts, whole = [], []
    for number in range(size.rounds):
        # Whoever comes second finds caches and clock frequency as the first left them: take turns at that too.
        kinds = [(parts, steps), (whole, 1)]
        for speeds, count in kinds if number % 2 else reversed(kinds):
            speeds.append(runs.finished(*runs.started(1, count, size.accumulated_tokens, size.accumulated_updates)))
    return summary(parts, whole)

"""How fast the batcher is on a prepared corpus; bench_data.py starts it in a process of its own.

    python benchmarks/bench_data_batches.py RUN/prepared/KEY/train.arrow --tokens 25000

The clock of the first batch starts with nothing but the imports done: the file is opened, an epoch is planned, which
is the shuffling, and one worker assembles. Prints JSON.
"""

import argparse
import json
import os
import resource
import time
from typing import Any

import datasets
from bench_train_figures import spread
from started import memory

from vanilla_transformer.training.batching import EpochPlan, micro_batches, plan_epoch
from vanilla_transformer.training.token_columns import pair_lengths

SEED, PAD = 1, 1
ROUNDS = 5
MIN_SECONDS = 2.0  # of a round


def speed(corpus: datasets.Dataset, plan: EpochPlan, workers: int, first: int) -> tuple[float, int]:
    """Real tokens of both sides a second, from the second update on, and the update to go on with."""
    updates = micro_batches(corpus, plan, first, num_workers=workers, pad_id=PAD)
    next(updates)
    began, tokens, number = time.perf_counter(), 0, first
    for update in updates:
        tokens += update.source_tokens + update.target_tokens
        number = update.number
        if time.perf_counter() - began >= MIN_SECONDS:
            break
    return tokens / (time.perf_counter() - began), (number + 1) % max(1, len(plan) // 2)


def measure(path: str, budget: int, rounds: int) -> dict[str, Any]:
    """Seconds to the first batch, tokens a second without and with a worker, and this process's memory."""
    before = _memory()
    began = time.perf_counter()
    corpus = datasets.Dataset.from_file(path)
    lengths = pair_lengths(corpus)
    opened = time.perf_counter()
    plan = plan_epoch(*lengths, budget, budget, SEED, epoch=0)
    planned = time.perf_counter()
    next(micro_batches(corpus, plan, num_workers=1, pad_id=PAD))
    first_batch = time.perf_counter()
    after = _memory()
    rates: dict[int, list[float]] = {0: [], 1: []}
    update = 0
    for _ in range(rounds):
        for workers in rates:
            rate, update = speed(corpus, plan, workers, update)
            rates[workers].append(rate)
    return {
        "tokens_an_update": budget,
        "pairs": len(corpus),
        "updates": len(plan),
        "padding": plan.padding,
        "seconds_to_open": opened - began,
        "seconds_to_plan_an_epoch": planned - opened,
        "seconds_to_first_batch": first_batch - began,
        "anonymous_bytes_of_imports": before,
        "anonymous_bytes_with_a_plan": after,
        "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "corpus_bytes": corpus.data.nbytes,
        "tokens_per_second": {f"{workers} workers": spread(each) for workers, each in rates.items()},
    }


def _memory() -> int:
    return memory(os.getpid())[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", help="train.arrow of a prepared corpus")
    parser.add_argument("--tokens", type=int, required=True, help="padded tokens a side of an update")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.corpus, arguments.tokens, arguments.rounds)))

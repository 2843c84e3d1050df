"""Seconds and peak memory of one training step at one size after the other; bench_scale.py starts it.

    python benchmarks/bench_scale_steps.py '[{"length": 512, "rows": 1}]'

Each point is one forward and backward pass of a model of base's dimensions with 2+2 layers in float32. Memory is what
the kernel counts: the process's highest resident memory during the step, above what it held before. The C library is
told by the caller to give every freed block back, or an earlier point's would hide a later one's. Prints JSON.
"""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from started import status

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

PRESET = "C-n2"
FIRST_WORD, IGNORED = 4, -100
MIN_SECONDS, MOST_STEPS = 1.0, 5  # a point is repeated until both say that it is enough


def build(vocabulary: int, attention: str) -> VanillaTransformerForConditionalGeneration:
    """A random model in training mode, its gradients there from the start."""
    torch.manual_seed(1)
    model = VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig.from_preset(PRESET, vocab_size=vocabulary)
    )
    model.set_attn_implementation(attention)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # as in every update but the first
    return model.train()


def batch(rows: int, length: int, vocabulary: int, padded: bool) -> dict[str, torch.Tensor]:
    """Random ids (rows, length) on both sides; where padded, every other row is only half as long."""
    draw = torch.Generator().manual_seed(2)
    sides = torch.randint(FIRST_WORD, vocabulary, (2, rows, length), generator=draw)
    mask = torch.ones(rows, length, dtype=torch.int64)
    if padded:
        mask[1::2, length // 2 :] = 0
    pad = VanillaTransformerConfig().pad_token_id
    return {
        "input_ids": sides[0].masked_fill(mask == 0, pad),
        "attention_mask": mask,
        "labels": sides[1].masked_fill(mask == 0, IGNORED),
    }


def forget_peak() -> None:
    """The kernel's highest resident memory of this process (VmHWM) is from now on counted anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def measure(point: dict[str, Any]) -> dict[str, Any]:
    """A point has rows, length, vocabulary, attention ("sdpa" or "eager") and padded."""
    model = build(point["vocabulary"], point["attention"])
    inputs = batch(point["rows"], point["length"], point["vocabulary"], point["padded"])
    if point["length"] <= 1024:  # the first step of all sets libraries up; long ones are long enough to bear it
        model(**inputs).loss.backward()
    gc.collect()
    forget_peak()
    before = status("self")["VmRSS"]
    seconds: list[float] = []
    while not seconds or (sum(seconds) < MIN_SECONDS and len(seconds) < MOST_STEPS):
        began = time.perf_counter()
        model(**inputs).loss.backward()
        seconds.append(time.perf_counter() - began)
    peak = status("self")["VmHWM"]
    tokens = int(inputs["attention_mask"].sum() + (inputs["labels"] != IGNORED).sum())
    taken = statistics.median(seconds)
    return point | {
        "seconds": taken,
        "steps": len(seconds),
        "tokens": tokens,
        "tokens_per_second": tokens / taken,
        "peak_bytes": peak - before,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", type=json.loads)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    measure(arguments.points[0] | {"length": 16, "rows": 1})  # warms up
    print(json.dumps([measure(point) for point in arguments.points]))

"""One side of bench_train.py in a process of its own: trains a model as it is told over a pipe, and says how long.

A request is one JSON line on stdin, its answer one on stdout; what libraries print goes to stderr. Needs torch alone,
so that it runs in every peer's environment.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

# Shapes: B sentences, S source and T target positions, both with </s>.

BOS, PAD, EOS, UNK = range(4)
BETAS, EPSILON = (0.9, 0.98), 1e-9
LEARNING_RATE = 1e-4
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Setup:
    """What every side is told: the model, and where its first weights are."""

    layers: int  # of the encoder, and as many of the decoder
    d_model: int
    d_ff: int
    heads: int
    vocabulary: int
    dropout: float
    label_smoothing: float
    threads: int
    weights: str  # folder


@dataclass(frozen=True)
class Batch:
    """Token ids padded on the right, all int64: source (B, S), decoder's input and labels (B, T)."""

    source: torch.Tensor
    inputs: torch.Tensor
    labels: torch.Tensor
    target_tokens: int

    @property
    def mask(self) -> torch.Tensor:
        """Ones where the source has tokens, (B, S)."""
        return self.source.ne(PAD).long()


def make_batch(pairs: list[list[list[int]]]) -> Batch:
    """A batch of [source ids, target ids] with </s> at both ends."""
    source, labels = (padded([pair[side] for pair in pairs]) for side in (0, 1))
    start = torch.full((len(pairs), 1), BOS)
    return Batch(source, torch.cat([start, labels[:, :-1]], 1), labels, int(labels.ne(PAD).sum()))


def padded(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def renumbered(tokens: torch.Tensor, numbers: dict[int, int]) -> torch.Tensor:
    """The same tokens where a peer gives the special ones other `numbers`, by ours."""
    table = torch.tensor([numbers[number] for number in range(len(numbers))])
    return torch.where(tokens < len(table), table[tokens.clamp(max=len(table) - 1)], tokens)


def computing_in(precision: str) -> AbstractContextManager:
    """torch's autocast on the CPU for bfloat16, nothing for float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")


class Side:
    """A model, its loss and its optimiser. Subclasses set `model` and `packages`, and compute."""

    packages: tuple[str, ...] = ("torch",)
    model: torch.nn.Module

    def prepare(self, batch: Batch) -> Any:
        """What the side's training step takes, made before the clock starts."""
        return batch

    def loss(self, variant: str, batch: Batch) -> float:
        """The smoothed loss per target token, without dropout; the model's weights stay as they are."""
        raise NotImplementedError

    def update(self, variant: str, prepared: Any) -> None:
        """One training step: forward, backward, optimiser."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        return {
            "parameters": sum(each.numel() for each in self.model.parameters() if each.requires_grad),
            "versions": {name: version(name) for name in self.packages},
            "threads": torch.get_num_threads(),
        }


class Pipe:
    """Requests in, answers out."""

    def __init__(self) -> None:
        # Whatever prints to stdout must not break into an answer.
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def requests(self) -> Iterator[dict[str, Any]]:
        for line in sys.stdin:
            yield json.loads(line)

    def answer(self, result: dict[str, Any]) -> None:
        print(json.dumps(result), file=self._answers, flush=True)

    def fail(self, error: Exception) -> None:
        traceback.print_exc()
        self.answer({"error": f"{type(error).__name__}: {error}"})


def serve(make_side: type[Side]) -> None:
    """Answer requests until stdin ends."""
    pipe, side = Pipe(), None
    for request in pipe.requests():
        try:
            if request["do"] == "setup":
                setup = Setup(**request["setup"])
                torch.set_num_threads(setup.threads)
                torch.manual_seed(1)
                side = make_side(setup)
                pipe.answer(side.facts())
            elif request["do"] == "loss":
                pipe.answer({"loss": side.loss(request["variant"], make_batch(request["pairs"]))})
            else:
                pipe.answer({"seconds": _timed(side, request["variant"], request["batches"])})
        except Exception as error:
            pipe.fail(error)


def _timed(side: Side, variant: str, batches: list[list[list[list[int]]]]) -> list[float]:
    """Seconds of one update on each of the batches."""
    prepared, seconds = [side.prepare(make_batch(pairs)) for pairs in batches], []
    side.model.train()
    for batch in prepared:
        began = time.perf_counter()
        side.update(variant, batch)
        seconds.append(time.perf_counter() - began)
    side.model.zero_grad(set_to_none=True)  # sides that wait need not hold a quarter of a gigabyte each
    return seconds

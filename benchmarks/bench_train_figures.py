"""What bench_train.py computes from its times: operations, tokens a second, shares of the limit, ratios."""

import statistics
from dataclasses import dataclass
from typing import Any

Pair = tuple[list[int], list[int]]  # token ids of source and target, </s> included


@dataclass(frozen=True)
class Dimensions:
    """A model: as many layers in the encoder as in the decoder."""

    layers: int
    d_model: int
    d_ff: int
    heads: int
    vocabulary: int
    dropout: float


@dataclass(frozen=True)
class Work:
    """What a batch asks for: its tokens of both sides, and the operations of its matrix products in training."""

    tokens: int
    padded_tokens: int
    operations: int
    padded_operations: int

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.tokens + other.tokens,
            self.padded_tokens + other.padded_tokens,
            self.operations + other.operations,
            self.padded_operations + other.padded_operations,
        )


def operations(model: Dimensions, source: int, target: int) -> int:
    """Floating-point operations of training on one pair of these lengths: all matrix products, forward and backward.

    A multiplication and an addition are two; the backward pass has twice the products of the forward pass. Attention
    counts in full, masked or not.
    """
    d, f = model.d_model, model.d_ff
    encoder = source * (4 * d * d + 2 * d * f) + 2 * source * source * d
    # The decoder projects keys and values of the source's positions in every layer.
    decoder = target * (6 * d * d + 2 * d * f) + source * 2 * d * d + 2 * target * target * d + 2 * target * source * d
    return 3 * 2 * (model.layers * (encoder + decoder) + target * d * model.vocabulary)


def work_of(model: Dimensions, pairs: list[Pair]) -> Work:
    """The work of one batch, padded to its longest source and target."""
    sources, targets = [len(source) for source, _ in pairs], [len(target) for _, target in pairs]
    longest = max(sources), max(targets)
    return Work(
        tokens=sum(sources) + sum(targets),
        padded_tokens=len(pairs) * sum(longest),
        operations=sum(operations(model, *lengths) for lengths in zip(sources, targets, strict=True)),
        padded_operations=len(pairs) * operations(model, *longest),
    )


def spread(values: list[float]) -> dict[str, float]:
    """The middle and the ends of repeated measurements."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def speeds(seconds: list[float], works: list[Work], limit: float) -> dict[str, Any]:
    """Of one side, from the seconds and the work of each round and the limit in operations a second."""
    rounds = list(zip(seconds, works, strict=True))
    return {
        "tokens_per_second": spread([work.tokens / second for second, work in rounds]),
        "padded_tokens_per_second": spread([work.padded_tokens / second for second, work in rounds]),
        "mfu": spread([work.operations / second / limit for second, work in rounds]),
        "mfu_with_padding": spread([work.padded_operations / second / limit for second, work in rounds]),
        "seconds": seconds,
    }


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """How many times as fast ours is: spread of the rounds' ratios of seconds, each round's batches being the same."""
    return spread([theirs_ / ours_ for ours_, theirs_ in zip(ours, theirs, strict=True)])


def limits(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Median of every rate over the rounds; nested as peers/limits.py answers."""
    first = rounds[0]
    if isinstance(first, dict):
        return {name: limits([each[name] for each in rounds]) for name in first}
    return statistics.median(rounds)

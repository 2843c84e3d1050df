"""A task whose answer depends on something a given distance back, and how well a model does it at each distance."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from vanilla_transformer.training.batching import IGNORED_LABEL

# Token ids that every such task shares with the models' configs.
START, PAD, END = 0, 1, 2
SPECIAL_TOKENS = {"bos_token_id": START, "decoder_start_token_id": START, "pad_token_id": PAD, "eos_token_id": END}

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class Examples(NamedTuple):
    """Sources (B, S), padded behind, and their answers (B, T), -100 behind the shorter ones."""

    source_BS: torch.Tensor
    answer_BT: torch.Tensor


def padded(sources: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Examples:
    """Examples of unequal lengths as two tensors."""
    return Examples(_behind(sources, PAD), _behind(answers, IGNORED_LABEL))


def _behind(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])


class DistanceTask(Protocol):
    """Makes examples by the random generator alone; no source of one split can come up in another."""

    @property
    def distances(self) -> tuple[int, ...]: ...

    @property
    def vocab_size(self) -> int: ...

    def source_tokens(self, distance: int) -> int:
        """The length of the longest source of this distance."""

    def examples(self, split: Split, distance: int, rows: int, rng: np.random.Generator) -> Examples: ...


def accuracy_by_distance(
    model: nn.Module, task: DistanceTask, split: Split, questions: int, rows: int = 64
) -> list[dict[str, Any]]:
    """A row for each distance: of `questions` examples, how many answers are right in every token.

    The examples are the same for every model. An answer is the most probable token at each position, given that those
    before it were right: all are right exactly if greedy decoding writes the answer.
    """
    was_training = model.training
    model.eval()
    found = []
    for distance in task.distances:
        rng = np.random.default_rng((SPLITS.index(split), distance))
        right = 0
        for start in range(0, questions, rows):
            examples = task.examples(split, distance, min(rows, questions - start), rng)
            right += int(right_answers(model, examples).sum())
        low, high = wilson(right, questions)
        found.append({"distance": distance, "right": right, "asked": questions, "low": low, "high": high})
    model.train(was_training)
    return found


@torch.no_grad()
def right_answers(model: nn.Module, examples: Examples) -> torch.Tensor:
    """(B,) whether each answer is right in every token."""
    logits_BTN = model(input_ids=examples.source_BS, labels=examples.answer_BT, compute_logits=True).logits
    asked_BT = examples.answer_BT.ne(IGNORED_LABEL)
    return (logits_BTN.argmax(-1).eq(examples.answer_BT) | ~asked_BT).all(1)


def wilson(right: int, asked: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval of a share in which 95% of trials would find it (Wilson 1927).

    Unlike p +- z sqrt(p (1 - p) / n) it stays within 0 and 1 and has a width where all or no answers are right.
    """
    share, spread = right / asked, z * z / asked
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / asked + spread / (4 * asked)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)

"""Recall: one value stands k tokens back in noise, and the answer is that value (after Bengio et al. 1994)."""

from dataclasses import dataclass

import numpy as np
import torch

from vanilla_transformer.training.ladder.distance_task import START, Examples, Split

# Sources are told apart by the sum of their tokens, modulo this: no source of one split can stand in another.
FOLDS = 8
_FOLD_OF_SPLIT = {"test": 0, "validation": 1}  # training has the others


@dataclass(frozen=True)
class RecallTask:
    """Sources of up to `most_before` noise tokens, one of `values` values, and `distance` noise tokens.

    Values are the only tokens of their kind, so a system has to notice one, keep it over the noise, and give it back;
    between the step that reads the value and the step that reads the source's last token lie exactly `distance` steps.
    How many tokens come before the value is drawn anew for each batch: position from the start tells nothing.
    """

    distances: tuple[int, ...]
    values: int
    noise: int
    most_before: int

    @property
    def first_value(self) -> int:
        return START + 3  # behind the start of the answer, the pad and the end

    @property
    def vocab_size(self) -> int:
        return self.first_value + self.values + self.noise

    def source_tokens(self, distance: int) -> int:
        return self.most_before + 1 + distance

    def examples(self, split: Split, distance: int, rows: int, rng: np.random.Generator) -> Examples:
        """`rows` sources of one length (B, S), all of this split, and their answers (B, 1)."""
        before = int(rng.integers(self.most_before + 1))
        first_noise = self.first_value + self.values
        kept: list[np.ndarray] = []
        while sum(map(len, kept)) < rows:
            sources = rng.integers(first_noise, self.vocab_size, (FOLDS * rows, before + 1 + distance))
            sources[:, before] = rng.integers(self.first_value, first_noise, len(sources))
            kept.append(sources[_is_in(split, sources.sum(1) % FOLDS)])
        source_BS = np.concatenate(kept)[:rows]
        return Examples(torch.from_numpy(source_BS), torch.from_numpy(source_BS[:, before : before + 1].copy()))


def _is_in(split: Split, fold: np.ndarray) -> np.ndarray:
    if split == "train":
        return ~np.isin(fold, list(_FOLD_OF_SPLIT.values()))
    return fold == _FOLD_OF_SPLIT[split]

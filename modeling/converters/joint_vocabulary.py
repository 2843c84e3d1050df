"""Two vocabularies as the one that our models have, without a change to what the model computes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# A token with this much less than 0 as its logit has a probability of exp(-100), which float32 cannot add to 1. Not
# -inf: label smoothing would make the loss infinite.
NEVER = -100.0


@dataclass(frozen=True)
class JointVocabulary:
    """`tokens` by number; `source` and `target` are the numbers here of the two vocabularies' tokens, in their order.

    The source's tokens keep their numbers, the target's other ones follow.
    """

    tokens: list[str]
    source: list[int]
    target: list[int]

    @classmethod
    def of(cls, source: Sequence[str], target: Sequence[str]) -> "JointVocabulary":
        number = {token: index for index, token in enumerate(source)}
        for token in target:
            number.setdefault(token, len(number))
        return cls(list(number), list(range(len(source))), [number[token] for token in target])

    @property
    def is_shared(self) -> bool:
        """Both sides had this vocabulary."""
        return len(self.target) == len(self.tokens) and self.source == self.target

    def source_rows(self, matrix_SD: torch.Tensor) -> torch.Tensor:
        """A row for each source token -> a row for each token, 0 for those that no source sentence holds."""
        return self._spread(matrix_SD, self.source)

    def target_rows(self, matrix_TD: torch.Tensor) -> torch.Tensor:
        """A row for each target token -> a row for each token, 0 for those that the model never writes."""
        return self._spread(matrix_TD, self.target)

    def output_bias(self, bias_T: torch.Tensor | None = None) -> torch.Tensor:
        """The bias on the logits, such that a token that only the source has is never written."""
        bias = torch.full((len(self.tokens),), NEVER)
        bias[self.target] = 0.0 if bias_T is None else bias_T.float()
        return bias

    def _spread(self, rows: torch.Tensor, places: list[int]) -> torch.Tensor:
        spread = rows.new_zeros(len(self.tokens), rows.shape[1])
        spread[places] = rows
        return spread

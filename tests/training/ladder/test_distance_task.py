"""Accuracy and its interval, against a model whose answers are known and Wilson's formula worked by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vanilla_transformer.training.ladder.distance_task import (
    Examples,
    accuracy_by_distance,
    padded,
    right_answers,
    wilson,
)
from vanilla_transformer.training.ladder.recall_task import RecallTask


class Answers(nn.Module):
    """Says, at each target position, the source's tokens from `back` tokens before the last one on."""

    def __init__(self, back: int, vocab_size: int):
        super().__init__()
        self.back, self.vocab_size = back, vocab_size

    def forward(self, input_ids, labels, compute_logits):
        assert not self.training and compute_logits
        start = input_ids.shape[1] - 1 - self.back
        said_BT = input_ids[:, start : start + labels.shape[1]]
        return SimpleNamespace(logits=nn.functional.one_hot(said_BT, self.vocab_size).float())


def test_right_answers_are_counted_at_each_distance():
    task = RecallTask((4, 8), values=5, noise=7, most_before=3)
    model = Answers(8, task.vocab_size).train()
    near, far = accuracy_by_distance(model, task, "test", questions=30, rows=8)
    # four tokens back there is noise, which is never the answer, wherever a source is long enough to be asked
    assert (far["distance"], far["right"], far["asked"]) == (8, 30, 30)
    assert model.training
    model = Answers(4, task.vocab_size)
    near, far = accuracy_by_distance(model, task, "test", questions=30, rows=8)
    assert (near["distance"], near["right"], near["asked"], far["right"]) == (4, 30, 30, 0)
    assert (far["low"], far["high"]) == wilson(0, 30)


def test_an_answer_is_right_only_if_all_its_tokens_are():
    source_BS = torch.tensor([[5, 6, 7]] * 3)
    answer_BT = torch.tensor([[5, 6], [5, 7], [5, -100]])
    assert right_answers(Answers(2, 10).eval(), Examples(source_BS, answer_BT)).tolist() == [True, False, True]


def test_shorter_sources_and_answers_are_padded_behind():
    examples = padded([[3, 4, 5], [6]], [[7], [8, 9]])
    assert examples.source_BS.tolist() == [[3, 4, 5], [6, 1, 1]]
    assert examples.answer_BT.tolist() == [[7, -100], [8, 9]]


def test_wilson_s_interval_by_hand():
    # p = 0.8, n = 10, z^2 = 3.84146: middle (0.8 + 0.192073) / 1.384146, half 1.959964 sqrt(0.0256037) / 1.384146
    assert wilson(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-5)
    # with p = 0 it is [0, z^2 / (n + z^2)]
    assert wilson(0, 10) == pytest.approx((0.0, 3.84146 / 13.84146), abs=1e-5)
    assert wilson(10, 10) == pytest.approx((10 / 13.84146, 1.0), abs=1e-5)

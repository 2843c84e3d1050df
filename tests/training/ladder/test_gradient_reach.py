"""Gradients that reach a far token, against finite differences and against what an Elman network must do."""

import math

import numpy as np
import pytest
import torch

from vanilla_transformer.training.ladder.gradient_reach import gradient_by_distance
from vanilla_transformer.training.ladder.recall_task import RecallTask
from vanilla_transformer.training.ladder.short_training import ShortTraining, new_model
from vanilla_transformer.training.ladder.systems import SYSTEMS

TASK = RecallTask((4, 8), values=4, noise=4, most_before=2)


@pytest.mark.parametrize("system", ["lstm-attention", "transformer"])
def test_reach_equals_finite_differences(system):
    """The value's embedding is moved a little in each direction, and the loss and the scores are looked at."""
    model = new_model(SYSTEMS[system], ShortTraining(parameters=20_000), TASK.vocab_size, seed=2).double().eval()
    (row, _) = gradient_by_distance(model, TASK, rows=3)
    source_BS, answer_B1 = TASK.examples("validation", 4, 3, np.random.default_rng((4,)))
    d_model, moved = model.config.d_model, {"by": None}

    def move(_module, _inputs, x_BSD):
        if moved["by"] is not None:
            x_BSD = x_BSD.clone()
            x_BSD[:, -5] += moved["by"]
        return x_BSD

    hook = model.get_encoder().embed_tokens.register_forward_hook(move)
    start = torch.zeros(1, 1, dtype=torch.long)
    logs = []
    for source_S, answer_1 in zip(source_BS, answer_B1, strict=True):

        def loss_of(by, source_S=source_S, answer_1=answer_1):
            moved["by"] = by
            with torch.no_grad():
                scores_N = model(input_ids=source_S[None], decoder_input_ids=start).logits[0, 0]
            return torch.nn.functional.cross_entropy(scores_N, answer_1[0]).item(), scores_N

        steps = 1e-5 * torch.eye(d_model, dtype=torch.double)
        slopes = [(loss_of(step)[0] - loss_of(-step)[0]) / 2e-5 for step in steps]
        # of the scores the gradient is p - q (section on the loss)
        error_N = loss_of(None)[1].softmax(0)
        error_N[answer_1] -= 1
        logs.append(math.log(math.hypot(*slopes) / error_N.norm().item()))
    hook.remove()
    assert row["reach"] == pytest.approx(math.exp(sum(logs) / 3), rel=1e-4)
    assert row["spread"] == pytest.approx(np.std(logs), rel=1e-2)


def test_an_untrained_elman_network_loses_the_gradient_step_by_step_and_a_transformer_does_not():
    task = RecallTask((8, 32, 128), values=4, noise=4, most_before=2)
    reach = {}
    for system in ("rnn", "transformer"):
        model = new_model(SYSTEMS[system], ShortTraining(), task.vocab_size, seed=1)
        reach[system] = [row["reach"] for row in gradient_by_distance(model, task, rows=4)]
        assert model.dtype == torch.float32 and model.training
    near, far, farther = map(math.log, reach["rnn"])
    # as the power of a matrix: every step the same factor, four times as many steps four times the logarithm
    assert (far - farther) / (near - far) == pytest.approx(4, rel=0.25)
    assert 0 < reach["rnn"][2] < 1e-20 < 1e-3 < reach["transformer"][2]

"""How much of an answer's error reaches the source token that it depends on, far back."""

import math
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from vanilla_transformer.training.ladder.recall_task import RecallTask

# An Elman network halves a gradient about once a step: after 512 steps float32 would hold zero.
DTYPE = torch.float64


def gradient_by_distance(model: PreTrainedModel, task: RecallTask, rows: int) -> list[dict[str, Any]]:
    """A row for each distance: `reach`, the mean over `rows` validation sources, and its `spread`.

    An example's reach is |dL/dx| / |dL/dz| with L the answer's cross-entropy, x the embedding of the value that stands
    `distance` tokens back, and z the scores of the vocabulary: error signal arriving, per error signal sent. The
    quotient says the same before training and after it, when right answers leave next to no error to send. The mean
    is the geometric one, since reach differs by orders of magnitude; `spread` is the standard deviation of its natural
    logarithm. A reach of zero, past what float64 holds, is counted as its smallest number.
    """
    copy = type(model)(model.config).to(DTYPE).eval()
    copy.load_state_dict(model.state_dict())
    found = []
    for distance in task.distances:
        examples = task.examples("validation", distance, rows, np.random.default_rng((distance,)))
        x_BD, z_BN = _gradients(copy, examples.source_BS, examples.answer_BT, distance)
        reach_B = x_BD.norm(dim=-1) / z_BN.norm(dim=-1)
        log_B = reach_B.clamp(min=torch.finfo(DTYPE).tiny).log()
        found.append({"distance": distance, "reach": math.exp(log_B.mean()), "spread": log_B.std(correction=0).item()})
    return found


def _gradients(
    model: PreTrainedModel, source_BS: torch.Tensor, answer_B1: torch.Tensor, distance: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss' gradients in the embedding of the token `distance` before the last one, and in the scores."""
    embedded: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: Any, embedded_BSD: torch.Tensor) -> torch.Tensor:
        # A leaf of its own: the way back ends here, and not in the matrix that the output may share.
        embedded.append(embedded_BSD.detach().requires_grad_())
        return embedded[0]

    hook = model.get_encoder().embed_tokens.register_forward_hook(keep)
    try:
        start_B1 = torch.full_like(answer_B1, model.config.decoder_start_token_id)
        scores_BN = model(input_ids=source_BS, decoder_input_ids=start_B1).logits[:, 0]
    finally:
        hook.remove()
    loss = torch.nn.functional.cross_entropy(scores_BN, answer_B1[:, 0], reduction="sum")
    x_BSD, z_BN = torch.autograd.grad(loss, [embedded[0], scores_BN])
    return x_BSD[:, -1 - distance], z_BN

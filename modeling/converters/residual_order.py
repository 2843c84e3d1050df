"""The dimensions of d_model in another order: interleaved sinusoids become concatenated ones, with the same logits.

Nothing in the Transformer but the sinusoids tells the dimensions of its residual stream apart: LayerNorm's mean and
variance do not, and every matrix that reads or writes the stream can have its columns or rows in any order.
"""

import re
from collections.abc import Mapping

import torch

# Names of our weights by the axis that runs over d_model.
_COLUMNS = re.compile(r"(embed_tokens|lm_head|positions\.table|[qkv]_proj|fc1)\.weight$")  # (any, D)
_ROWS = re.compile(r"(norm|out_proj|fc2)\.(weight|bias)$")  # (D, any) or (D,)


def with_concatenated_sinusoids(weights: Mapping[str, torch.Tensor], d_model: int) -> dict[str, torch.Tensor]:
    """Weights of a model with sinusoid_layout "interleaved" -> those of the same model with "concatenated".

    New dimension i is old dimension 2 i in the first half, the sines, and 2 i + 1 - d_model in the second.
    """
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    reordered = {}
    for name, weight in weights.items():
        if _COLUMNS.search(name):
            weight = weight[:, order]
        elif _ROWS.search(name):
            weight = weight[order]
        reordered[name] = weight
    return reordered

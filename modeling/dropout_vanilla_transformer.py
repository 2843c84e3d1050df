"""Dropout that is not the slowest part of training on a CPU.

torch draws one random number an element, on one thread; that took a fifth of a small model's training step. Here 64
random bits decide four elements. Ships to the Hub beside the weights; imports torch alone.
"""

import torch
from torch import nn

_LEVELS = 1 << 16


class Dropout(nn.Dropout):
    """nn.Dropout; on a CPU in training the probability is rounded to a multiple of 1 / 65536, and scaled for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped = round(self.p * _LEVELS)
        if not self.training or x.device.type != "cpu" or not 0 < dropped < _LEVELS or torch.compiler.is_compiling():
            return super().forward(x)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        keep = bits.view(torch.int16)[: x.numel()].view(x.shape).ge(dropped - _LEVELS // 2)
        # The same factor serves the backward pass.
        return x * keep.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))

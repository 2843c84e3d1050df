"""`train` for torchrun that meets faults inside itself: broken_training.py FAULTS_AS_JSON RECIPE --output-dir RUN ...

FAULTS is a list of [process, update, fault]: in that update the process computes a gradient that is not a number
("nan"), or has no memory for more than one pair at once, which its first or its last forward or backward pass notices
("first forward", "last backward", ...).
"""

import json
import math
import os
import sys
from typing import Any

import torch
from torch import nn

from vanilla_transformer.training import train
from vanilla_transformer.training.command import main
from vanilla_transformer.training.gradients import Gradients


class Faults:
    """The faults of this process, switched on update by update."""

    def __init__(self, faults: list[tuple[int, int, str]]):
        self._by_step = {step: fault for process, step, fault in faults if process == int(os.environ["RANK"])}
        self._now, self._passes, self._pieces, self._pairs = "", 0, 0, 0

    def add(self, gradients: Gradients, pieces: list[Any], step: int, target_tokens: int) -> Any:
        """In the place of Gradients.add."""
        self._now, self._passes, self._pieces = self._by_step.get(step, ""), 0, len(pieces)
        return _add(gradients, pieces, step, target_tokens)

    def build_model(self, *arguments: Any) -> nn.Module:
        """In the place of build_model."""
        model = _build_model(*arguments)
        model.register_forward_pre_hook(self._begin, with_kwargs=True)
        model.model.decoder.register_forward_pre_hook(lambda module, inputs: self._fail_in("forward"))
        model.model.encoder.register_forward_hook(self._watch)
        next(model.parameters()).register_hook(lambda gradient: gradient * math.nan if self._now == "nan" else gradient)
        return model

    def _begin(self, module: nn.Module, arguments: Any, named: dict[str, torch.Tensor]) -> None:
        self._pairs = len(named["input_ids"])
        self._passes += 1

    def _watch(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """When the backward pass comes to the encoder it is done with the decoder."""
        states = output if torch.is_tensor(output) else output[0]
        if states.requires_grad:
            states.register_hook(lambda gradient: self._fail_in("backward"))

    def _fail_in(self, direction: str) -> None:
        due = self._passes == (1 if self._now.startswith("first") else self._pieces)
        if self._now.endswith(direction) and due and self._pairs > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


_add, _build_model = Gradients.add, train.build_model
faults = Faults(json.loads(sys.argv.pop(1)))
Gradients.add = lambda *arguments: faults.add(*arguments)  # type: ignore[method-assign]
train.build_model = faults.build_model  # type: ignore[assignment]
main()

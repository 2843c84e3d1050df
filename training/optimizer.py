"""Adam as in section 5.3, and its state under the parameters' names, whole on any number of processes."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from vanilla_transformer.configuration.errors import UserError


def build_adam(
    parameters: Iterable[nn.Parameter], beta1: float = 0.9, beta2: float = 0.98, epsilon: float = 1e-9
) -> torch.optim.Adam:
    """Adam with the paper's constants, fused into one kernel where the device has one.

    The learning rate is zero until the loop sets it for each update.
    """
    adam = partial(torch.optim.Adam, list(parameters), lr=0.0, betas=(beta1, beta2), eps=epsilon)
    try:
        return adam(fused=True)
    except RuntimeError:  # a device without the fused kernel
        return adam(foreach=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimiser's state as contiguous CPU tensors named parameter.quantity ("encoder.weight.exp_avg").

    Every process must call it; sharded state is gathered, and only the main process gets a full answer.
    """
    if not optimizer.state:
        return {}  # before the first applied update; asking torch would make it take an empty step
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: Any = get_optimizer_state_dict(model, optimizer, options=options).get("state", {})
    return {
        f"{parameter}.{quantity}": value.contiguous()
        for parameter, quantities in state.items()
        for quantity, value in quantities.items()
    }


def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave; every process must call it with all tensors.

    Raises UserError when they do not belong to the model's parameters.
    """
    if not tensors:
        return
    options = StateDictOptions(full_state_dict=True)
    groups: Any = get_optimizer_state_dict(model, optimizer, options=options)["param_groups"]
    state: Any = {name: {} for group in groups for name in group["params"]}
    for key, value in tensors.items():
        parameter, quantity = key.rsplit(".", 1)
        if parameter not in state:
            raise UserError(f"The checkpoint's optimiser state has {parameter}, which is not in the model.")
        state[parameter][quantity] = value
    if lost := [parameter for parameter, quantities in state.items() if not quantities]:
        raise UserError(f"The checkpoint's optimiser state lacks {lost[0]}.")
    set_optimizer_state_dict(model, optimizer, {"state": state, "param_groups": groups}, options=options)

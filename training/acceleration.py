"""Processes, devices and precision: everything that Accelerate is asked for, save the trackers."""

import importlib.util
import os
import sys
from contextlib import redirect_stdout

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, TorchDynamoPlugin

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.recipe import Recipe


def make_accelerator(recipe: Recipe) -> Accelerator:
    """The Accelerator of a run: devices and sharding as it was launched, precision as the recipe says.

    Raises UsageError for a tracker that is not installed, UserError where the launcher's processes do not see each
    other.
    """
    config = recipe.training
    for tracker in recipe.tracking.trackers:
        if importlib.util.find_spec(tracker) is None:
            raise UsageError(
                f"tracking.trackers names {tracker}, which is not installed; "
                f"pip install 'vanilla-transformer[{tracker}]', or take it out of the list."
            )
    AcceleratorState._reset_state()  # a second run in one Python process may have another precision
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(),  # said aloud, or torchrun's processes would not find each other
        mixed_precision="bf16" if config.precision == "bfloat16" else "no",
        dynamo_plugin=TorchDynamoPlugin(backend="inductor", dynamic=True) if config.compile else None,
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],  # one copy of the gradient
    )
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if accelerator.num_processes != launched:
        raise UserError(
            f"{launched} processes were launched but each sees {accelerator.num_processes}: every one would train a "
            "model of its own. On a machine without a GPU start them with torchrun."
        )
    return accelerator


def close_accelerator(accelerator: Accelerator) -> None:
    """Close the trackers and leave the group of processes."""
    with redirect_stdout(sys.stderr):
        accelerator.end_training()

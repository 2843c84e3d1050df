"""Processes, devices and precision: everything that Accelerate is asked for, save the trackers."""

import importlib.util
import os
import sys
from contextlib import redirect_stdout

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, TorchDynamoPlugin

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.allocator import keep_freed_memory
from vanilla_transformer.training.processes import hold_group, process_group, require_all
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
    if config.deterministic:
        # cuBLAS reads it when it starts; torch before 2.10 refuses to multiply without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if not torch.accelerator.is_available():
        keep_freed_memory()
    AcceleratorState._reset_state()  # a second run in one Python process may have another precision
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(),  # said aloud, or torchrun's processes would not find each other
        mixed_precision="bf16" if config.precision == "bfloat16" else "no",
        dynamo_plugin=TorchDynamoPlugin(backend="inductor", dynamic=True) if config.compile else None,
        kwargs_handlers=[
            DistributedDataParallelKwargs(gradient_as_bucket_view=True),  # one copy of the gradient
            process_group(config.process_timeout_minutes),
        ],
    )
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return require_all(accelerator)


def close_accelerator(accelerator: Accelerator) -> None:
    """Close the trackers and leave the group of processes."""
    hold_group()
    with redirect_stdout(sys.stderr):
        accelerator.end_training()

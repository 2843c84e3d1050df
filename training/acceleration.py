"""Processes, devices, precision and trackers: everything that Accelerate is asked for."""

import importlib.util
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, ProjectConfiguration, TorchDynamoPlugin

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.recipe import Recipe
from vanilla_transformer.training.run_folder import flat


def make_accelerator(recipe: Recipe, folder: Path) -> Accelerator:
    """The Accelerator of a run: devices and sharding as it was launched, precision and trackers as the recipe says.

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
        log_with=recipe.tracking.trackers or None,
        project_config=ProjectConfiguration(project_dir=str(folder), logging_dir=str(folder / "trackers")),
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


def start_trackers(accelerator: Accelerator, recipe: Recipe, run_name: str, step: int) -> None:
    """Open the recipe's trackers for the updates after `step`; every process calls it."""
    if not recipe.tracking.trackers:
        return
    # TensorBoard's hyper-parameters are numbers, booleans and text.
    config = {
        key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in flat(recipe).items()
    }
    with redirect_stdout(sys.stderr):  # trackio greets; stdout is for results
        accelerator.init_trackers(
            recipe.tracking.project,
            config=config,
            init_kwargs={
                "tensorboard": {"purge_step": step + 1},  # what a killed session logged after its last checkpoint
                "trackio": {"name": run_name, "resume": "allow"},
            },
        )


def close_accelerator(accelerator: Accelerator) -> None:
    """Close the trackers and leave the group of processes."""
    with redirect_stdout(sys.stderr):
        accelerator.end_training()

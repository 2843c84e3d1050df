"""Checkpoint averaging: the mean of the weights of several checkpoints of one run (section 6.1)."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vanilla_transformer.configuration.errors import UsageError, UserError, problems_error
from vanilla_transformer.training.checkpoint import TRAINING_FILES
from vanilla_transformer.training.durable import whole_folder
from vanilla_transformer.training.model_files import require_model_folder
from vanilla_transformer.training.write_errors import explained


def average_checkpoints(folders: list[str | Path], output: str | Path) -> Path:
    """Average the weights of model folders, such as RUN/checkpoints/step-N, into the new model folder `output`.

    Floating-point weights are summed in float64 and stored in their own type; every other file (tokenizer, generation
    config, code) comes from the last folder given. Returns `output`. Raises UsageError without folders or where
    `output` already exists, UserError where the folders do not hold the same model or `output` cannot be written.
    """
    output = Path(output)
    if not folders:
        raise UsageError("There is nothing to average: give at least one model folder.")
    if output.exists() and any(output.iterdir() if output.is_dir() else [output]):
        raise UsageError(f"{output} already exists; give the average a new folder.")
    with explained(f"The average {output}", "Make room or choose another folder; the checkpoints are untouched."):
        write_average([Path(folder) for folder in folders], output)
    return output


def write_average(folders: list[Path], output: Path) -> None:
    """As `average_checkpoints`, but an existing `output` is replaced once its successor is whole."""
    weight_files = _same_model(folders)
    with whole_folder(output) as temporary:
        for path in sorted(folders[-1].iterdir()):
            if path.is_file() and path.name not in {*TRAINING_FILES, *weight_files}:
                shutil.copyfile(path, temporary / path.name)
        for name in weight_files:
            save_file(_mean([folder / name for folder in folders]), temporary / name, metadata={"format": "pt"})


def _same_model(folders: list[Path]) -> list[str]:
    """The names of the weight files that all folders share; raises UserError naming each folder that differs."""
    problems: list[str] = []
    first: tuple[Path, dict, list[str]] | None = None
    for folder in folders:
        try:
            require_model_folder(folder)
        except UserError as error:
            problems.append(str(error))
            continue
        config = json.loads((folder / "config.json").read_bytes())
        # How the weights were stored or loaded says nothing about what they mean.
        config = {key: value for key, value in config.items() if key not in {"transformers_version", "_name_or_path"}}
        weights = sorted(p.name for p in folder.glob("*.safetensors") if p.name not in TRAINING_FILES)
        if first is None:
            first = (folder, config, weights)
            continue
        different = [key for key in sorted({*config, *first[1]}) if config.get(key) != first[1].get(key)]
        if different:
            problems.append(f"{folder}: its config differs from that of {first[0]} in {', '.join(different)}")
        if weights != first[2]:
            problems.append(f"{folder}: its weight files {weights} are not those of {first[0]}, {first[2]}")
    if problems or first is None:
        raise problems_error("averaging", problems, UserError)
    return first[2]


def _mean(paths: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of each tensor over files that must hold the same names, shapes and types; one tensor at a time."""
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        names = sorted(files[0].keys())
        for path, file in zip(paths, files, strict=True):
            if sorted(file.keys()) != names:
                odd = ", ".join(sorted(set(file.keys()) ^ set(names))[:3])
                raise UserError(f"{path} does not hold the same weights as {paths[0]}: {odd} differ.")
        return {name: _mean_tensor(name, [file.get_tensor(name) for file in files], paths) for name in names}


def _mean_tensor(name: str, tensors: list[torch.Tensor], paths: list[Path]) -> torch.Tensor:
    last = tensors[-1]
    for path, tensor in zip(paths, tensors, strict=True):
        if tensor.shape != last.shape or tensor.dtype != last.dtype:
            raise UserError(
                f"{name} is {tuple(tensor.shape)} {tensor.dtype} in {path} but {tuple(last.shape)} {last.dtype} in "
                f"{paths[-1]}; only checkpoints of one model can be averaged."
            )
    if not last.is_floating_point():
        return last  # counters and masks have no mean: the newest is kept
    total = tensors[0].to(torch.float64)
    for tensor in tensors[1:]:
        total = total + tensor
    return (total / len(tensors)).to(last.dtype)

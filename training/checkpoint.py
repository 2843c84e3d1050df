"""RUN/checkpoints/step-N: everything that an exact continuation needs, in files that execute nothing when loaded.

A checkpoint is a Hub-ready model folder and three files more: optimizer.safetensors, trainer_state.json and
manifest.json. The order of the data and every random number are functions of the seed and the update's number, so no
generator's state has to be kept.
"""

import errno
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, PreTrainedModel

from vanilla_transformer.configuration.errors import UserError, problems_error
from vanilla_transformer.training.durable import (
    MANIFEST,
    delete_folder,
    fault,
    listed,
    whole_folder,
    write_json,
    write_manifest,
)
from vanilla_transformer.training.write_errors import explained

logger = logging.getLogger(__name__)

CONFIG, OPTIMIZER, STATE = "config.json", "optimizer.safetensors", "trainer_state.json"
TRAINING_FILES = frozenset({OPTIMIZER, STATE, MANIFEST})  # what a checkpoint holds beside the model folder


# Of a model's config: how it was stored, not what it computes.
NOT_COMPARED = frozenset({"transformers_version", "_name_or_path", "architectures", "dtype", "auto_map"})


@dataclass
class TrainerState:
    """Where a run stands at an update boundary: JSON, the same on every process."""

    step: int = 0  # updates done, skipped ones included
    epoch: int = 1  # the epoch that the next update belongs to
    update: int = 0  # updates already done within that epoch
    cursor: dict[str, Any] | None = None  # where a streamed corpus is read on from
    parts: int = 1  # micro-batches that an update is split in, over all processes
    accumulation: int = 1  # training.gradient_accumulation_steps when `parts` was chosen
    data: str = ""  # fingerprint of the prepared data
    source_tokens: int = 0  # real tokens seen
    target_tokens: int = 0
    seconds: float = 0.0  # wall-clock time in the loop, validation and checkpoints included, over all sessions
    skipped: int = 0  # updates not applied because of non-finite numbers
    skipped_in_a_row: int = 0
    split_batches: int = 0  # times that a batch did not fit into the memory and was split
    best_score: float | None = None  # BLEU, or the loss negated; the model it belongs to is in RUN/best
    best_step: int = 0
    validations_since_best: int = 0
    log_size: int = 0  # bytes and rows of metrics.jsonl that belong to this state
    log_rows: int = 0
    interval_tokens: int = 0  # tokens and seconds since the last row of the log, for its tokens_per_second
    interval_seconds: float = 0.0
    pending_row: dict[str, Any] | None = None  # of an update whose validation a pre-emption put off


def save_checkpoint(
    folder: Path, state: TrainerState, optimizer: dict[str, torch.Tensor], save_model: Callable[[Path], None]
) -> None:
    """Write one checkpoint folder, whole or not at all; call on the main process only.

    Raises WriteError when the file system refuses: earlier checkpoints are untouched.
    """
    advice = "Earlier checkpoints are untouched; make room or mend the folder, then continue with --resume."
    with explained(f"The checkpoint {folder}", advice), whole_folder(folder) as temporary:
        save_model(temporary)
        save_file(optimizer, temporary / OPTIMIZER)
        write_json(temporary / STATE, asdict(state))
        write_manifest(temporary, step=state.step)
        _require(temporary, OPTIMIZER, STATE)


def save_best(folder: Path, step: int, scores: dict[str, float], save_model: Callable[[Path], None]) -> None:
    """Write the best model so far in the place of the former one; on the main process only, errors as above."""
    advice = (
        "The checkpoints and the former best model are untouched; make room or mend the folder, then continue with "
        "--resume."
    )
    with explained(f"The best model {folder}", advice), whole_folder(folder) as temporary:
        save_model(temporary)
        write_manifest(temporary, step=step, scores=scores)
        _require(temporary)


def step_of(folder: Path) -> int:
    """N of a folder named step-N, or -1 for any other name."""
    number = folder.name.removeprefix("step-")
    return int(number) if folder.name.startswith("step-") and number.isdecimal() else -1


def checkpoints(parent: Path) -> list[Path]:
    """The checkpoint folders under `parent`, oldest first, whole or not."""
    found = [path for path in parent.iterdir() if path.is_dir() and step_of(path) >= 0] if parent.is_dir() else []
    return sorted(found, key=step_of)


def begin_or_continue(
    source: Path | None, model: PreTrainedModel, data: str, accumulation: int, processes: int
) -> TrainerState:
    """The state to train on from: that of the checkpoint `source`, whose weights go into `model`, or a new run's.

    A run that goes on with another number of processes keeps its parts, and with them its dropout, where they can be
    shared out evenly. Raises UserError where the checkpoint belongs to other data or another model.
    """
    fresh = TrainerState(parts=processes * accumulation, accumulation=accumulation, data=data)
    if source is None:
        return fresh
    state = load_state(source)
    if state.data != data:
        raise UserError(
            f"The training data or the tokenizer is not what it was when {source} was saved: the run cannot be "
            "continued exactly. Put the files back, or start a new run in another folder."
        )
    load_weights(model, source)
    if state.accumulation != accumulation or state.parts % processes:
        state.parts, state.accumulation = fresh.parts, accumulation
    return state


def newest_whole(parent: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint under `parent` that is whole, and a sentence for each newer one that is not.

    None when there is no checkpoint at all. Raises UserError when there are some and none is whole.
    """
    skipped: list[str] = []
    for folder in reversed(checkpoints(parent)):
        if (reason := damage(folder)) is None:
            return folder, skipped
        skipped.append(f"{folder} is skipped: {reason}.")
    if skipped:
        raise problems_error("no whole checkpoint to continue from", skipped, UserError)
    return None, []


def damage(folder: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None: every file that would be read is as its manifest recorded it."""
    if (reason := fault(folder)) is not None:
        return reason
    lost = _unrecorded(folder, OPTIMIZER, STATE)
    return f"{lost} is not in its {MANIFEST}" if lost else None


def _unrecorded(folder: Path, *files: str) -> str | None:
    """The first of these files, of the config and of the weights that the manifest of `folder` does not name."""
    weights = [path.name for path in _weight_files(folder)] or ["model.safetensors"]
    recorded = listed(folder)
    return next((name for name in (*weights, CONFIG, *files) if name not in recorded), None)


def _require(folder: Path, *files: str) -> None:
    """Raise where a folder that has just been written lacks what it is for: somebody may have deleted a part of it."""
    if lost := _unrecorded(folder, *files):
        raise FileNotFoundError(errno.ENOENT, "File vanished while the folder was written", lost)


def load_state(folder: Path) -> TrainerState:
    """The trainer state of a checkpoint; raises UserError when another version of this package wrote it."""
    values = json.loads((folder / STATE).read_text(encoding="utf-8"))
    known = {field.name for field in fields(TrainerState)}
    if not isinstance(values, dict) or set(values) != known:
        raise UserError(f"{folder / STATE} was written by another version of this package; continue with that version.")
    return TrainerState(**values)


def load_weights(model: PreTrainedModel, folder: Path) -> None:
    """Copy the weights of a model folder into `model`, bit for bit; raises UserError when they are not its weights."""
    weights: dict[str, torch.Tensor] = {}
    for path in _weight_files(folder):
        weights.update(load_file(path))
    own = model.state_dict(keep_vars=True)
    # A tied weight is stored once, under one of its names.
    stored = {id(own[name]) for name in weights if name in own}
    problems = _other_settings(model.config, folder)
    problems += [f"{name}: not in the model" for name in weights if name not in own]
    problems += [f"{name}: missing" for name, value in own.items() if name not in weights and id(value) not in stored]
    problems += [
        f"{name}: {tuple(weights[name].shape)} in the checkpoint, {tuple(own[name].shape)} in the model"
        for name in weights
        if name in own and weights[name].shape != own[name].shape
    ]
    if problems:
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise problems_error(f"{folder} holds another model", [*problems[:5], *more], UserError)
    model.load_state_dict(weights, strict=False)


def _weight_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.safetensors") if path.name not in TRAINING_FILES)


def _other_settings(config: PreTrainedConfig, folder: Path) -> list[str]:
    """Where the config in a model folder differs from `config`: weights of the same shapes may mean something else."""
    kind = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("model_type")
    if kind != config.model_type:
        return [f"model_type: {kind} in the checkpoint, {config.model_type} in the model"]
    stored, own = type(config).from_pretrained(folder).to_dict(), config.to_dict()
    return [
        f"{name}: {stored.get(name)} in the checkpoint, {own.get(name)} in the model"
        for name in sorted({*stored, *own} - NOT_COMPARED)
        if stored.get(name) != own.get(name)
    ]


def load_optimizer(folder: Path) -> dict[str, torch.Tensor]:
    """The optimiser's tensors of a checkpoint, named parameter.quantity."""
    return load_file(folder / OPTIMIZER)


def scheduled(parent: Path, save_every: int) -> list[Path]:
    """The checkpoints that `save_every` asked for, oldest first; the one that ended or interrupted a run is not."""
    return [folder for folder in checkpoints(parent) if step_of(folder) % save_every == 0]


def prune(newest: Path, keep_last: int, save_every: int) -> None:
    """Keep `newest`, which has just been saved, and the `keep_last` scheduled ones up to it; delete older ones.

    One with a file missing or cut short is not counted, and nothing is deleted where `newest` is such a one. Later ones
    are not touched: they are damaged, or the run would have gone on from them. What cannot be deleted is only told.
    """
    try:
        for folder in _superseded(newest, keep_last, save_every):
            delete_folder(folder)
    except OSError as error:
        logger.warning(f"Older checkpoints in {newest.parent} could not be deleted: {error.strerror or error}.")


def _superseded(newest: Path, keep_last: int, save_every: int) -> list[Path]:
    older = [folder for folder in checkpoints(newest.parent) if step_of(folder) <= step_of(newest)]
    whole = [folder for folder in older if fault(folder, read=False) is None]
    if newest not in whole:
        logger.warning(f"{newest} was damaged after it was saved; older checkpoints are kept.")
        return []
    keep = {newest, *[folder for folder in whole if step_of(folder) % save_every == 0][-keep_last:]}
    oldest = min(step_of(folder) for folder in keep)
    # A disk that does not answer for a moment makes a whole one look damaged: only age deletes those.
    return [folder for folder in older if folder not in keep and (folder in whole or step_of(folder) < oldest)]

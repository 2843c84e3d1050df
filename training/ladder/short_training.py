"""Short trainings on tasks that are made up as they go, one distance an update, of every system and several seeds.

What it costs is the recurrence: a recurrent network takes the tokens of a source one after the other, so an update at
distance 512 takes about as long as ten at distance 16, and torch has fast kernels on a CPU for LSTMs only.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from vanilla_transformer.configuration.config_common import ConfigError
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.distance_task import SPECIAL_TOKENS, DistanceTask
from vanilla_transformer.training.ladder.systems import SYSTEMS, System, build, matched_config
from vanilla_transformer.training.optimizer import build_adam
from vanilla_transformer.training.schedule import lr_at

logger = logging.getLogger(__name__)

# A distance counts as learnt while the mean loss of its last batches is below: nearly every answer right and sure.
LEARNT_LOSS = 0.02
LAST_BATCHES = 4


@dataclass(frozen=True)
class ShortTraining:
    """How each system is trained; all of them alike."""

    # Parameters of each system, within 5%.
    parameters: int = 60_000
    # Layers a side, of recurrent systems as of the Transformer.
    layers: int = 1
    # Each seed is a training of its own: first weights and examples. The first one's choose the learning rate.
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    # Highest rates that are tried on the first seed; the one with the lower validation loss is taken for all seeds.
    learning_rates: list[float] = field(default_factory=lambda: [3e-3, 1e-2])
    warmup_steps: int = 100
    # Updates at most; a training ends before where every distance is learnt.
    updates: int = 4000
    # Examples of an update, fewer where that many would have more than `source_tokens` tokens.
    examples: int = 64
    source_tokens: int = 8192
    # Gradients are scaled down to this norm: those of recurrent networks explode at times (Pascanu et al. 2013).
    max_grad_norm: float = 1.0

    def problems(self) -> list[str]:
        positive = ("parameters", "layers", "updates", "examples", "source_tokens", "warmup_steps", "max_grad_norm")
        found = [f"{name} = {getattr(self, name)}: must be above 0" for name in positive if getattr(self, name) <= 0]
        for name in ("seeds", "learning_rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                found.append(f"{name} = {values}: name at least one, and none twice")
        found += [f"seeds = {seed}: must be at least 0" for seed in self.seeds if seed < 0]
        found += [f"learning_rates = {rate}: must be above 0" for rate in self.learning_rates if rate <= 0]
        return found


def config_for(system: System, settings: ShortTraining, vocab_size: int) -> PreTrainedConfig:
    """The system's config at the settings' size.

    Recurrent encoders read forward only. A second direction would read the far token last, and no distance be left to
    measure. Without dropout and smoothing a loss of zero is possible, and stands for a solved task.
    """
    layers = {"num_encoder_layers": settings.layers, "num_decoder_layers": settings.layers}
    return matched_config(
        system,
        settings.parameters,
        vocab_size=vocab_size,
        base={**layers, "num_heads": 4, "dropout": 0.0, "label_smoothing": 0.0},  # d_ff is 4 d_model, as the paper's
        recurrent={**layers, "bidirectional": False},
        **SPECIAL_TOKENS,
    )


def size_problems(settings: ShortTraining, vocab_size: int) -> list[str]:
    """What keeps a system from the settings' size, so that it is known before the first training."""
    found = []
    for system in SYSTEMS.values():
        try:
            config_for(system, settings, vocab_size)
        except ConfigError as error:
            found.append(f"training.parameters = {settings.parameters}: {error}")
    return found


def new_model(system: System, settings: ShortTraining, vocab_size: int, seed: int) -> PreTrainedModel:
    """The system with the first weights of a seed."""
    torch.manual_seed(seed)
    return build(config_for(system, settings, vocab_size))


def train(
    model: PreTrainedModel, tasks: Sequence[DistanceTask], settings: ShortTraining, seed: int, learning_rate: float
) -> dict[str, Any]:
    """Train on examples of all tasks and distances; says how it went, as the columns of a row.

    An update takes one task and one distance. Distance k is drawn with a probability in proportion to k^-1/2: short
    ones come up more often, as near dependencies do in text, and cost less.
    """
    rng = np.random.default_rng((seed,))
    adam = build_adam(model.parameters())
    last = {(task, k): deque[float](maxlen=LAST_BATCHES) for task in tasks for k in task.distances}
    began, step = time.perf_counter(), 0
    model.train()
    while step < settings.updates and not _is_learnt(last):
        step += 1
        task = tasks[int(rng.integers(len(tasks)))]
        odds = np.maximum(task.distances, 1) ** -0.5
        distance = int(rng.choice(task.distances, p=odds / odds.sum()))
        rows = max(1, min(settings.examples, settings.source_tokens // task.source_tokens(distance)))
        examples = task.examples("train", distance, rows, rng)
        loss = model(input_ids=examples.source_BS, labels=examples.answer_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in adam.param_groups:
            group["lr"] = lr_at(step, model.config.d_model, settings.warmup_steps, learning_rate)
        adam.step()
        adam.zero_grad()
        last[task, distance].append(loss.item())
    return {
        "parameters": model.num_parameters(),
        "d_model": model.config.d_model,
        "updates": step,
        "learnt": _is_learnt(last),
        "seconds": round(time.perf_counter() - began, 2),
        "validation_loss": validation_loss(model, tasks),
    }


@torch.no_grad()
def validation_loss(model: PreTrainedModel, tasks: Sequence[DistanceTask], rows: int = 32) -> float:
    """The mean loss per answered token over tasks and distances, on `rows` examples of each."""
    rng = np.random.default_rng(0)
    model.eval()
    losses = []
    for task in tasks:
        for distance in task.distances:
            examples = task.examples("validation", distance, rows, rng)
            losses.append(model(input_ids=examples.source_BS, labels=examples.answer_BT).loss.item())
    return fmean(losses)


def _is_learnt(last: Mapping[Any, deque[float]]) -> bool:
    return all(len(losses) == LAST_BATCHES and fmean(losses) < LEARNT_LOSS for losses in last.values())


def run_trainings(
    settings: ShortTraining,
    systems: Sequence[System],
    cells: Cells,
    training: Callable[[System, int, float], Mapping[str, Any]],
) -> None:
    """Make and keep every training that is not in `cells`: each rate on the first seed, the better on the others.

    `training` takes a system, a seed and a rate, and returns a row with its `validation_loss`.
    """
    first, *others = settings.seeds

    def cell(system: System, seed: int, rate: float) -> None:
        key = f"{system.name}/seed {seed}/rate {rate:g}"
        if not cells.done(key):
            row = training(system, seed, rate)
            cells.put(key, {"system": system.name, "seed": seed, "learning_rate": rate, **row})
            logger.info("%s: %d updates, validation loss %.3f", key, row["updates"], row["validation_loss"])

    for system in systems:
        for rate in settings.learning_rates:
            cell(system, first, rate)
        best = best_rates(cells.rows())[system.name]
        for seed in others:
            cell(system, seed, best)


def best_rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By system the rate with the lowest validation loss among its trainings with its first seed."""
    best: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if "learning_rate" in row:
            before = best.setdefault(row["system"], row)
            if row["seed"] == before["seed"] and row["validation_loss"] < before["validation_loss"]:
                best[row["system"]] = row
    return {system: row["learning_rate"] for system, row in best.items()}


def counted(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """By system the trainings that count, one a seed: those with its best rate."""
    best = best_rates(rows)
    found: dict[str, list[Mapping[str, Any]]] = {system: [] for system in best}
    for row in rows:
        if "learning_rate" in row and row["learning_rate"] == best[row["system"]]:
            found[row["system"]].append(row)
    return found

"""Long-range dependency, in noise: who still knows a value that stands k tokens back, and why.

Three measurements beside one another: how often a trained system gives the value back, how much of the answer's error
reaches the value, before training and after it, and how many operations lie between them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.distance_exhibits import accuracy_plot, accuracy_table, trainings_table
from vanilla_transformer.training.ladder.distance_task import accuracy_by_distance
from vanilla_transformer.training.ladder.exhibits import Plot, Series, Table
from vanilla_transformer.training.ladder.gradient_reach import gradient_by_distance
from vanilla_transformer.training.ladder.path_length import shortest_paths
from vanilla_transformer.training.ladder.recall_task import FOLDS, RecallTask
from vanilla_transformer.training.ladder.short_training import (
    ShortTraining,
    counted,
    new_model,
    run_trainings,
    size_problems,
    train,
)
from vanilla_transformer.training.ladder.systems import System

TITLE = "Long-range dependency: a value k tokens back"
# What is counted on the shortest way, and whereto.
WAYS = {
    ("operations", "encoded"): "operations to the encoder's output at the last token",
    ("products", "encoded"): "matrix products to the encoder's output at the last token",
    ("operations", "answer"): "operations to the answer",
    ("products", "answer"): "matrix products to the answer",
}


@dataclass(frozen=True)
class RecallStudy:
    """The task, and how it is learnt."""

    training: ShortTraining = field(default_factory=ShortTraining)
    # How many tokens back from the source's last one the value stands; all of them behind it are noise.
    distances: list[int] = field(default_factory=lambda: [4, 8, 16, 32, 64, 128, 256, 512])
    # Different values; one in so many answers is right by chance.
    values: int = 16
    # Different noise tokens, and how many of them stand before the value at most.
    noise: int = 16
    most_before: int = 16
    # Test questions at each distance.
    questions: int = 500
    # Validation examples at each distance for the gradient.
    gradient_examples: int = 16

    def problems(self) -> list[str]:
        counts = ("values", "noise", "questions", "gradient_examples")
        found = [f"{name} = {getattr(self, name)}: must be at least 1" for name in counts if getattr(self, name) < 1]
        if self.most_before < 0:
            found.append(f"most_before = {self.most_before}: must be at least 0")
        if not self.distances or len(set(self.distances)) < len(self.distances) or min(self.distances) < 1:
            found.append(f"distances = {self.distances}: name at least one, none twice, each at least 1")
        elif self.values - 1 + (self.noise - 1) * min(self.distances) < FOLDS - 1:
            found.append(f"noise = {self.noise}: too few different sources at the least distance to keep splits apart")
        return found or size_problems(self.training, self.task().vocab_size)

    def task(self) -> RecallTask:
        return RecallTask(tuple(sorted(self.distances)), self.values, self.noise, self.most_before)


def run(settings: RecallStudy, systems: Sequence[System], folder: Path) -> None:
    """Make every cell that folder/recall.json lacks: a training each, and each system's shortest ways."""
    cells, task = Cells(folder / "recall.json", asdict(settings)), settings.task()

    def training(system: System, seed: int, learning_rate: float) -> dict[str, Any]:
        model = new_model(system, settings.training, task.vocab_size, seed)
        before = gradient_by_distance(model, task, settings.gradient_examples)
        row = train(model, [task], settings.training, seed, learning_rate)
        return {
            **row,
            "chance": 1 / settings.values,
            "accuracy": accuracy_by_distance(model, task, "test", settings.questions),
            "gradient_before": before,
            "gradient_after": gradient_by_distance(model, task, settings.gradient_examples),
        }

    for system in systems:
        if not cells.done(key := f"{system.name}/shortest ways"):
            cells.put(key, {"system": system.name, "ways": _ways(system, settings, task)})
    run_trainings(settings.training, systems, cells, training)


def _ways(system: System, settings: RecallStudy, task: RecallTask) -> list[dict[str, Any]]:
    """The shortest ways from the value, counted in one source of each distance."""
    model = new_model(system, settings.training, task.vocab_size, settings.training.seeds[0])
    found = []
    for distance in task.distances:
        source_1S = task.examples("validation", distance, 1, np.random.default_rng(0)).source_BS
        position = source_1S.shape[1] - 1 - distance
        for unit in ("operations", "products"):
            for end, length in shortest_paths(model, source_1S, position, unit).items():
                found.append({"distance": distance, "unit": unit, "end": end, "length": length})
    return found


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Accuracy, gradient and shortest ways, each a column a distance; and the trainings."""
    made = []
    if trainings := counted(rows):
        what = "Share of right answers to test questions; k noise tokens stand between the value and the source's end."
        made.append(accuracy_table(rows, "accuracy", "Right answers, k tokens back", "k", what))
        distances = sorted({one["distance"] for kept in trainings.values() for row in kept for one in row["accuracy"]})
        lines = [
            [when, system, *(f"{_reach(kept, column, k):.1e}" for k in distances)]
            for column, when in (("gradient_before", "before"), ("gradient_after", "after"))
            for system, kept in trainings.items()
        ]
        title = "Gradient that reaches the value, before training and after it"
        made.append(Table(title, ["training", "system", *(f"k = {k}" for k in distances)], lines, _REACH))
    if ways := [row for row in rows if "ways" in row]:
        made.append(_ways_table(ways))
    return made + ([trainings_table(rows)] if trainings else [])


_REACH = (
    "Norm of the loss' gradient in the value's embedding, for each unit of its norm in the scores of the vocabulary: "
    "geometric mean over examples and seeds, in double precision."
)


def _ways_table(ways: Sequence[Mapping[str, Any]]) -> Table:
    found = {(row["system"], one["unit"], one["end"], one["distance"]): one for row in ways for one in row["ways"]}
    distances = sorted({distance for _, _, _, distance in found})
    lines = []
    for (unit, end), title in WAYS.items():
        for row in ways:
            lengths = [found[row["system"], unit, end, k]["length"] for k in distances]
            lines.append([title, row["system"], *lengths])
    note = (
        "Counted in a traced run of the model itself. Whatever computes is an operation (a product, a sum, a gate, an "
        "activation, a softmax); moving numbers is none. A way through an LSTM's or a GRU's memory has gates and sums "
        "at every step, but no product; attention shortens the way to the answer, not that between two source tokens."
    )
    return Table("Shortest way from the value", ["counted", "system", *(f"k = {k}" for k in distances)], lines, note)


def plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Accuracy, gradient before and after training, and operations, against distance."""
    made, x_label = [], "k, tokens back from the source's last one"
    if trainings := counted(rows):
        chance = next(row["chance"] for kept in trainings.values() for row in kept)
        made.append(accuracy_plot(rows, "accuracy", "accuracy", "A value k tokens back", x_label, chance))
        for column, when in (("gradient_before", "before"), ("gradient_after", "after")):
            series = []
            for system, kept in trainings.items():
                distances = [one["distance"] for one in kept[0][column]]
                series.append(Series(system, distances, [_reach(kept, column, k) for k in distances]))
            title, y_label = f"Gradient that reaches the value, {when} training", "per unit of it in the scores"
            made.append(Plot(f"gradient-{when}", title, x_label, y_label, series, log_x=True, log_y=True, note=_REACH))
    for (unit, end), title in WAYS.items():
        series = []
        for row in rows:
            kept = [one for one in row.get("ways", []) if (one["unit"], one["end"]) == (unit, end)]
            if kept:
                distances = [one["distance"] for one in kept]
                series.append(Series(row["system"], distances, [one["length"] for one in kept]))
        if series and unit == "operations":
            name, label = f"way-to-{end}", "operations on the shortest way"
            made.append(Plot(name, f"Shortest way: {title}", x_label, label, series, log_x=True, log_y=True))
    return made


def _reach(trainings: Sequence[Mapping[str, Any]], column: str, distance: int) -> float:
    found = [one["reach"] for row in trainings for one in row[column] if one["distance"] == distance]
    return math.exp(fmean(math.log(reach) for reach in found))

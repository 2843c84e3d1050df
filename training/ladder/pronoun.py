"""Long-range dependency, in language: who is "he", who is "她", when the sentences between have grown."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.distance_exhibits import accuracy_plot, accuracy_table, trainings_table
from vanilla_transformer.training.ladder.distance_task import PAD, accuracy_by_distance
from vanilla_transformer.training.ladder.exhibits import Plot, Table
from vanilla_transformer.training.ladder.pronoun_task import LANGUAGES, PronounTask
from vanilla_transformer.training.ladder.short_training import (
    ShortTraining,
    new_model,
    run_trainings,
    size_problems,
    train,
)
from vanilla_transformer.training.ladder.systems import System

TITLE = "Long-range dependency: who is he?"
_NAMES = {"en": "English", "zh": "Chinese"}
_CHANCE = 0.5  # of two people that were named


@dataclass(frozen=True)
class PronounStudy:
    """The stories, and how they are learnt."""

    training: ShortTraining = field(default_factory=lambda: ShortTraining(updates=3000))
    # Sentences about other things between the one that names two people and the one with the pronoun.
    distances: list[int] = field(default_factory=lambda: [0, 1, 2, 4, 8, 16])
    # Test questions at each distance in each language, about pairs of people that no training story has; and as many
    # about pairs that training stories have, which tell what is forgotten from what was learnt by heart.
    questions: int = 400

    def problems(self) -> list[str]:
        found = [] if self.questions >= 1 else [f"questions = {self.questions}: must be at least 1"]
        if not self.distances or len(set(self.distances)) < len(self.distances) or min(self.distances) < 0:
            found.append(f"distances = {self.distances}: name at least one, none twice, each at least 0")
        return found or size_problems(self.training, self.tasks()[LANGUAGES[0]].vocab_size)

    def tasks(self) -> dict[str, PronounTask]:
        return {language: PronounTask(language, tuple(sorted(self.distances))) for language in LANGUAGES}


def run(settings: PronounStudy, systems: Sequence[System], folder: Path) -> None:
    """Make every training that folder/pronoun.json lacks; each learns both languages at once."""
    cells, tasks = Cells(folder / "pronoun.json", asdict(settings)), settings.tasks()

    def training(system: System, seed: int, learning_rate: float) -> dict[str, Any]:
        model = new_model(system, settings.training, tasks[LANGUAGES[0]].vocab_size, seed)
        row = train(model, list(tasks.values()), settings.training, seed, learning_rate)
        for language, task in tasks.items():
            row[language] = accuracy_by_distance(model, task, "test", settings.questions)
            row[f"{language}_known"] = accuracy_by_distance(model, task, "train", settings.questions)
        return row

    if not cells.done("lengths"):
        cells.put("lengths", {"lengths": {language: _lengths(task) for language, task in tasks.items()}})
    run_trainings(settings.training, systems, cells, training)


def _lengths(task: PronounTask) -> list[float]:
    """Mean tokens of a source at each distance."""
    rng = np.random.default_rng(0)
    examples = [task.examples("test", distance, 100, rng).source_BS for distance in task.distances]
    return [source_BS.ne(PAD).sum().item() / len(source_BS) for source_BS in examples]


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Accuracy in each language, a column a distance; and the trainings."""
    if not any("learning_rate" in row for row in rows):
        return []
    lengths = next(row["lengths"] for row in rows if "lengths" in row)
    made = []
    for language, name in _NAMES.items():
        tokens = ", ".join(f"{mean:.0f}" for mean in lengths[language])
        where = (
            f"k sentences stand between the names and the pronoun, and a source has {tokens} tokens on the mean. One "
            "of the two people, taken by chance, is right in half of the stories."
        )
        for column, whom, note in (
            (language, "new pairs", "Share of right names for pairs of people that no training story has; "),
            (f"{language}_known", "known pairs", "The same for pairs of the training stories, mostly in new stories; "),
        ):
            title = f"{name}: right names, k sentences back, {whom}"
            made.append(accuracy_table(rows, column, title, "k", note + where))
    return [*made, trainings_table(rows)]


def plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Accuracy against a source's tokens in each language."""
    if not any("learning_rate" in row for row in rows):
        return []
    lengths = next(row["lengths"] for row in rows if "lengths" in row)
    label = "mean tokens of a source, with {} sentences between"
    made = []
    for language, name in _NAMES.items():
        distances = [one["distance"] for one in next(row[language] for row in rows if language in row)]
        x_label = label.format(", ".join(map(str, distances)))
        places = dict(zip(distances, lengths[language], strict=True))
        for column, whom in ((language, "new pairs"), (f"{language}_known", "known pairs")):
            title, plot = f"Who is he? {name}, {whom} of people", column.replace("_", "-")
            made.append(accuracy_plot(rows, column, plot, title, x_label, _CHANCE, places))
    return made

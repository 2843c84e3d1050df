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
from vanilla_transformer.training.ladder.short_training import ShortTraining, new_model, run_trainings, train
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
    # Test questions at each distance in each language, about pairs of people that no training story has.
    questions: int = 400

    def problems(self) -> list[str]:
        found = [] if self.questions >= 1 else [f"questions = {self.questions}: must be at least 1"]
        if not self.distances or len(set(self.distances)) < len(self.distances) or min(self.distances) < 0:
            found.append(f"distances = {self.distances}: name at least one, none twice, each at least 0")
        return found

    def tasks(self) -> dict[str, PronounTask]:
        return {language: PronounTask(language, tuple(sorted(self.distances))) for language in LANGUAGES}


def run(settings: PronounStudy, systems: Sequence[System], folder: Path) -> None:
    """Make every training that folder/pronoun.json lacks; each learns both languages at once."""
    cells, tasks = Cells(folder / "pronoun.json", asdict(settings)), settings.tasks()

    def training(system: System, seed: int, learning_rate: float) -> dict[str, Any]:
        model = new_model(system, settings.training, tasks[LANGUAGES[0]].vocab_size, seed)
        row = train(model, list(tasks.values()), settings.training, seed, learning_rate)
        accuracy = {
            language: accuracy_by_distance(model, task, "test", settings.questions) for language, task in tasks.items()
        }
        return {**row, **accuracy}

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
        note = (
            "Share of right names for pairs of people that no training story has; k sentences stand between the names "
            f"and the pronoun, and a source has {tokens} tokens on the mean. One in two would be right by chance."
        )
        made.append(accuracy_table(rows, language, f"{name}: right names, k sentences back", "k", note))
    return [*made, trainings_table(rows)]


def plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Accuracy against a source's tokens in each language."""
    if not any("learning_rate" in row for row in rows):
        return []
    lengths = next(row["lengths"] for row in rows if "lengths" in row)
    label = "tokens of the source, on the mean, with {} sentences between the names and the pronoun"
    made = []
    for language, name in _NAMES.items():
        distances = [one["distance"] for one in next(row[language] for row in rows if language in row)]
        x_label = label.format(", ".join(map(str, distances)))
        places = dict(zip(distances, lengths[language], strict=True))
        made.append(accuracy_plot(rows, language, language, f"Who is he? {name}", x_label, _CHANCE, places))
    return made

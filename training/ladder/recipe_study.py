"""What the studies have in common whose cells are training runs on one corpus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vanilla_transformer.training.ladder.corpus_runs import merged, section_problems


@dataclass(frozen=True)
class RecipeStudy:
    """The recipe that all runs of a study share, section by section."""

    data: dict[str, Any]
    tokenizer: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    # The Transformer's fields.
    transformer: dict[str, Any] = field(default_factory=dict)
    # Each a run of its own: first weights, dropout and order of batches.
    seeds: list[int] = field(default_factory=lambda: [1])

    def sections(self) -> dict[str, dict[str, Any]]:
        """The recipe, but for the model."""
        names = ("data", "tokenizer", "training", "generation", "evaluation")
        return merged({name: getattr(self, name) for name in names})

    def problems(self) -> list[str]:
        found = section_problems({**self.sections(), "model": {"preset": None, **self.transformer}})
        # The recipe's section `model` is `transformer` here.
        found = [f"transformer.{line.removeprefix('model.')}" if line.startswith("model.") else line for line in found]
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            found.append(f"seeds = {self.seeds}: name at least one, and none twice")
        return found

    def recipe_decided(self) -> dict[str, Any]:
        """What every finished cell depends on; the data may have moved, and a seed may be added later."""
        sections = self.sections()
        sections["data"].pop("corpus", None)
        return {**sections, "transformer": self.transformer}


def best_loss(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The lowest validation loss in a run's log; None where no validation gave a number."""
    losses = [row["validation_loss"] for row in rows if row.get("validation_loss") is not None]
    return min(losses, default=None)

"""How the loss falls with parameters and with data, and the power laws that fit it."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.corpus_runs import SharedCorpus, log_rows, own_rate, rate_problems, trained
from vanilla_transformer.training.ladder.exhibits import Plot, Series, Table
from vanilla_transformer.training.ladder.recipe_study import RecipeStudy, best_loss
from vanilla_transformer.training.ladder.systems import SYSTEMS, System, count_parameters, matched_config
from vanilla_transformer.training.recipe_values import hint

TITLE = "Scaling: loss against parameters and data"


@dataclass(frozen=True)
class ScalingStudy(RecipeStudy):
    """The recipe, with as many updates at every size and on every share of the data, and what is varied."""

    # Which of the ladder's systems.
    systems: list[str] = field(default_factory=lambda: ["lstm-attention", "transformer"])
    # Parameters, embeddings included, on all the data.
    parameters: list[int] = field(default_factory=lambda: [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000])
    # Shares of the training pairs, from the first pair on, at `data_parameters` parameters.
    data_fractions: list[float] = field(default_factory=lambda: [0.0625, 0.25, 1.0])
    data_parameters: int = 1_000_000
    # Highest rates of systems, by name, that learn better with another one than training.learning_rate.
    learning_rates: dict[str, Any] = field(default_factory=dict)
    # Fields that all recurrent systems have.
    recurrent: dict[str, Any] = field(default_factory=dict)

    def problems(self) -> list[str]:
        names = list(SYSTEMS)
        found = super().problems() + rate_problems(self.learning_rates)
        found += [
            f"systems = {name}: unknown{hint(name, names, names)}" for name in self.systems if name not in SYSTEMS
        ]
        found += [f"parameters = {n}: must be at least 1" for n in (*self.parameters, self.data_parameters) if n < 1]
        found += [f"data_fractions = {s}: must be above 0 and at most 1" for s in self.data_fractions if not 0 < s <= 1]
        for name in ("systems", "parameters", "data_fractions"):
            if not getattr(self, name):
                found.append(f"{name} = []: name at least one")
        return found

    def cells(self) -> list[tuple[int, float]]:
        """Parameters and share of the data of every run of a system and a seed, each once."""
        sizes = [(n, 1.0) for n in self.parameters]
        return list(dict.fromkeys(sizes + [(self.data_parameters, share) for share in self.data_fractions]))

    def decided(self) -> dict[str, Any]:
        """What a finished cell depends on; sizes, shares, systems and seeds may be added later."""
        return {**self.recipe_decided(), "recurrent": self.recurrent, "learning_rates": self.learning_rates}


def run(settings: ScalingStudy, systems: Sequence[System], folder: Path) -> None:
    """Train every size, share and seed that folder/scaling.json lacks, in runs/scaling.

    Of the ladder's systems those that the settings name too.
    """
    cells = Cells(folder / "scaling.json", settings.decided())
    missing = {
        (system, asked, share, seed): key
        for seed in settings.seeds
        for system in systems
        if system.name in settings.systems
        for asked, share in settings.cells()
        if not cells.done(key := f"{system.name}/{asked} parameters/{share:g} of the data/seed {seed}")
    }
    if not missing:
        return
    runs = folder / "runs" / "scaling"
    corpus = SharedCorpus.of(settings.sections(), runs)
    configs = {  # what is wrong, before the work
        (system, asked): matched_config(
            system,
            asked,
            vocab_size=len(corpus.tokenizer),
            base=settings.transformer,
            recurrent=settings.recurrent,
            **corpus.special_tokens,
        )
        for system, asked, _, _ in missing
    }
    for (system, asked, share, seed), key in missing.items():
        place = runs / f"{system.name}-{asked}-{share:g}-seed{seed}"
        training = {"seed": seed, **own_rate(settings.learning_rates, system)}
        row = _trained(corpus, configs[system, asked], place, share, training)
        cells.put(key, {"system": system.name, "asked": asked, **row})


def _trained(
    corpus: SharedCorpus, config: PreTrainedConfig, place: Path, share: float, training: dict[str, Any]
) -> dict[str, Any]:
    """Train one model on a share of the data and tell its losses."""
    # Validated by loss alone: test files that the recipe names are not translated.
    data: dict[str, Any] = {"test": None}
    if share < 1:
        data["limit"] = max(1, round(share * len(corpus.prepared.train)))
    finished = trained(corpus, config, place, data=data, training=training, evaluation={"decode": False})
    rows = log_rows(finished)
    manifest = json.loads(finished.manifest.read_text(encoding="utf-8"))
    return {
        "parameters": count_parameters(config),
        "embedding_parameters": config.vocab_size * config.d_model,
        "d_model": config.d_model,
        "share": share,
        "pairs": manifest["data"]["counters"]["train"]["kept"],
        "seed": training["seed"],
        "learning_rate": max(row["learning_rate"] for row in rows),
        "updates": rows[-1]["step"],
        "validation_loss": best_loss(rows),
        "last_validation_loss": [row["validation_loss"] for row in rows if "validation_loss" in row][-1],
        "training_seconds": rows[-1]["seconds"],
    }


@dataclass(frozen=True)
class PowerLaw:
    """loss = factor * x ** exponent; the exponent's standard error is None where two points leave none."""

    factor: float
    exponent: float
    standard_error: float | None

    def at(self, x: float) -> float:
        return self.factor * x**self.exponent


def fitted(points: Sequence[tuple[float, float]]) -> PowerLaw | None:
    """The power law through (x, y) by least squares on their logarithms; None of fewer than two different x.

    The standard error is that of the slope of a line: sqrt(residual sum of squares / (n - 2) / sum (x - mean)^2).
    """
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    if len(set(xs)) < 2:
        return None
    slope, intercept = statistics.linear_regression(xs, ys)
    mean = statistics.fmean(xs)
    residuals = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    spread, free = sum((x - mean) ** 2 for x in xs), len(xs) - 2
    return PowerLaw(math.exp(intercept), slope, math.sqrt(residuals / free / spread) if free > 0 else None)


def _size_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["share"] == 1]


def _data_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs of the one size that was trained on parts of the data."""
    sizes = {row["asked"] for row in rows if row["share"] != 1}
    return [row for row in rows if row["asked"] in sizes]


# What is varied: the rows of it, the key of its value, its name.
_VARIED = (
    ("parameters", _size_rows, "parameters", "parameters"),
    ("data", _data_rows, "pairs", "training pairs"),
)


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The losses by size and by amount of data, and the exponents."""
    made, fits = [], []
    for name, chosen, key, label in _VARIED:
        of_kind = [row for row in chosen(rows) if row["validation_loss"] is not None]
        if not of_kind:
            continue
        lines = [
            [
                row["system"],
                row[key],
                row["embedding_parameters"],
                row["d_model"],
                row["seed"],
                row["updates"],
                row["validation_loss"],
                row["last_validation_loss"],
                row["training_seconds"],
            ]
            for row in sorted(of_kind, key=lambda row: (row["system"], row[key], row["seed"]))
        ]
        columns = [
            "system",
            label,
            "of them embeddings" if name == "parameters" else "parameters of embeddings",
            "d_model",
            "seed",
            "updates",
            "lowest validation loss",
            "last one",
            "training s",
        ]
        note = "Nats per target token, without label smoothing; every run has the same number of updates."
        made.append(Table(f"Validation loss against {name}", columns, lines, note))
        for system in dict.fromkeys(row["system"] for row in of_kind):
            law = fitted(_points(of_kind, system, key))
            if law is not None:
                fits.append([system, label, len(_points(of_kind, system, key)), law.exponent, law.standard_error])
    if fits:
        note = (
            "loss = a x^b by least squares on the logarithms, without a loss that remains; the uncertainty is the "
            "slope's standard error. Runs of this length are far from the end of training: the exponents describe "
            "these runs and are no law of the systems."
        )
        made.append(Table("Fitted power laws", ["system", "x", "runs", "exponent b", "standard error"], fits, note))
    return made


def plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """The losses, one point a run or the mean of several seeds, with the fitted lines."""
    made = []
    for name, chosen, key, label in _VARIED:
        of_kind = [row for row in chosen(rows) if row["validation_loss"] is not None]
        series, fits = [], []
        for system in dict.fromkeys(row["system"] for row in of_kind):
            points = _points(of_kind, system, key)
            xs = sorted({x for x, _ in points})
            means = [statistics.fmean(y for x, y in points if x == at) for at in xs]
            series.append(Series(system, xs, means))
            if (law := fitted(points)) is not None:
                error = "" if law.standard_error is None else f" ± {law.standard_error:.3f}"
                text = f"{system}: b = {law.exponent:.3f}{error}"
                fits.append(Series(text, xs, [law.at(x) for x in xs], is_reference=True))
        if series:
            title = f"Validation loss against {label}"
            made.append(Plot(name, title, label, "validation loss", [*series, *fits], log_x=True, log_y=True))
    return made


def _points(rows: Sequence[Mapping[str, Any]], system: str, key: str) -> list[tuple[float, float]]:
    return [(row[key], row["validation_loss"]) for row in rows if row["system"] == system]

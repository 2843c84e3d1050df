"""What each part of the block is for: the Transformer without it, trained by the same recipe from the same weights."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.ladder.ablated_models import ABLATIONS, as_the_transformer
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.corpus_runs import SharedCorpus, log_rows, scores_on_test, trained
from vanilla_transformer.training.ladder.exhibits import Plot, Series, Table
from vanilla_transformer.training.ladder.recipe_study import RecipeStudy, best_loss
from vanilla_transformer.training.ladder.systems import System
from vanilla_transformer.training.recipe_values import hint
from vanilla_transformer.training.run_folder import RunFolder

TITLE = "Ablations: what each part of the block is for"


@dataclass(frozen=True)
class AblationsStudy(RecipeStudy):
    """The recipe, tuned for the whole model and not for what is left of it, and the parts that are taken away."""

    ablations: list[str] = field(default_factory=lambda: list(ABLATIONS))

    def problems(self) -> list[str]:
        names = list(ABLATIONS)
        unknown = [
            f"ablations = {name}: unknown{hint(name, names, names)}" for name in self.ablations if name not in ABLATIONS
        ]
        return super().problems() + unknown


def run(settings: AblationsStudy, systems: Sequence[System], folder: Path) -> None:
    """Train and score every ablation and seed that folder/ablations.json lacks, in runs/ablations/NAME-seedN."""
    cells = Cells(folder / "ablations.json", settings.recipe_decided())
    missing = {
        (name, seed): key
        for seed in settings.seeds
        for name in settings.ablations
        if not cells.done(key := f"{name}/seed {seed}")
    }
    if not missing:
        return
    runs = folder / "runs" / "ablations"
    corpus = SharedCorpus.of(settings.sections(), runs)
    for (name, seed), key in missing.items():
        place = runs / f"{''.join(c if c.isalnum() else '-' for c in name)}-seed{seed}"
        cells.put(key, {"ablation": name, "seed": seed, **_scored(corpus, name, seed, place, settings)})


def _scored(corpus: SharedCorpus, name: str, seed: int, place: Path, settings: AblationsStudy) -> dict[str, Any]:
    """Train one model; a training that ends because nothing in it is a finite number any more is a result too."""
    kind, fields = ABLATIONS[name]
    config = VanillaTransformerConfig(
        **{**settings.transformer, **fields, "vocab_size": len(corpus.tokenizer), **corpus.special_tokens}
    )
    row: dict[str, Any] = {"parameters": kind(config).num_parameters()}
    with as_the_transformer(kind):
        try:
            finished = trained(corpus, config, place, training={"seed": seed})
        except UserError:
            if (step := _diverged_at(RunFolder(place))) is None:
                raise
            return {**row, "updates": step, "diverged": True, "validation_loss": None, "bleu": None}
    rows = log_rows(finished)
    losses = [row["loss"] for row in rows if row["loss"] is not None]
    return {
        **row,
        "updates": rows[-1]["step"],
        "diverged": False,
        "training_loss": losses[-1],
        "validation_loss": best_loss(rows),
        "bleu": scores_on_test(finished)["scores"]["bleu"]["score"],
        "signature": scores_on_test(finished)["scores"]["bleu"]["signature"],
        "training_seconds": rows[-1]["seconds"],
    }


def _diverged_at(run: RunFolder) -> int | None:
    """The update with which a run gave up because its loss or gradient was no number; None where it did not."""
    if not run.metrics.exists():
        return None
    lines = run.metrics.read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1]) if lines else {"loss": 0.0}
    return last["step"] if last["loss"] is None else None


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Each ablation's loss and BLEU, the means over seeds."""
    if not rows:
        return []
    lines = []
    for name in _names(rows):
        own = [row for row in rows if row["ablation"] == name]
        ended = [row for row in own if not row["diverged"]]
        loss, bleu = _mean(ended, "validation_loss"), _mean(ended, "bleu")
        perplexity = None if loss is None else math.exp(loss)
        spread = max(row["bleu"] for row in ended) - min(row["bleu"] for row in ended) if len(ended) > 1 else None
        lines.append([name, own[0]["parameters"], loss, perplexity, bleu, spread, len(own), len(own) - len(ended)])
    signatures = {row["signature"] for row in rows if not row["diverged"]}
    columns = ["model", "parameters", "validation loss", "perplexity", "BLEU", "BLEU, most - least", "runs", "diverged"]
    note = (
        "Means over the runs of the lowest validation loss, in nats per target token with the right words before it "
        "given, and of BLEU on test, which is decoded. Same weights at the start, batches and rates in all, tuned for "
        "the whole model. Without the decoder mask the loss is that of a model that reads the answer; its BLEU is what "
        "is left when there is no answer to read."
    )
    return [Table("The Transformer without one part", columns, lines, " ".join([note, *sorted(signatures)]))]


def plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Bars of BLEU and of the validation loss."""
    names, made = _names(rows), []
    for value, label in (("bleu", "BLEU"), ("validation_loss", "validation loss")):
        bars = [
            (x, mean)
            for x, name in enumerate(names)
            if (mean := _mean([row for row in rows if row["ablation"] == name], value)) is not None
        ]
        if bars:
            series = Series(label, [x for x, _ in bars], [y for _, y in bars])
            short = [name.removeprefix("without ").replace(" ", "\n") for name in names]
            title = f"{label[0].upper()}{label[1:]} without each part"
            what = "what is missing, or changed"
            made.append(Plot(value.replace("_", "-"), title, what, label, [series], categories=short))
    return made


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in ABLATIONS if any(row["ablation"] == name for row in rows)]


def _mean(rows: Sequence[Mapping[str, Any]], value: str) -> float | None:
    found = [row[value] for row in rows if row[value] is not None]
    return statistics.fmean(found) if found else None

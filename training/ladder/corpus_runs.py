"""Training runs of several models on one corpus with one vocabulary, by the package's own `train`."""

import contextlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.ladder.systems import SYSTEMS, System
from vanilla_transformer.training.prepare import Prepared, prepare
from vanilla_transformer.training.recipe import DECIDED_ELSEWHERE, recipe_from_mapping
from vanilla_transformer.training.recipe_values import hint
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.train import train

Sections = Mapping[str, Mapping[str, Any]]  # of a recipe: their keys and values


def merged(*several: Sections) -> dict[str, dict[str, Any]]:
    """Sections with the keys of all; of a key that several have, the last value."""
    found: dict[str, dict[str, Any]] = {}
    for sections in several:
        for name, content in sections.items():
            found[name] = {**found.get(name, {}), **content}
    return found


def section_problems(sections: Any) -> list[str]:
    """What is wrong with sections as those of a recipe, each problem beginning with section.key."""
    if not isinstance(sections, Mapping):
        return ["must map the sections data, tokenizer, ... to their keys"]
    try:
        recipe_from_mapping(dict(sections))
    except UsageError as error:
        return [line.strip() for line in str(error).splitlines()[1:]]
    return []


def rate_problems(learning_rates: Mapping[str, Any]) -> list[str]:
    """What is wrong with highest rates by system's name."""
    found = []
    for name, rate in learning_rates.items():
        if name not in SYSTEMS:
            found.append(f"learning_rates.{name}: unknown{hint(name, SYSTEMS, list(SYSTEMS))}")
        elif not isinstance(rate, int | float) or not rate > 0:
            found.append(f"learning_rates.{name} = {rate}: must be a number above 0")
    return found


def own_rate(learning_rates: Mapping[str, Any], system: System) -> dict[str, Any]:
    """The fields of the training section in which a system differs: its highest rate, where it has one of its own."""
    return {"learning_rate": learning_rates[system.name]} if system.name in learning_rates else {}


@dataclass(frozen=True)
class SharedCorpus:
    """A corpus, cleaned once, and the vocabulary that every run on it has; `sections` are those of their recipes."""

    sections: dict[str, dict[str, Any]]
    prepared: Prepared

    @classmethod
    def of(cls, sections: Sections, folder: Path) -> "SharedCorpus":
        """Made, or found, in `folder`; raises what `prepare` raises."""
        prepared = prepare(recipe_from_mapping(dict(sections)), folder)
        # Runs get the vocabulary as a folder: learned again, on a part of the corpus say, it would be another one.
        path = str((folder / "prepared" / prepared.fingerprint / "tokenizer").resolve())
        return cls(merged(sections, {"tokenizer": {"path": path}}), prepared)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.prepared.tokenizer

    @property
    def special_tokens(self) -> dict[str, int]:
        """Fields that a config of a model on this corpus has."""
        ids = {f"{kind}_token_id": getattr(self.tokenizer, f"{kind}_token_id") for kind in ("bos", "pad", "eos")}
        return {**ids, "decoder_start_token_id": self.tokenizer.bos_token_id}

    def pairs(self, split: str) -> tuple[list[str], list[str]]:
        """The sources and the targets of dev or test; UsageError where the corpus has none."""
        rows, data = getattr(self.prepared, split), self.sections["data"]
        if not rows:
            raise UsageError(f"data.corpus = {data['corpus']}: has no {split} split, and the study needs one; name it")
        langs = data["source_lang"], data["target_lang"]
        sources, targets = ([row["translation"][lang] for row in rows] for lang in langs)
        return sources, targets


def trained(corpus: SharedCorpus, config: PreTrainedConfig, folder: Path, **sections: Mapping[str, Any]) -> RunFolder:
    """A finished run of a model with this config in `folder`, gone on with where it was stopped.

    `sections` change keys of the corpus' recipe: training={"seed": 2}. What only a continuation would need is removed;
    the final model, its test scores, the log and the manifest stay.
    """
    mapping = merged(corpus.sections, {"model": model_section(config)}, sections)
    recipe = recipe_from_mapping(mapping)
    with contextlib.redirect_stdout(sys.stderr):  # the run's own result is no result of the study's
        train(recipe, folder, resume=True)
    run = RunFolder(folder)
    for part in (run.checkpoints, run.best, folder / "prepared"):
        shutil.rmtree(part, ignore_errors=True)
    return run


def model_section(config: PreTrainedConfig) -> dict[str, Any]:
    """The section `model` of a recipe that gives this config."""
    fields = [name for name in type(config).__annotations__ if name not in DECIDED_ELSEWHERE]
    return {"preset": None, "architecture": config.model_type, **{name: getattr(config, name) for name in fields}}


def scores_on_test(run: RunFolder) -> dict[str, Any]:
    """The run's test scores, as `evaluate` writes them."""
    return json.loads((run.results / "test.json").read_text(encoding="utf-8"))


def hypotheses_on_test(run: RunFolder) -> list[str]:
    """The run's translations of the test sources, in order."""
    return (run.results / "test.hypotheses.txt").read_text(encoding="utf-8").split("\n")[:-1]


def log_rows(run: RunFolder) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, each with `seconds`: the time that updates took up to it, nothing else counted.

    Between two rows that is the number of updates, times the run's mean number of tokens in one, over the logged tokens
    per second.
    """
    rows = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    seen = json.loads(run.manifest.read_text(encoding="utf-8"))["tokens_seen"]
    per_update = (seen["source"] + seen["target"]) / rows[-1]["step"]
    step, seconds = 0, 0.0
    for row in rows:
        seconds += (row["step"] - step) * per_update / row["tokens_per_second"]
        step, row["seconds"] = row["step"], round(seconds, 2)
    return rows


def seconds_to(rows: Sequence[Mapping[str, Any]], bleu: float) -> float | None:
    """When a validation first reached this BLEU; None where none did."""
    return next((row["seconds"] for row in rows if row.get("validation_bleu", -1.0) >= bleu), None)

"""What the files in a model folder, and in the run that it belongs to, say about the model: the card's only source."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from vanilla_transformer.training.durable import MANIFEST, sha256
from vanilla_transformer.training.recipe_yaml import read_mapping

WEIGHTS = "model.safetensors"
# What the sides of tasks are called that are no languages, such as reversing numbers.
MADE_UP = ("src", "tgt", "trg")


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set on the Hub, under the Hub's own names."""

    dataset: str
    config: str | None
    split: str
    revision: str | None


@dataclass(frozen=True)
class ModelFacts:
    """Facts with a file behind each; what no file says is None or empty.

    config and generation: the folder's config.json and generation_config.json.
    parameters: numbers in model.safetensors; weights that are tied to others are in it once.
    recipe and manifest: those of the run whose folder the model folder lies in.
    results: the run's results of exactly these weights, by SHA-256.
    updates: done when the run's last session ended.
    """

    folder: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    parameters: int | None
    recipe: dict[str, Any]
    manifest: dict[str, Any]
    results: list[dict[str, Any]]
    updates: int | None

    @property
    def languages(self) -> list[str]:
        """Language codes of source and target as the Hub takes them, of two or three letters: zh for zh-Hans."""
        codes = [str(self.config.get(f"{side}_lang") or "") for side in ("source", "target")]
        found = [re.match(r"[a-z]{2,3}(?=$|[-_])", code) for code in codes if code not in MADE_UP]
        return [match[0] for match in found if match]

    @property
    def corpus(self) -> str | None:
        """The corpus as its users know it: a Hub id, a named corpus, or the bare name of a local file or folder."""
        corpus = self.recipe.get("data", {}).get("corpus")
        return corpus if corpus is None or self.hub_corpus else Path(corpus).name

    @property
    def hub_corpus(self) -> str | None:
        """The corpus where it is a data set on the Hub: the manifest then lists its splits as hub/ID/...@REVISION."""
        corpus = self.recipe.get("data", {}).get("corpus")
        return corpus if any(str(source["file"]).startswith(f"hub/{corpus}/") for source in self.sources) else None

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The files that the corpus was read from: split, file, sha256, lines."""
        return self.manifest.get("data", {}).get("sources", [])

    def hub_split(self, split: str | None) -> HubSplit | None:
        """What a split of the corpus (train, dev, test) is on the Hub; None where it is not there, or in several."""
        files = [str(source["file"]) for source in self.sources if source["split"] == split]
        if not self.hub_corpus or len(files) != 1:
            return None
        data = self.recipe["data"]
        name = files[0].rpartition("@")[0].rpartition("/")[2]
        return HubSplit(self.hub_corpus, data.get("name"), name, data.get("revision"))

    @property
    def base_model(self) -> str | None:
        """What was fine-tuned: a Hub id, or the bare name of a local folder."""
        base = self.manifest.get("base_model")
        return Path(base).name if base and Path(base).is_absolute() else base

    @property
    def hub_base_model(self) -> str | None:
        """What was fine-tuned, where it is on the Hub; the manifest has the absolute path of another."""
        return self.base_model if self.base_model == self.manifest.get("base_model") else None

    @property
    def energy_joules(self) -> float | None:
        """What the processors used during training, where every session of the run could measure it."""
        measured = [session.get("energy_joules") for session in self.manifest.get("sessions", [])]
        return math.fsum(measured) if measured and None not in measured else None


def read_facts(folder: Path) -> ModelFacts:
    """The facts of the model in `folder`; its run is the folder that it lies in, as RUN/final lies in RUN."""
    weights = folder / WEIGHTS
    digest = sha256(weights) if weights.is_file() else None
    run = folder.resolve().parent
    recipe: dict[str, Any] = {}
    manifest: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    if (run / "recipe.yaml").is_file():
        recipe = read_mapping(run / "recipe.yaml")
        manifest = _json(run / MANIFEST)
        results = [_json(path) for path in sorted(run.glob("results/*.json"))]
    ended = [session for session in manifest.get("sessions", []) if "last_step" in session]
    return ModelFacts(
        folder=folder,
        config=_json(folder / "config.json"),
        generation=_json(folder / "generation_config.json"),
        parameters=_parameters(weights) if digest else None,
        recipe=recipe,
        manifest=manifest,
        results=[result for result in results if digest and result.get("weights_sha256") == digest],
        updates=max((session["last_step"] for session in ended), default=None),
    )


def _json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _parameters(weights: Path) -> int:
    with safe_open(weights, "np") as file:  # reads the header alone
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())

"""The quick path and the plain one learn alike: two runs of one recipe, the same batches, their curves side by side.

    python benchmarks/convergence.py                  # about half an hour on two cores; a second call goes on
    python benchmarks/convergence.py --updates 20 --output /tmp/smoke.json --folder /tmp/smoke

The plain run computes in float32 with attention as equation 1 has it, torch's own dropout, and the cross-entropy of
all logits at once. The quick run is what `train` does with precision = bfloat16. Weights begin alike, batches are the
same; the dropout of the two draws other random numbers, so the curves agree within noise, not bitwise.
Writes benchmarks/results/convergence.json and .png.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.modeling.dropout_vanilla_transformer import Dropout
from vanilla_transformer.training import train as training
from vanilla_transformer.training.durable import write_json
from vanilla_transformer.training.manifest import LIBRARIES, code_version
from vanilla_transformer.training.model_folder import build_model
from vanilla_transformer.training.recipe import Recipe, load_recipe

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "convergence.json"
RUNS = {"plain": "float32", "quick": "bfloat16"}
WINDOW = 20  # updates of which a curve shows the mean


def plain_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """`build_model` with the same first weights, and with nothing in it that is there for speed."""
    model = build_model(recipe, tokenizer)
    model.set_attn_implementation("eager")
    for module in model.modules():
        if type(module) is Dropout:
            module.__class__ = nn.Dropout
    # With logits the loss is torch's cross-entropy of all of them.
    model.register_forward_pre_hook(
        lambda model, inputs, named: (inputs, named | ({"compute_logits": True} if model.training else {})),
        with_kwargs=True,
    )
    return model


def run(name: str, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Train, or go on training, one of the two; what its files say."""
    recipe = load_recipe(ROOT / "recipes" / "multi30k-en-de.yaml", [*overrides, f"training.precision={RUNS[name]}"])
    with patch.object(training, "build_model", plain_model if name == "plain" else build_model):
        training.train(recipe, folder / name, resume=(folder / name).exists())
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    manifest = json.loads((folder / name / "manifest.json").read_text(encoding="utf-8"))
    test = json.loads((folder / name / "results" / "test.json").read_text(encoding="utf-8"))
    resolved = yaml.safe_load((folder / name / "recipe.yaml").read_text(encoding="utf-8"))
    resolved["data"]["corpus"] = Path(resolved["data"]["corpus"]).name
    return {
        "recipe": resolved,
        "losses": [row["loss"] for row in rows],
        "validations": [
            {key: value for key, value in row.items() if key == "step" or key.startswith("validation_")}
            for row in rows
            if "validation_loss" in row
        ],
        "test_scores": test["scores"],
        "median_tokens_per_second": statistics.median(row["tokens_per_second"] for row in rows),
        "training_seconds": manifest["training_seconds"],
        "hardware": manifest["hardware"],
    }


def smoothed(losses: list[float | None]) -> np.ndarray:
    """The mean of each WINDOW updates in a row; an update that was skipped has no loss."""
    values = np.array([np.nan if loss is None else loss for loss in losses])
    return np.array([np.nanmean(values[end - WINDOW : end]) for end in range(WINDOW, len(values) + 1)])


def comparison(runs: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How far the curves are apart, and what the quick run gains."""
    plain, quick = (runs[name] for name in ("plain", "quick"))
    gap = smoothed(quick["losses"]) - smoothed(plain["losses"])
    bleu = [one["validations"][-1]["validation_bleu"] for one in (plain, quick)]
    return {
        "largest_difference_of_smoothed_loss": float(np.abs(gap).max()),
        "last_difference_of_smoothed_loss": float(gap[-1]),
        "last_difference_of_dev_loss": quick["validations"][-1]["validation_loss"]
        - plain["validations"][-1]["validation_loss"],
        "dev_bleu_plain": bleu[0],
        "dev_bleu_quick": bleu[1],
        "speed_ratio": quick["median_tokens_per_second"] / plain["median_tokens_per_second"],
    }


def picture(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Both training curves, smoothed, and the dev losses as points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained", dpi=120)
    axes = figure.subplots()
    for (name, one), colour in zip(runs.items(), ("tab:blue", "tab:orange"), strict=True):
        curve = smoothed(one["losses"])
        label = f"{name}, {RUNS[name]}"
        axes.plot(range(WINDOW, WINDOW + len(curve)), curve, color=colour, label=f"{label}: training, smoothed labels")
        steps = [row["step"] for row in one["validations"]]
        axes.plot(
            steps, [row["validation_loss"] for row in one["validations"]], "o", color=colour, label=f"{label}: dev"
        )
    axes.set_xlabel("update")
    axes.set_ylabel(f"nats per target token (mean of {WINDOW} updates)")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=600, help=f"of each run, at least {WINDOW}")
    parser.add_argument("--warmup", type=int, default=300, help="updates of warm-up; the recipe's suits 8,000")
    # The recipe's 5e-3 belongs to its long warm-up: reached after 300 updates, chance decides when learning takes off.
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="the peak of both runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "convergence", help="the two runs' folders")
    parser.add_argument(
        "--output", type=Path, help="the JSON file, the PNG beside it; default at 600 updates: results/"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="a key of the recipe")
    arguments = parser.parse_args()
    if arguments.updates < WINDOW:
        parser.error(f"--updates: the curves are means of {WINDOW}")
    output = arguments.output or (RESULT if arguments.updates == parser.get_default("updates") else None)
    if output is None:
        parser.error("give --output where --updates is not the default")
    settings = {
        "max_steps": arguments.updates,
        "warmup_steps": arguments.warmup,
        "learning_rate": arguments.learning_rate,
        "threads": arguments.threads,
        "max_minutes": "null",
        "patience": "null",
        "log_every": 1,
        "eval_every": max(1, arguments.updates // 3),
        "average_last": 1,
        "keep_last": 1,
    }
    overrides = [*(f"training.{key}={value}" for key, value in settings.items()), *arguments.set]
    began = time.perf_counter()
    runs = {name: run(name, arguments.folder, overrides) for name in RUNS}
    result = {
        "name": "convergence",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/convergence.py", *sys.argv[1:]]),
        "code": code_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "seconds": round(time.perf_counter() - began, 1),
        "result": comparison(runs),
        "runs": runs,
    }
    write_json(output, result)
    picture(runs, output.with_suffix(".png"))
    print(json.dumps(result["result"], indent=1))


if __name__ == "__main__":
    main()

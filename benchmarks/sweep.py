"""Train variants of one recipe and compare them on dev: the paper's Table 3, or the choices of a recipe of ours.

    python benchmarks/sweep.py recipes/sweeps/table3.yaml --dry-run 8
    python benchmarks/sweep.py recipes/sweeps/table3.yaml --output-dir runs/table3
    python benchmarks/sweep.py recipes/sweeps/multi30k.yaml --only dropout-0.4 vocabulary-4000

A sweep is a YAML file: the `recipe` that its variants share, `set` for keys that all of them change, `variants` with
the keys that each one changes, and `dev`, what the final model of each is scored on. Runs that are finished are kept,
an interrupted one goes on. After each run benchmarks/results/NAME.sweep.json is written anew; --dry-run prints what
each variant would be and trains nothing.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import yaml
from result_files import RESULTS, ROOT, write_result
from training_runs import SMOKE, evaluate, train

from vanilla_transformer.training.dry_run import dry_run, told
from vanilla_transformer.training.recipe import load_recipe


def variants(path: Path) -> tuple[Path, dict[str, list[str]]]:
    """The recipe of a sweep, and of each variant the settings that change it."""
    sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
    shared = sweep.get("set") or {}
    found = {name: {**shared, **(changes or {})} for name, changes in sweep["variants"].items()}
    settings = {name: [f"{key}={_yaml(value)}" for key, value in keys.items()] for name, keys in found.items()}
    return path.parent / sweep["recipe"], settings


def dev_options(path: Path) -> list[str]:
    """The options of `evaluate` for what the sweep's models are scored on."""
    dev = yaml.safe_load(path.read_text(encoding="utf-8"))["dev"]
    found: list[str] = []
    for option, value in dev.items():
        file = option in ("source", "reference")
        found += [f"--{option.replace('_', '-')}", str((path.parent / value).resolve()) if file else str(value)]
    return found


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")


def outcome(run: Path) -> dict[str, Any]:
    """What a finished variant reached on dev."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    validations = [row for row in rows if "validation_loss" in row]
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    scored = json.loads((run / "results" / "dev.json").read_text(encoding="utf-8"))
    return {
        "parameters": manifest["parameters"],
        "updates": rows[-1]["step"],
        "training_minutes": round(manifest["training_seconds"] / 60, 1),
        "perplexity": min(row["validation_perplexity"] for row in validations),
        "scores": {metric: score["score"] for metric, score in scored["scores"].items()},
        "signature": scored["scores"]["bleu"]["signature"],
    }


def main(arguments: argparse.Namespace) -> None:
    recipe, settings = variants(arguments.sweep)
    if unknown := set(arguments.only or ()) - settings.keys():
        raise SystemExit(f"{arguments.sweep} has no variant {', '.join(unknown)}; it has {', '.join(settings)}.")
    chosen = {name: settings[name] for name in arguments.only or settings}
    if arguments.dry_run is not None:
        for name, changes in chosen.items():
            print(f"{name}: {' '.join(changes)}\n{told(dry_run(load_recipe(recipe, changes), arguments.dry_run))}\n")
        return
    name = arguments.sweep.stem
    folder = arguments.output_dir or ROOT / "runs" / name
    result: dict[str, Any] = {"name": name, "recipe_name": recipe.stem, "variants": {}}
    for variant, changes in settings.items():
        run = folder / variant
        if variant in chosen:
            train(recipe, run, [*changes, *(SMOKE if arguments.smoke else ())])
            evaluate(run, "dev", *dev_options(arguments.sweep))
        if (run / "results" / "dev.json").exists():  # of this call or an earlier one
            result["variants"][variant] = {"settings": changes, **outcome(run)}
            if not arguments.smoke:
                write_result(RESULTS / f"{name}.sweep.json", result)
    for variant, reached in result["variants"].items():
        print(f"{variant}: BLEU on dev {reached['scores']['bleu']:.2f}, perplexity {reached['perplexity']:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--output-dir", type=Path, help="where the runs lie; default: runs/NAME")
    parser.add_argument("--only", nargs="+", metavar="VARIANT", help="these variants alone")
    parser.add_argument("--dry-run", type=int, metavar="PROCESSES", help="only check and reckon")
    parser.add_argument("--smoke", action="store_true", help="a minute a variant, to see that everything works")
    main(parser.parse_args())

"""BLEU over the size of the training data: one recipe, the first N training pairs for several N.

    python benchmarks/learning_curve.py recipes/tatoeba-en-de.yaml --sizes 5000 20000 80000 160000
    python benchmarks/learning_curve.py recipes/lohelp-en-de.yaml --sizes 2000 8000 32000

Everything is chosen on dev: the length penalty of each size (choose_alpha.py) and, by the recipe's validations, when to
stop. Test is reported once for each size, with what dev chose. Finished runs are kept, an interrupted call goes on;
after each size benchmarks/results gets NAME-SIZE.json with its hypotheses, NAME.curve.json and .md, and the tables are
made anew. --smoke runs a minute a size and leaves nothing there.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import render
from choose_alpha import choose_alpha
from record import record
from result_files import DATA, RESULTS, ROOT, in_shared_data, write_result
from training_runs import SMOKE, evaluate, train

from vanilla_transformer.training.recipe import Recipe, load_recipe
from vanilla_transformer.training.text_files import read_lines

# The result with the chosen length penalty; training's own, with the recipe's, is called test.
TEST = "test-chosen"


def point(recipe: Recipe, path: Path, run: Path, size: int, smoke: bool) -> dict[str, Any]:
    """Train on the first `size` pairs, choose on dev, score test."""
    train(path, run, [*(SMOKE if smoke else ()), f"data.limit={size}"])
    langs = recipe.data.source_lang, recipe.data.target_lang
    folder = DATA / in_shared_data(recipe.data.corpus)
    if not (run / "alpha.json").exists():
        dev = [read_lines(folder / f"dev.{lang}.gz")[: 10 if smoke else None] for lang in langs]
        chosen = choose_alpha(run / "final", *dev, recipe.evaluation.tokenize)
        (run / "alpha.json").write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    chosen = json.loads((run / "alpha.json").read_text(encoding="utf-8"))
    source, reference = (folder / f"test.{lang}.gz" for lang in langs)
    options = ("--source", source, "--reference", reference, "--length-penalty", chosen["length_penalty"])
    evaluate(run, TEST, *options)
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    scored = json.loads((run / "results" / f"{TEST}.json").read_text(encoding="utf-8"))
    return {
        "pairs": manifest["data"]["counters"]["train"]["kept"],
        "training_minutes": round(manifest["training_seconds"] / 60, 1),
        "chosen_on_dev": chosen,
        "test": {name: {key: score[key] for key in ("score", "signature")} for name, score in scored["scores"].items()},
    }


def report(result: dict[str, Any]) -> str:
    """The page of a curve."""
    lines = [
        f"# {result['name']}: BLEU over the size of the training data",
        "",
        f"Made by `{result['command']}`. Length penalty and time of stopping are chosen on dev; test is reported once.",
        "",
        "| training pairs | minutes | length penalty | BLEU on dev | BLEU on test | chrF on test |",
        "|---|---|---|---|---|---|",
    ]
    for each in result["points"]:
        dev = each["chosen_on_dev"]
        cells = [
            f"{each['pairs']:,}",
            f"{each['training_minutes']:.1f}",
            f"{dev['length_penalty']}",
            f"{dev['bleu_on_dev'][str(dev['length_penalty'])]:.2f}",
            f"{each['test']['bleu']['score']:.2f}",
            f"{each['test']['chrf']['score']:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Signature: `{result['points'][-1]['test']['bleu']['signature']}`", ""])


def main(arguments: argparse.Namespace) -> None:
    name, recipe = arguments.recipe.stem, load_recipe(arguments.recipe)
    folder = arguments.runs / ("smoke" if arguments.smoke else "") / f"{name}-curve"
    sizes = " ".join(map(str, arguments.sizes))
    command = f"python benchmarks/learning_curve.py recipes/{name}.yaml --sizes {sizes}"
    result: dict[str, Any] = {"name": name, "recipe_name": name, "command": command, "points": []}
    for size in sorted(arguments.sizes):
        result["points"].append(point(recipe, arguments.recipe, folder / str(size), size, arguments.smoke))
        print(report(result), flush=True)
        if not arguments.smoke:
            write_result(RESULTS / f"{name}.curve.json", result)
            (RESULTS / f"{name}.curve.md").write_text(report(result), encoding="utf-8")
            record(folder / str(size), f"{name}-{size}", name, arguments.remark, command, [TEST])
            render.main()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="training pairs")
    parser.add_argument("--remark", help="what a reader must know about these runs")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the runs lie")
    parser.add_argument("--smoke", action="store_true", help="a minute a size, to see that everything works")
    main(parser.parse_args())

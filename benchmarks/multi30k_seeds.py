"""Train a Multi30k recipe with several seeds; score test2016, test2017 and mscoco; report the mean and the spread.

    python benchmarks/multi30k_seeds.py recipes/multi30k-published.yaml --seeds 1 2 3
    python benchmarks/multi30k_seeds.py recipes/multi30k-best.yaml --seeds 1 2 3 --choose-alpha

Each finished seed leaves benchmarks/results/NAME-seedN.json and its hypotheses at once; NAME.seeds.json and the tables
are made anew after each. An interrupted call goes on where it was. Where the recipe trains on lower-cased tokenised
text, its output is also detokenised and scored against the raw, cased text (NAME-raw). With --choose-alpha the first
seed's model decodes dev with several length penalties, and all seeds are tested with the best one. --smoke runs a
minute and leaves nothing in benchmarks/results.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import render
from choose_alpha import choose_alpha
from record import record
from result_files import DATA, RESULTS, ROOT, write_result
from training_runs import SMOKE, evaluate, train

from vanilla_transformer.training.recipe import Recipe, load_recipe
from vanilla_transformer.training.text_files import read_lines

TESTS = {"test2016": "test_2016_flickr", "test2017": "test_2017_flickr", "mscoco": "test_2017_mscoco"}
DEV = "val"


def text(recipe: Recipe, name: str, lang: str, raw: bool = False) -> Path:
    """A file of Multi30k in the form that the recipe trains on, or raw."""
    if raw or not is_tokenised(recipe):
        return DATA / "multi30k" / f"{name}.{lang}.gz"
    return DATA / "multi30k" / "tok" / f"{name}.lc.norm.tok.{lang}.gz"


def is_tokenised(recipe: Recipe) -> bool:
    return "lc.norm.tok" in str(recipe.data.test)


def score(recipe: Recipe, run: Path, alpha: float | None) -> list[str]:
    """Translate and score every test set with RUN/final; returns the names of the results."""
    source, target = recipe.data.source_lang, recipe.data.target_lang
    penalty = () if alpha is None else ("--length-penalty", alpha)
    scoring = ("--tokenize", "none") if is_tokenised(recipe) else ("--lowercase-tokenized",)
    names = []
    for name, file in TESTS.items():
        files = ("--source", text(recipe, file, source), "--reference", text(recipe, file, target))
        evaluate(run, name, *files, *scoring, *penalty)
        names.append(name)
        if is_tokenised(recipe):
            plain = run / "detokenised" / f"{name}.{target}"
            plain.parent.mkdir(exist_ok=True)
            lines = detokenised(read_lines(run / "results" / f"{name}.hypotheses.txt"), target)
            plain.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            reference = text(recipe, file, target, raw=True)
            options = ("--hypotheses", plain, "--reference", reference, "--target-lang", target)
            evaluate(run, f"{name}-raw", *options, model=False)
            names.append(f"{name}-raw")
    return names


def detokenised(lines: list[str], lang: str) -> list[str]:
    """Moses' tokens put together again; their letters stay lower-case."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(lang=lang)
    return [detokenizer.detokenize(line.split()) for line in lines]


def summary(name: str, runs: list[dict[str, Any]], command: str, remark: str | None) -> dict[str, Any]:
    """Mean and sample standard deviation of every score over the runs, which have the same test sets."""
    tests = []
    for several in zip(*(run["tests"] for run in runs), strict=True):
        scores = {}
        for metric, first in several[0]["scores"].items():
            values = [test["scores"][metric]["score"] for test in several]
            spread = statistics.stdev(values) if len(values) > 1 else None
            scores[metric] = {
                "mean": statistics.fmean(values),
                "standard_deviation": spread,
                "values": values,
                "signature": first["signature"],
            }
        tests.append({"name": several[0]["name"], "scores": scores})
    seeds = [run["recipe"]["training"]["seed"] for run in runs]
    return {"name": name, "recipe_name": name, "remark": remark, "command": command, "seeds": seeds, "tests": tests}


def main(arguments: argparse.Namespace) -> None:
    name = arguments.recipe.stem
    recipe = load_recipe(arguments.recipe)
    folder = arguments.runs / ("smoke" if arguments.smoke else "") / name
    alpha, runs = None, []
    command = f"python benchmarks/multi30k_seeds.py recipes/{name}.yaml --seeds {' '.join(map(str, arguments.seeds))}"
    command += " --choose-alpha" if arguments.choose_alpha else ""
    for seed in arguments.seeds:
        run = folder / f"seed{seed}"
        train(arguments.recipe, run, [f"training.seed={seed}", *(SMOKE if arguments.smoke else ())])
        if arguments.choose_alpha and alpha is None:
            alpha = _alpha(recipe, run, folder / "alpha.json", arguments.smoke)
        tests = score(recipe, run, alpha)
        if arguments.smoke:
            continue
        again = f"vanilla-transformer train recipes/{name}.yaml --output-dir runs/{name}/seed{seed} "
        record(run, f"{name}-seed{seed}", name, arguments.remark, f"{again}--set training.seed={seed}", tests)
        runs.append(json.loads((RESULTS / f"{name}-seed{seed}.json").read_text(encoding="utf-8")))
        result = summary(name, runs, command, arguments.remark)
        if alpha is not None:
            result["chosen"] = json.loads((folder / "alpha.json").read_text(encoding="utf-8"))
        write_result(RESULTS / f"{name}.seeds.json", result)
        render.main()


def _alpha(recipe: Recipe, run: Path, path: Path, smoke: bool) -> float:
    if not path.exists():
        langs = recipe.data.source_lang, recipe.data.target_lang
        dev = [read_lines(text(recipe, DEV, lang))[: 10 if smoke else None] for lang in langs]
        chosen = choose_alpha(run / "final", *dev, recipe.evaluation.tokenize)
        path.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))["length_penalty"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--choose-alpha", action="store_true", help="the length penalty that is best on dev")
    parser.add_argument("--remark", help="what a reader must know about these runs")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the runs lie")
    parser.add_argument("--smoke", action="store_true", help="a minute, to see that everything works")
    main(parser.parse_args())

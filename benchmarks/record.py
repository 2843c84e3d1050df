"""Keep what a finished run measured: RUN -> benchmarks/results/NAME.json and its hypotheses; then the tables anew.

    python benchmarks/record.py runs/quickstart --name quickstart

The JSON holds the resolved recipe, the manifest, the validation curve, the training speed and the scores with their
signatures, all read from the run's own files: every result in RUN/results, which is that of training's own test set and
those of `evaluate RUN/final --output-dir RUN/results --name NAME`.
"""

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import render
import yaml
from result_files import RESULTS, in_shared_data, write_result

from vanilla_transformer.training.named_corpora import NAMES


def record(
    run: Path,
    name: str,
    recipe_name: str,
    remark: str | None = None,
    command: str | None = None,
    tests: list[str] | None = None,
) -> None:
    """Write what the files of a finished run say to benchmarks/results/NAME.json, the hypotheses beside it.

    `tests` are names of results in RUN/results, all of them by default; `command` is what to repeat it with.
    """
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    # Paths of the machine that trained say nothing to a reader.
    recipe["data"]["corpus"] = Path(recipe["data"]["corpus"]).name
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    validations = [row for row in rows if "validation_loss" in row]
    names = tests or sorted(path.stem for path in (run / "results").glob("*.json"))
    result = {
        "name": name,
        "remark": remark,
        "command": command or f"vanilla-transformer train recipes/{recipe_name}.yaml --output-dir runs/{name}",
        "recipe_name": recipe_name,
        "recipe": recipe,
        "manifest": manifest,
        "updates": rows[-1]["step"],
        "training_minutes": round(manifest["training_seconds"] / 60, 1),
        "median_tokens_per_second": statistics.median(row["tokens_per_second"] for row in rows),
        "validations": [
            {key: value for key, value in row.items() if key in ("step", "epoch") or key.startswith("validation_")}
            for row in validations
        ],
        "tests": [_test(run / "results" / f"{test}.json", name, recipe, manifest) for test in names],
    }
    RESULTS.mkdir(exist_ok=True)
    for test in result["tests"]:
        shutil.copyfile(run / "results" / f"{test['name']}.hypotheses.txt", RESULTS / test["hypotheses_file"])
    write_result(RESULTS / f"{name}.json", result)


def _test(path: Path, name: str, recipe: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """The result of one test set, with the files that a stranger needs to score it again."""
    test = json.loads(path.read_text(encoding="utf-8"))
    test |= {"model": "final", "hypotheses_file": f"{name}.{test['name']}.hypotheses.txt"}
    if files := test.pop("files", None):
        return test | {"references": [in_shared_data(file) for file in files["references"]]}
    sources = [source["file"] for source in manifest["data"]["sources"] if source["split"] == test["split"]]
    if recipe["data"]["corpus"] in NAMES:
        return test | {"named_corpus": recipe["data"]["corpus"]}
    return test | {"references": [in_shared_data(sources[-1])]}  # the target's, of two aligned files


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", required=True, help="name of the result")
    parser.add_argument("--recipe", help="name of the recipe in recipes/; default: the result's")
    parser.add_argument("--remark", help="what a reader must know about this run")
    arguments = parser.parse_args()
    record(arguments.run, arguments.name, arguments.recipe or arguments.name, arguments.remark)
    render.main()

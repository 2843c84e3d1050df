"""Keep what a finished run measured: RUN -> benchmarks/results/NAME.json, its hypotheses, and the README's table.

    python benchmarks/record.py runs/quickstart --name quickstart

The JSON holds the resolved recipe, the manifest, the validation curve, the training speed and the scores with their
signatures, all read from the run's own files. `python benchmarks/record.py --table` prints the table of all results.
"""

import argparse
import json
import re
import shutil
import statistics
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LABELS = {"bleu": "BLEU", "bleu_lowercase_tokenized": "BLEU, lower-cased tokenised", "chrf": "chrF", "ter": "TER"}


def record(run: Path, name: str, remark: str | None) -> None:
    """Write what the files of a finished run say to benchmarks/results/NAME.json, and the hypotheses beside it."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    # Paths of the machine that trained say nothing to a reader.
    recipe["data"]["corpus"] = Path(recipe["data"]["corpus"]).name
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    test = json.loads((run / "results" / "test.json").read_text(encoding="utf-8"))
    result = {
        "name": name,
        "remark": remark,
        "command": f"vanilla-transformer train recipes/{name}.yaml --output-dir runs/{name}",
        "recipe": recipe,
        "manifest": manifest,
        "updates": rows[-1]["step"],
        "training_minutes": round(manifest["training_seconds"] / 60, 1),
        "median_tokens_per_second": statistics.median(row["tokens_per_second"] for row in rows),
        "validations": [
            {key: value for key, value in row.items() if key in ("step", "epoch") or key.startswith("validation_")}
            for row in rows
            if "validation_loss" in row
        ],
        "test": {**test, "model": "final"},
    }
    RESULTS.mkdir(exist_ok=True)
    shutil.copyfile(run / "results" / "test.hypotheses.txt", RESULTS / f"{name}.hypotheses.txt")
    text = json.dumps(result, ensure_ascii=False, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def table() -> str:
    """Every recorded result as a Markdown table, remarks below it."""
    remarks = []
    lines = [
        "| recipe | parameters | training, on | updates | tokens/s | test score | signature |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "recipe" not in result:  # a benchmark of another kind
            continue
        if result["remark"]:
            remarks.append(f"{result['name']}: {result['remark']}")
        hardware = result["manifest"]["hardware"]
        where = f"{result['training_minutes']:.1f} min, {hardware['threads']} threads of {hardware['processor']}"
        cells = [
            f"[{result['name']}](recipes/{result['name']}.yaml)",
            f"{result['manifest']['parameters']:,}",
            where,
            f"{result['updates']:,}",
            f"{result['median_tokens_per_second']:,.0f}",
        ]
        for metric, score in result["test"]["scores"].items():
            if metric in LABELS:
                signature = score["signature"].replace("|", "\\|")
                lines.append("| " + " | ".join([*cells, f"{LABELS[metric]} {score['score']:.2f}", signature]) + " |")
                cells = [""] * len(cells)
    return "\n".join([*lines, *(f"\n{remark}" for remark in remarks)])


def update_readme() -> None:
    """Put the table between the README's two marks."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    block = f"<!-- results -->\n{table()}\n<!-- /results -->"
    text = re.sub(r"<!-- results -->(?:.*<!-- /results -->)?", lambda _: block, text, flags=re.DOTALL)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--name", help="name of the recipe, and of the result")
    parser.add_argument("--remark", help="what a reader must know about this run")
    parser.add_argument("--table", action="store_true", help="print the table and change nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
    elif arguments.run is None or arguments.name is None:
        parser.error("give RUN and --name, or --table")
    else:
        record(arguments.run, arguments.name, arguments.remark)
        update_readme()

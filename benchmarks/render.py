"""The tables of benchmarks/results.md and of the README, from the result files: `make results`.

    python benchmarks/render.py

Nothing in them is written by hand: a test fails when a result file and the tables differ.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import result_files

ROOT = Path(__file__).resolve().parent.parent
LABELS = {
    "bleu": "BLEU",
    "bleu_lowercase_tokenized": "BLEU, lower-cased tokenised",
    "bleu_paper": "BLEU as in the paper",
    "chrf": "chrF",
    "ter": "TER",
}
HEAD = """# Results

Made by `make results` from the files of [results](results); `python benchmarks/rescore.py` scores every hypotheses file
again and compares the figures to the last digit. Other measurements:

- speed: [training](results/bench_train.md), [decoding](results/bench_decode.md), [data](results/bench_data.md),
  [scale](results/bench_scale.md)
- [what of dev and test stands in training too](results/overlap.md)
- [scoring checked against published figures](results/scoring_check.md)
- [converted models](results/conversions.md)
"""


def tables(runs: list[dict[str, Any]], seeds: list[dict[str, Any]], root: str) -> str:
    """The tables of the runs and of the means over seeds, and what a reader must know about each; `root` leads to the
    repository's root from where they stand.
    """
    lines = [
        "| run | parameters | training, on | updates | tokens/s | test | score | signature | hypotheses |",
        "|---|---|---|---|---|---|---|---|---|",
        *(line for result in runs for line in _rows(result, root)),
    ]
    if seeds:
        lines += ["", "| recipe | seeds | test | mean | standard deviation | signature |", "|---|---|---|---|---|---|"]
        lines += [line for summary in seeds for line in _seed_rows(summary, root)]
    for result in [*runs, *seeds]:
        lines += ["", f"{result['name']}: `{result['command']}`{'; ' + result['remark'] if result['remark'] else ''}"]
    return "\n".join(lines)


def _rows(result: dict[str, Any], root: str) -> Iterator[str]:
    """A line for each score; what stands above is not repeated."""
    manifest = result["manifest"]
    hardware = manifest["hardware"]
    cells = [
        f"[{result['name']}]({root}recipes/{result['recipe_name']}.yaml) "
        f"([manifest]({root}benchmarks/results/{result['name']}.json))",
        f"{manifest['parameters']:,}",
        f"{result['training_minutes']:.1f} min, {hardware['threads']} threads of {hardware['processor']}",
        f"{result['updates']:,}",
        f"{result['median_tokens_per_second']:,.0f}",
    ]
    for test in result["tests"]:
        sha256 = test["sha256"]["hypotheses"]
        hypotheses = f"[{sha256[:12]}]({root}benchmarks/results/{test['hypotheses_file']})"
        name = test["name"]
        for metric, score in test["scores"].items():
            signature = score["signature"].replace("|", "\\|")
            shown = [name, f"{LABELS.get(metric, metric)} {score['score']:.2f}", signature, hypotheses]
            yield "| " + " | ".join([*cells, *shown]) + " |"
            cells, name, hypotheses = [""] * len(cells), "", ""


def _seed_rows(summary: dict[str, Any], root: str) -> Iterator[str]:
    cells = [f"[{summary['recipe_name']}]({root}recipes/{summary['recipe_name']}.yaml)"]
    cells.append(", ".join(map(str, summary["seeds"])))
    for test in summary["tests"]:
        for metric, score in test["scores"].items():
            signature = score["signature"].replace("|", "\\|")
            label = f"{LABELS.get(metric, metric)} {score['mean']:.2f}"
            spread = "" if score["standard_deviation"] is None else f"{score['standard_deviation']:.2f}"
            yield "| " + " | ".join([*cells, test["name"], label, spread, signature]) + " |"
            cells = [""] * len(cells)


def page() -> str:
    """benchmarks/results.md."""
    return f"{HEAD}\n{tables(result_files.runs(), result_files.seeds(), '../')}\n"


def readme_block() -> str:
    """What stands between the README's two marks."""
    return tables(result_files.runs(), result_files.seeds(), "")


def main() -> None:
    (ROOT / "benchmarks" / "results.md").write_text(page(), encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    block = f"<!-- results -->\n{readme_block()}\n<!-- /results -->"
    text = re.sub(r"<!-- results -->.*<!-- /results -->", lambda _: block, text, flags=re.DOTALL)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()

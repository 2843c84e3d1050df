"""Multi30k beside peers under one budget of training minutes: ours, transformers' Marian, JoeyNMT.

    python benchmarks/multi30k_peers.py --minutes 60

The same 29,000 pairs in the same BPE, the same model and rates (multi30k-published.yaml), dev BLEU on the way, test2016
at the end with beam 5, and a paired bootstrap of each peer against ours. Sides run one after the other, each alone on
the machine; a finished side is kept. Writes benchmarks/results/multi30k_peers.json and .md; --smoke takes a few minutes
and leaves nothing there.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import multi30k_joeynmt
from result_files import DATA, RESULTS, ROOT, write_result
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest
from training_runs import SMOKE, train

from vanilla_transformer.training.saved_model import load_model
from vanilla_transformer.training.text_files import read_lines
from vanilla_transformer.training.translation import translate

RECIPE = ROOT / "recipes" / "multi30k-published.yaml"
EVAL_EVERY = 200
# Sentences that make about 8,192 padded tokens of the longer side, of 15.2 tokens in the mean with </s>.
BATCH_SIZE = 512
TARGETS = (20, 30, 35, 38, 40)  # BLEU on dev that the time is told to


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What every peer is told; files by language, source first."""
    tok, bpe = DATA / "multi30k" / "tok", DATA / "multi30k_bpe_revisit"
    names = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    files = {
        split: [str(tok / f"{name}.lc.norm.tok.{lang}.gz") for lang in ("en", "de")] for split, name in names.items()
    }
    return {
        **files,
        "codes": str(bpe / "en-de.code.gz"),
        "segmented": [str(bpe / f"en-de.train.bpe.{lang}.gz") for lang in ("en", "de")],
        "seed": 1,
        "minutes": 0.2 if arguments.smoke else arguments.minutes,
        "max_steps": 8000,
        "eval_every": 6 if arguments.smoke else EVAL_EVERY,
        "limit": 300 if arguments.smoke else None,
        "dev_limit": 10 if arguments.smoke else None,
        "batch_size": 32 if arguments.smoke else BATCH_SIZE,
        "bfloat16": not arguments.float32,
    }


def run_ours(folder: Path, given: dict[str, Any], smoke: bool) -> None:
    """Our recipe with dev decoded on the way and no end but the budget's."""
    run = folder / "run"
    changes = [
        *(SMOKE if smoke else (f"training.max_minutes={given['minutes']}", f"training.eval_every={EVAL_EVERY}")),
        "training.patience=null",
        "training.early_stopping_metric=bleu",
        "evaluation.decode=true",
        f"training.precision={'bfloat16' if given['bfloat16'] else 'float32'}",
    ]
    train(RECIPE, run, changes)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    minutes, updates = manifest["training_seconds"] / 60, rows[-1]["step"]
    curve = [  # updates have one budget of tokens, so that they take about the same time
        {"step": row["step"], "minutes": minutes * row["step"] / updates, "bleu": row["validation_bleu"]}
        for row in rows
        if "validation_bleu" in row
    ]
    model, tokenizer = load_model(run / "final")
    hypotheses = translate(model, tokenizer, read_lines(given["test"][0])[: given["dev_limit"]])
    (folder / "test2016.hypotheses.txt").write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8")
    (folder / "curve.json").write_text(json.dumps(curve, indent=1), encoding="utf-8")
    system = {
        "system": "vanilla-transformer",
        "updates": updates,
        "minutes": minutes,
        "parameters": manifest["parameters"],
    }
    (folder / "system.json").write_text(json.dumps(system, indent=1), encoding="utf-8")


def compare(folders: list[Path], references: list[str]) -> list[dict[str, Any]]:
    """Each side's figures; ours comes first and is the baseline of the paired bootstrap."""
    hypotheses = [(folder.name, read_lines(folder / "test2016.hypotheses.txt")) for folder in folders]
    metric = BLEU(tokenize="none", force=True)
    metric.corpus_score(hypotheses[0][1], [references])  # its signature exists only after a score
    samples = 1000 if len(references) > 100 else 50
    test = PairedTest(hypotheses, {"BLEU": metric}, [references], test_type="bs", n_samples=samples)
    results = test()[1]["BLEU"]
    rows = []
    for folder, result in zip(folders, results, strict=True):
        curve = json.loads((folder / "curve.json").read_text(encoding="utf-8"))
        reached = {
            target: next((point["minutes"] for point in curve if point["bleu"] >= target), None) for target in TARGETS
        }
        rows.append(
            {
                **json.loads((folder / "system.json").read_text(encoding="utf-8")),
                "bleu": result.score,
                "p_value_against_ours": result.p_value,
                "signature": metric.get_signature().format(),
                "minutes_to_dev_bleu": {str(target): minutes for target, minutes in reached.items()},
                "curve": curve,
            }
        )
    return rows


def report(result: dict[str, Any]) -> str:
    """The page of a comparison."""
    lines = [
        "# Multi30k beside peers",
        "",
        f"Made by `{result['command']}`: {result['minutes']:g} minutes of training each, validations not counted,",
        "one side after the other on one machine. BLEU on test2016, lower-cased and tokenised; p of a paired bootstrap",
        "against ours. JoeyNMT validates greedily, the others with beam 5, and computes in float32: its half precision",
        "is for GPUs. Minutes to a BLEU on dev: Marian's by the clock, ours by the share of updates, JoeyNMT's by",
        f"looks at its log every {multi30k_joeynmt.SECONDS_BETWEEN_LOOKS} seconds.",
        "",
        "| system | parameters | updates | BLEU on test2016 | p | "
        + " | ".join(f"minutes to dev {target}" for target in TARGETS)
        + " |",
        "|---|---|---|---|---|" + "---|" * len(TARGETS),
    ]
    for row in result["systems"]:
        p = "" if row["p_value_against_ours"] is None else f"{row['p_value_against_ours']:.3f}"
        times = ["never" if minutes is None else f"{minutes:.1f}" for minutes in row["minutes_to_dev_bleu"].values()]
        cells = [row["system"], f"{row['parameters']:,}", f"{row['updates']:,}", f"{row['bleu']:.2f}", p, *times]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Signature: `{result['systems'][0]['signature']}`", ""])


def main(arguments: argparse.Namespace) -> None:
    given = settings(arguments)
    root = arguments.runs / ("smoke" if arguments.smoke else "") / "multi30k-peers"
    folders = [root / name for name in arguments.systems]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "system.json").exists():
            continue
        if folder.name == "ours":
            run_ours(folder, given, arguments.smoke)
        elif folder.name == "marian":
            [tokenizer] = (root / "ours" / "run" / "prepared").glob("*/tokenizer")
            path = folder / "settings.json"
            path.write_text(json.dumps({**given, "tokenizer": str(tokenizer)}, indent=1), encoding="utf-8")
            subprocess.run([sys.executable, str(ROOT / "benchmarks" / "multi30k_marian.py"), str(path)], check=True)
        else:
            multi30k_joeynmt.run(folder.resolve(), given)
    references = read_lines(given["test"][1])[: given["dev_limit"]]
    result = {
        "command": f"python benchmarks/multi30k_peers.py --minutes {arguments.minutes:g}",
        "minutes": given["minutes"],
        "settings": {key: value for key, value in given.items() if not isinstance(value, list | str)},
        "systems": compare(folders, references),
    }
    if not arguments.smoke:
        write_result(RESULTS / "multi30k_peers.json", result)
        (RESULTS / "multi30k_peers.md").write_text(report(result), encoding="utf-8")
    print(report(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="of training, for each side")
    parser.add_argument("--systems", nargs="+", default=["ours", "marian", "joeynmt"], help="ours first")
    parser.add_argument("--float32", action="store_true", help="instead of bfloat16 on all sides")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the runs lie")
    parser.add_argument("--smoke", action="store_true", help="a few minutes, to see that everything works")
    main(parser.parse_args())

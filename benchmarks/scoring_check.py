"""Scores of ours against published ones: system outputs and references whose BLEU others have printed.

    python benchmarks/scoring_check.py

Twelve outputs for newstest2013, newstest2014 and IWSLT 2017 with the figures that their makers publish, the fixture of
tensorflow/nmt, and how far the BLEU of the Transformer's paper is from sacreBLEU's for the same outputs. Reads the
shared data (SHARED_DATA), where the references lie in a cache of sacreBLEU's; needs no network. Writes
benchmarks/results/scoring_check.json and .md; exit code 1 where a figure is not the published one.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATA = Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data"))
os.environ["SACREBLEU"] = str(DATA / "sacrebleu_cache")  # before the import, which reads it

from vanilla_transformer.training.evaluation import corpus_scores  # noqa: E402
from vanilla_transformer.training.named_test_sets import load_test_set  # noqa: E402
from vanilla_transformer.training.text_files import read_lines  # noqa: E402

# nmt/utils/evaluation_utils_test.py of tensorflow/nmt
NMT_PUBLISHED = 22.5855084573
# A token for each of the empty ones that splitting at every single space makes, since sacreBLEU splits at runs of them.
EMPTY_TOKEN = "\u2400"


def system_outputs() -> list[dict[str, Any]]:
    """A row for each output whose published BLEU is of this very text: EXPECTED.tsv says REPRODUCED."""
    rows = []
    for line in read_lines(DATA / "wmt_sysout" / "EXPECTED.tsv"):
        name, published, bleu, chrf, verdict = line.split("\t")
        if verdict.startswith("REPRODUCED"):
            scores = _scores(name, ("bleu", "chrf"))
            ours = scores["bleu"]["score"]
            rows.append(
                {
                    "output": name,
                    "published": float(published),
                    "bleu": ours,
                    "chrf": scores["chrf"]["score"],
                    "signature": scores["bleu"]["signature"],
                    "agrees": round(ours, 1) == float(published)
                    and round(ours, 4) == float(bleu)
                    and round(scores["chrf"]["score"], 2) == float(chrf),
                }
            )
    return rows


def nmt_fixture() -> dict[str, Any]:
    """tensorflow/nmt's own figure for its outputs, which it splits at single spaces."""
    folder = DATA / "tfnmt_bleu_fixture"
    hypotheses = read_lines(folder / "deen_output.gz")
    references = [line.replace("@@ ", "") for line in read_lines(folder / "deen_ref_bpe.gz")]
    ours = _multi_bleu(_with_empty_tokens(hypotheses), _with_empty_tokens(references))
    return {
        "output": "tensorflow/nmt deen_output",
        "published": NMT_PUBLISHED,
        "bleu": ours,
        "bleu_split_at_runs_of_spaces": _multi_bleu(hypotheses, references),
        "agrees": abs(ours - NMT_PUBLISHED) < 1e-9,  # all its digits, the last one cut or rounded
    }


def paper_scoring() -> list[dict[str, Any]]:
    """sacreBLEU and the BLEU of the Transformer's paper for every output of the two WMT sets."""
    rows = []
    for path in sorted((DATA / "wmt_sysout").glob("wmt1*.gz")):
        scores = _scores(path.name.removesuffix(".gz").rpartition(".")[0], ("bleu",), scoring="paper")
        sacrebleu, paper = scores["bleu"]["score"], scores["bleu_paper"]["score"]
        rows.append({"output": path.name, "bleu": sacrebleu, "bleu_paper": paper, "difference": paper - sacrebleu})
        rows[-1]["signature"] = scores["bleu_paper"]["signature"]
    return rows


def _scores(name: str, metrics: tuple[str, ...], **options: Any) -> dict[str, dict[str, Any]]:
    test_set, pair, _ = name.split(".")
    [path] = (DATA / "wmt_sysout").glob(f"{name}.*.gz")
    if (test_set, pair) == ("wmt14", "en-fr"):  # sacreBLEU's cache holds its 3,003 lines in another order
        target_lang, references = "fr", [read_lines(DATA / "wmt" / "newstest2014-wmt14order.en-fr.fr.gz")]
    else:
        loaded = load_test_set(test_set, pair)
        target_lang, references = loaded.target_lang, loaded.references
    return corpus_scores(read_lines(path), references, target_lang, metrics, **options)


def _multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """Of text that is tokenised already; a match of every order makes sacreBLEU's smoothing do nothing."""
    return corpus_scores(hypotheses, references, tokenize="none", metrics=["bleu"])["bleu"]["score"]


def _with_empty_tokens(lines: list[str]) -> list[str]:
    return [" ".join(token or EMPTY_TOKEN for token in line.split(" ")) for line in lines]


def report(result: dict[str, Any]) -> str:
    """The page of the result."""
    lines = [
        "# Scoring, checked against published figures",
        "",
        "Made by `python benchmarks/scoring_check.py`; every figure with all its digits and its signature is in",
        "[scoring_check.json](scoring_check.json).",
        "",
        "## Outputs of others",
        "",
        "| output | published | ours | chrF2 | agrees |",
        "|---|---|---|---|---|",
    ]
    for row in result["system_outputs"]:
        lines.append(
            f"| {row['output']} | {row['published']} | {row['bleu']:.4f} | {row['chrf']:.2f} | {_yes(row['agrees'])} |"
        )
    nmt = result["nmt_fixture"]
    lines += [
        f"| {nmt['output']} | {nmt['published']} | {nmt['bleu']:.10f} | | {_yes(nmt['agrees'])} |",
        "",
        "Published: by mozilla/firefox-translations-models, rounded to one digit, and by tensorflow/nmt's test of its",
        "own scorer. That one splits at every single space; three tokens of its references are empty, and without them",
        f"the score is {nmt['bleu_split_at_runs_of_spaces']:.10f}.",
        "",
        "## The paper's BLEU and sacreBLEU's",
        "",
        "`evaluate --scoring paper` for the same outputs ([why they differ](../../docs/guide/wmt14.md)):",
        "",
        "| output | sacreBLEU | paper | difference |",
        "|---|---|---|---|",
    ]
    for row in result["paper_scoring"]:
        lines.append(f"| {row['output']} | {row['bleu']:.2f} | {row['bleu_paper']:.2f} | {row['difference']:+.2f} |")
    return "\n".join(lines) + "\n"


def _yes(agrees: bool) -> str:
    return "yes" if agrees else "**no**"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    result = {"system_outputs": system_outputs(), "nmt_fixture": nmt_fixture(), "paper_scoring": paper_scoring()}
    text = json.dumps(result, ensure_ascii=False, indent=1)
    (RESULTS / "scoring_check.json").write_text(text + "\n", encoding="utf-8")
    (RESULTS / "scoring_check.md").write_text(report(result), encoding="utf-8")
    print(report(result))
    sys.exit(not all(row["agrees"] for row in [*result["system_outputs"], result["nmt_fixture"]]))

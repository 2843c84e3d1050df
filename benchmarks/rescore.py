"""Score every committed hypotheses file again, and compare with the committed figures to the last digit.

    python benchmarks/rescore.py

Says each score; exit code 1 where one differs, or where a hypotheses file is not the one that was scored. References
that are not on this machine (SHARED_DATA) leave a test set unchecked, and that is said.
"""

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

import result_files
from result_files import DATA, RESULTS

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.evaluation import METRICS, corpus_scores
from vanilla_transformer.training.named_corpora import load_named_corpus
from vanilla_transformer.training.text_files import read_lines


def rescore(result: dict[str, Any], test: dict[str, Any], folder: Path) -> tuple[list[str], bool | None]:
    """What there is to say about one test set of a run, and whether its figures hold; None where nobody can tell."""
    name = f"{result['name']} {test['name']}"
    hypotheses = (folder / test["hypotheses_file"]).read_text(encoding="utf-8")
    if hashlib.sha256(hypotheses.encode()).hexdigest() != test["sha256"]["hypotheses"]:
        return [f"{name}: {test['hypotheses_file']} is not the text that was scored"], False
    streams = references(result, test)
    if streams is None:
        return [f"{name}: not checked, its references are not here"], None
    hashes = [hashlib.sha256("".join(f"{line}\n" for line in stream).encode()).hexdigest() for stream in streams]
    if hashes != test["sha256"]["references"]:
        return [f"{name}: the references are not those that were used"], False
    scores = corpus_scores(
        hypotheses.split("\n")[:-1],
        streams,
        test["target_lang"],
        [metric for metric in test["scores"] if metric in METRICS],
        lowercase_tokenized="bleu_lowercase_tokenized" in test["scores"],
        tokenize=_tokenizer(test),
        scoring="paper" if "bleu_paper" in test["scores"] else "sacrebleu",
    )
    lines, right = [], True
    for metric, score in test["scores"].items():
        same = scores[metric]["score"] == score["score"]
        right = right and same
        said = "" if same else f", and the file says {score['score']!r}"
        lines.append(f"{name}: {metric} {scores[metric]['score']!r}{said}")
    return lines, right


def references(result: dict[str, Any], test: dict[str, Any]) -> list[list[str]] | None:
    """The streams that a test set was compared with; None where they are not on this machine."""
    if "references" in test:
        paths = [DATA / file for file in test["references"]]
        return [read_lines(path) for path in paths] if all(path.exists() for path in paths) else None
    data = result["recipe"]["data"]
    try:
        corpus = load_named_corpus(test["named_corpus"], data["source_lang"], data["target_lang"])
    except CorpusError:  # the wheel of home-assistant is not here and cannot be fetched
        return None
    return [[target for _, target in corpus.splits[test["split"]]]]


def _tokenizer(test: dict[str, Any]) -> str | None:
    """The tokenizer of the BLEU that the signature tells."""
    signature = test["scores"].get("bleu", {}).get("signature", "")
    named = [part.removeprefix("tok:") for part in signature.split("|") if part.startswith("tok:")]
    return named[0] if named else None


def main(folder: Path = RESULTS) -> int:
    """Prints what was found; returns the exit code."""
    right = True
    for result in result_files.runs(folder):
        for test in result["tests"]:
            lines, holds = rescore(result, test, folder)
            print("\n".join(lines), flush=True)
            right = right and holds is not False
    return 0 if right else 1


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    sys.exit(main())

"""Translations to look at: of one committed result some that are drawn by chance, and those that went worst.

    python benchmarks/samples.py home-assistant-en-zh --count 8 > benchmarks/results/home-assistant-en-zh.samples.md

The worst are those of the lowest chrF2 by sentence. Prints Markdown; keep it only where the text may be copied (Home
Assistant's may, Multi30k's may not, Tatoeba's with the attribution of each pair).
"""

import argparse
import random
from typing import Any

import result_files
from rescore import references
from result_files import DATA, RESULTS
from sacrebleu.metrics.chrf import CHRF

from vanilla_transformer.training.named_corpora import load_named_corpus
from vanilla_transformer.training.text_files import read_lines

SEED = 1


def sources(result: dict[str, Any], test: dict[str, Any]) -> list[str]:
    """The lines that were translated: of the named corpus, or of the file beside the references."""
    source, target = (result["recipe"]["data"][f"{side}_lang"] for side in ("source", "target"))
    if "named_corpus" in test:
        pairs = load_named_corpus(test["named_corpus"], source, target).splits[test["split"]]
        return [line for line, _ in pairs]
    name = f".{source}".join(test["references"][0].rsplit(f".{target}", 1))
    return read_lines(DATA / name)


def samples(rows: list[tuple[str, str, str]], count: int) -> dict[str, list[tuple[str, str, str]]]:
    """Of (source, reference, hypothesis) so many by chance and so many of the lowest chrF2, worst first."""
    metric = CHRF()
    scored = sorted(rows, key=lambda row: metric.sentence_score(row[2], [row[1]]).score)
    drawn = random.Random(SEED).sample(rows, min(count, len(rows)))
    return {"by chance": drawn, "the worst": scored[:count]}


def main(arguments: argparse.Namespace) -> None:
    found = {result["name"]: result for result in result_files.runs()}
    if arguments.result not in found:
        raise SystemExit(f"{arguments.result} is no recorded result; there are {', '.join(found)}.")
    result = found[arguments.result]
    test = next((test for test in result["tests"] if test["name"] == arguments.test), None)
    streams = test and references(result, test)
    if test is None or streams is None:
        raise SystemExit(f"{arguments.result} has no test set {arguments.test} whose references are here.")
    hypotheses = read_lines(RESULTS / test["hypotheses_file"])
    rows = list(zip(sources(result, test), streams[0], hypotheses, strict=True))
    print(f"# {arguments.result}: translations of {arguments.test}")
    for kind, chosen in samples(rows, arguments.count).items():
        print(f"\n## {kind.capitalize()}\n\n| source | reference | translation |\n|---|---|---|")
        for row in chosen:
            print("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", help="name of a file in benchmarks/results")
    parser.add_argument("--test", default="test", help="name of the test set in it")
    parser.add_argument("--count", type=int, default=8, help="of each kind")
    main(parser.parse_args())

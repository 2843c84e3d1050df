"""Choose the length penalty of a trained model on dev: decode it with several alphas of GNMT's, keep the best BLEU.

    python benchmarks/choose_alpha.py runs/multi30k-best/final --source dev.en --reference dev.de --tokenize none

Prints each alpha's BLEU and the one to put into the recipe's generation.length_penalty; --output keeps that as JSON.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from vanilla_transformer.training.evaluation import corpus_scores
from vanilla_transformer.training.saved_model import load_model
from vanilla_transformer.training.text_files import read_lines
from vanilla_transformer.training.translation import translate

ALPHAS = (0.0, 0.6, 1.0, 1.4, 1.8, 2.2)


def choose_alpha(
    folder: Path, sources: list[str], references: list[str], tokenize: str | None = None, beams: int | None = None
) -> dict[str, Any]:
    """BLEU on dev for each of ALPHAS, and the best one; of equal ones the smallest."""
    model, tokenizer = load_model(folder)
    target_lang = getattr(model.config, "target_lang", None)
    scores: dict[str, float] = {}
    for alpha in ALPHAS:
        hypotheses = translate(model, tokenizer, sources, num_beams=beams, length_penalty=alpha)
        bleu = corpus_scores(hypotheses, references, target_lang, ["bleu"], tokenize=tokenize)["bleu"]
        scores[str(alpha)] = bleu["score"]
    best = max(ALPHAS, key=lambda alpha: scores[str(alpha)])
    return {"bleu_on_dev": scores, "length_penalty": best, "signature": bleu["signature"], "sentences": len(sources)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="dev, one sentence a line")
    parser.add_argument("--reference", type=Path, required=True, help="its translations")
    parser.add_argument("--tokenize", help="sacreBLEU's tokenizer, instead of the language's")
    parser.add_argument("--beams", type=int, help="default: the model's own")
    parser.add_argument("--output", type=Path, help="a JSON file for the choice")
    arguments = parser.parse_args()
    dev = read_lines(arguments.source), read_lines(arguments.reference)
    chosen = choose_alpha(arguments.model, *dev, arguments.tokenize, arguments.beams)
    if arguments.output:
        arguments.output.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(chosen, indent=1))

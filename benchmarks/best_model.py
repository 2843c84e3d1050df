"""The best Multi30k model, trained again into a complete Hub folder, and its card kept as an example.

    python benchmarks/best_model.py

Reads benchmarks/results: of the seeds of recipes/multi30k-best.yaml the one with the best BLEU on dev, and the length
penalty that dev chose. Trains that seed (hours; a finished run is kept, an interrupted one goes on), scores all test
sets, and leaves the folder RUN/final, ready for `vanilla-transformer push`, with weights, tokenizer, code, generation
config and a card that shows the scores. A copy of the card goes to docs/examples/multi30k_card.md; weights are not
committed. --smoke runs a minute and leaves nothing outside RUN.
"""

import argparse
import json
import shutil
from pathlib import Path

from multi30k_seeds import score
from result_files import RESULTS, ROOT
from training_runs import SMOKE, train

from vanilla_transformer.training.card import write_card
from vanilla_transformer.training.model_facts import read_facts
from vanilla_transformer.training.recipe import load_recipe

NAME = "multi30k-best"
CARD = ROOT / "docs" / "examples" / "multi30k_card.md"


def chosen() -> tuple[int, float]:
    """The seed whose best validation is the best of all, and the length penalty chosen on dev."""
    path = RESULTS / f"{NAME}.seeds.json"
    if not path.exists():
        raise SystemExit(f"{path} is missing; multi30k_seeds.py recipes/{NAME}.yaml --choose-alpha makes it.")
    summary = json.loads(path.read_text(encoding="utf-8"))
    reached = {}
    for seed in summary["seeds"]:
        run = json.loads((RESULTS / f"{NAME}-seed{seed}.json").read_text(encoding="utf-8"))
        reached[seed] = max(row["validation_bleu"] for row in run["validations"])
    return max(reached, key=lambda seed: reached[seed]), summary["chosen"]["length_penalty"]


def main(arguments: argparse.Namespace) -> None:
    path = ROOT / "recipes" / f"{NAME}.yaml"
    seed, alpha = (1, 1.0) if arguments.smoke else chosen()
    run = arguments.output_dir
    settings = [f"training.seed={seed}", f"generation.length_penalty={alpha}", *(SMOKE if arguments.smoke else ())]
    train(path, run, settings)
    score(load_recipe(path), run, alpha)
    write_card(read_facts(run / "final"))  # once more, with all test sets
    if not arguments.smoke:
        shutil.copyfile(run / "final" / "README.md", CARD)
    print(run / "final")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", type=Path, default=ROOT / "runs" / f"{NAME}-hub", help="the folder of the run")
    parser.add_argument("--smoke", action="store_true", help="a minute, to see that everything works")
    main(parser.parse_args())

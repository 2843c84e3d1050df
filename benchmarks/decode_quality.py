"""What quick decoding changes in the translations of a trained model, and int8 and bfloat16 in its BLEU.

    python benchmarks/decode_quality.py runs/multi30k-en-de/final --source test.en --reference test.de --tokenize none

The standard is transformers' own search in float32, without packed weights. Against it stand `generate`'s quick path
in float32, which must write the same hypotheses, and in bfloat16 and int8, whose BLEU may fall by less than 0.3. All
take the search that is saved with the model. Writes benchmarks/results/decode_quality.json; exit code 1 where a
hypothesis in float32 or BLEU in int8 differs by more.
"""

import argparse
import json
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from vanilla_transformer.training.durable import write_json
from vanilla_transformer.training.evaluation import corpus_scores
from vanilla_transformer.training.manifest import LIBRARIES, code_version, hardware
from vanilla_transformer.training.saved_model import load_model
from vanilla_transformer.training.text_files import file_sha256, read_lines
from vanilla_transformer.training.translation import decoding_settings, translate

RESULT = Path(__file__).resolve().parent / "results" / "decode_quality.json"
STANDARD = "float32, transformers' search"
SIDES = {STANDARD: "float32", "float32": "float32", "bfloat16": "bfloat16", "int8": "int8"}
MOST_BLEU_LOST = 0.3


def hypotheses_of(folder: Path, side: str, sources: list[str]) -> tuple[list[str], dict[str, Any]]:
    model, tokenizer = load_model(folder, device="cpu", precision=SIDES[side])
    settings = decoding_settings(model)
    if side == STANDARD:
        quick = model.generate
        # Asked for more than tokens, generate takes transformers' search and the weights as they are.
        model.generate = lambda **options: quick(**options, return_dict_in_generate=True).sequences
    return translate(model, tokenizer, sources), settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="one sentence a line")
    parser.add_argument("--reference", type=Path, required=True, help="its translations")
    parser.add_argument("--tokenize", help="sacreBLEU's tokeniser; none for text that is tokenised already")
    parser.add_argument("--limit", type=int, help="the first so many sentences, and nothing is written")
    arguments = parser.parse_args()
    sources, references = (read_lines(path)[: arguments.limit] for path in (arguments.source, arguments.reference))
    sides: dict[str, dict[str, Any]] = {}
    standard: list[str] = []
    for side in SIDES:
        hypotheses, settings = hypotheses_of(arguments.model, side, sources)
        standard = standard or hypotheses
        bleu = corpus_scores(hypotheses, references, metrics=["bleu"], tokenize=arguments.tokenize)["bleu"]
        differing = sum(mine != theirs for mine, theirs in zip(hypotheses, standard, strict=True))
        sides[side] = {"bleu": bleu["score"], "differing_hypotheses": differing}
        print(f"{side}: BLEU {bleu['score']:.2f}, {differing} of {len(sources)} differ", file=sys.stderr)
    lost = sides[STANDARD]["bleu"] - sides["int8"]["bleu"]
    result = {
        "name": "decode_quality",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/decode_quality.py", *sys.argv[1:]]),
        "code": code_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "hardware": hardware(Accelerator(cpu=True)),
        "weights_sha256": file_sha256(arguments.model / "model.safetensors"),
        "sentences": len(sources),
        "decoding": settings,
        "signature": bleu["signature"],
        "sides": sides,
        "int8_loses_bleu": lost,
        "passed": not sides["float32"]["differing_hypotheses"] and lost < MOST_BLEU_LOST,
    }
    if arguments.limit is None:
        write_json(RESULT, result)
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    main()

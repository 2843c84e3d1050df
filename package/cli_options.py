"""Options that several verbs share, and how their JSON is printed."""

import json
from typing import Annotated, Any

import typer

from vanilla_transformer.configuration.errors import UsageError

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder such as RUN/final, or a Hub id.")]
Beams = Annotated[
    int | None, typer.Option("--beams", min=1, help="Beam size; 1 is greedy. Default: the model's own (4).")
]
LengthPenalty = Annotated[
    float | None,
    typer.Option("--length-penalty", help="GNMT's alpha; larger prefers longer. Default: the model's (0.6)."),
]
BatchTokens = Annotated[int, typer.Option("--batch-tokens", min=1, help="Padded source tokens decoded at once.")]
Precision = Annotated[str, typer.Option("--precision", help="float32 or bfloat16.")]
Int8 = Annotated[
    bool,
    typer.Option("--int8", help="Linear layers in 8-bit integers, on the CPU: fastest there, BLEU nearly the same."),
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1, ... Default: the GPU if there is one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


def chosen_precision(precision: str, int8: bool) -> str:
    """--precision and --int8 as `load_model` takes them."""
    if int8 and precision != "float32":
        raise UsageError(f"--int8 takes the place of --precision {precision}; give one of them.")
    return "int8" if int8 else precision


def print_json(value: Any) -> None:
    """A result for a program to read."""
    print(json.dumps(value, ensure_ascii=False, indent=2))

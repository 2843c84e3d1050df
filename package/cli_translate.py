"""`vanilla-transformer translate`: stdin to stdout, line for line."""

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from vanilla_transformer.cli_options import (
    BatchTokens,
    Beams,
    Device,
    Int8,
    Json,
    LengthPenalty,
    Model,
    Precision,
    chosen_precision,
)
from vanilla_transformer.configuration.errors import UserError


def translate_command(
    model: Model,
    beams: Beams = None,
    nbest: Annotated[
        int | None,
        typer.Option(
            "--nbest", min=1, help="So many translations of each line, best first, each after the line's number."
        ),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Each translation's score before it.")] = False,
    prefix: Annotated[str, typer.Option("--prefix", help="Text that every translation begins with.")] = "",
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = 4096,
    chunk_lines: Annotated[
        int | None,
        typer.Option(
            "--chunk-lines", min=1, help="Lines read before they are answered. Default: 1 at a terminal, else 1024."
        ),
    ] = None,
    precision: Precision = "float32",
    int8: Int8 = False,
    device: Device = None,
    json_: Json = False,
) -> None:
    """Translate stdin to stdout, one line for each line.

    \b
    vanilla-transformer translate runs/base/final --beams 4 < in.txt > out.txt
    echo "Connect to the device." | vanilla-transformer translate runs/base/final --nbest 4 --scores

    Columns of --scores and --nbest are separated by tabs: line number (from 1), score, translation. A score is the log
    probability over GNMT's length penalty. An empty line gives an empty line. With --json, one object a line.
    """
    precision = chosen_precision(precision, int8)
    from vanilla_transformer.training.saved_model import load_model
    from vanilla_transformer.training.translation import translate_nbest_stream, translate_stream, weights_unchanged

    loaded, tokenizer = load_model(model, device=device, precision=precision)
    size = chunk_lines or (1 if sys.stdin is not None and sys.stdin.isatty() else 1024)
    options: dict[str, Any] = {
        "num_beams": beams,
        "length_penalty": length_penalty,
        "batch_tokens": batch_tokens,
        "prefix": prefix,
        "chunk_lines": size,
    }
    lines = _stdin_lines()
    with weights_unchanged(loaded):
        if not (nbest or scores or json_):
            for number, text in enumerate(translate_stream(loaded, tokenizer, lines, **options), start=1):
                print(text, flush=number % size == 0)
            return
        answers = translate_nbest_stream(loaded, tokenizer, lines, nbest or 1, **options)
        for number, (line, candidates) in enumerate(answers, start=1):
            if json_:
                translations = [{"text": text, "score": score} for text, score in candidates]
                print(json.dumps({"line": number, "source": line, "translations": translations}, ensure_ascii=False))
            else:
                for text, score in candidates:
                    print(*([number] if nbest else []), *([f"{score:.4f}"] if scores else []), text, sep="\t")
            if number % size == 0:  # whoever writes chunk by chunk waits for these answers
                sys.stdout.flush()


def _stdin_lines() -> Iterator[str]:
    """Lines of stdin as they come; read as files are."""
    from vanilla_transformer.training.text_files import decoded_lines

    if sys.stdin is None:
        raise UserError("stdin is closed, and the text to translate comes from there.")
    # Detached, the interpreter does not close it at its end, which would wait for a thread that still reads.
    return decoded_lines(sys.stdin.detach(), "stdin")

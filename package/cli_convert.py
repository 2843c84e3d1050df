"""`vanilla-transformer convert`: models of other formats to ours, and ours to other formats."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vanilla_transformer.configuration.errors import UsageError


def convert_command(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="With --from a file or folder; with --to a model of ours.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The new folder.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="FORMAT", help="SOURCE is: marian, joeynmt or ctranslate2.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FORMAT", help="OUTPUT becomes: marian, ctranslate2 or onnx.")
    ] = None,
) -> None:
    """Convert a model from or to another format, with the same logits.

    \b
    vanilla-transformer convert opus-mt-en-de converted --from marian
    vanilla-transformer convert joeynmt/models/iwslt converted --from joeynmt
    vanilla-transformer convert runs/base/final exported --to ctranslate2

    A model that the other side cannot express is refused with every reason at once. What else differs, such as a length
    penalty that an engine does not have, is said on stderr and in OUTPUT/CONVERSION.md, which also shows how the folder
    is used. ctranslate2, onnx and Marian's tokenizers need the extras ctranslate2, onnx and marian.
    """
    if (from_ is None) == (to is None):
        raise UsageError("convert needs one of --from and --to; see convert --help.")
    from vanilla_transformer.training.conversion import convert_from, convert_to

    notes = convert_from(from_, Path(source), output) if from_ is not None else convert_to(str(to), source, output)
    for note in notes:
        print(note, file=sys.stderr)
    print(output)

"""`vanilla-transformer attention`: what a model looks at, as a page, pictures or numbers."""

from pathlib import Path
from typing import Annotated

import typer

from vanilla_transformer.configuration.errors import UsageError, UserError


def attention_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder such as RUN/final, or a Hub id.")],
    source: Annotated[str, typer.Option("--source", help="The sentence to read.")],
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="The page (.html), picture (.png) or numbers (.json).")
    ] = Path("attention.html"),
    target: Annotated[
        str | None, typer.Option("--target", help="The translation to show. Default: the model's own.")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="In a picture: encoder, decoder or cross.")] = "cross",
    layer: Annotated[
        int | None, typer.Option("--layer", min=1, help="In a picture: one layer, counted from 1. Default: all.")
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", min=1, help="In a picture: one head, counted from 1. Default: all.")
    ] = None,
) -> None:
    """Show the attention of every layer and head while MODEL translates one sentence.

    \b
    vanilla-transformer attention runs/quickstart/final --source "Turn off the light" --output light.html
    vanilla-transformer attention runs/quickstart/final --source "Turn off the light" --output light.png --layer 2

    The page needs no network: choose encoder self-attention, masked decoder self-attention or cross-attention, layer
    and head, or the mean over the heads. Prints the file's name.
    """
    if output.suffix not in (".html", ".png", ".json"):
        raise UsageError(f"--output {output}: the name must end in .html, .png or .json")
    from vanilla_transformer.modeling.attention_maps import attention_maps
    from vanilla_transformer.training.durable import write_bytes, write_json, write_text
    from vanilla_transformer.training.saved_model import load_model

    loaded, tokenizer = load_model(model)
    try:
        attention = attention_maps(loaded, tokenizer, source, target)
    except ValueError as error:
        raise UserError(f"{model}: {error}.") from error
    if output.suffix == ".json":
        write_json(output, attention.to_dict())
    elif output.suffix == ".html":
        from vanilla_transformer.modeling.attention_page import attention_page

        write_text(output, attention_page(attention))
    else:
        from vanilla_transformer.modeling.attention_figure import attention_figure

        found = [one for one in attention.maps if one.kind.startswith(kind)]
        if not found:
            kinds = ", ".join(one.kind.partition(" ")[0].removesuffix("-attention") for one in attention.maps)
            raise UsageError(f"--kind {kind}: choose from {kinds}")
        layers, heads = len(found[0].weights), len(found[0].weights[0])
        for name, value, most in (("--layer", layer, layers), ("--head", head, heads)):
            if value is not None and value > most:
                raise UsageError(f"{name} {value}: the model has {most}")
        write_bytes(output, attention_figure(found[0], layer and layer - 1, head and head - 1))
    print(output)

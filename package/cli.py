"""The command line: each verb parses, calls one function of the training folder, and prints its result.

Results go to stdout, progress and logs to stderr. Whatever needs torch is imported inside a verb, so that --help is
immediate.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vanilla_transformer.cli_attention import attention_command
from vanilla_transformer.cli_compare import compare_command
from vanilla_transformer.cli_convert import convert_command
from vanilla_transformer.cli_evaluate import evaluate_command
from vanilla_transformer.cli_finetune import finetune_command
from vanilla_transformer.cli_options import (
    BatchTokens,
    Device,
    Json,
    Model,
    Precision,
    print_json,
)
from vanilla_transformer.cli_push import push_command
from vanilla_transformer.cli_translate import translate_command
from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.command import (
    RecipeArgument,
    RunOption,
    SetOption,
    run,
    train_command,
)

app = typer.Typer(
    name="vanilla-transformer",
    help='The Transformer of "Attention Is All You Need": train, evaluate and use it. Each verb has its own --help.',
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script; ends the process with exit code 0 (done), 1 (failed) or 2 (wrong usage)."""
    if sys.stdout is not None:  # text is UTF-8 wherever this runs; a line ends in \n alone
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    run(app, arguments)


def _print_version(wanted: bool) -> None:
    if wanted:
        import vanilla_transformer

        print(f"vanilla-transformer {vanilla_transformer.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def prepare(recipe: RecipeArgument, output_dir: RunOption, set_: SetOption = None, json_: Json = False) -> None:
    """Read, clean and tokenise a recipe's corpus into RUN/prepared, once, before a job on many machines.

    \b
    vanilla-transformer prepare recipes/reverse.yaml --output-dir runs/reverse

    `train` does it by itself where it has not been done. Prints how many pairs of each split were kept, and why others
    were not.
    """
    from vanilla_transformer.training.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    from vanilla_transformer.training.prepare import prepare

    counters = prepare(loaded, output_dir).facts["counters"]
    if json_:
        print_json(counters)
    else:
        for split, counts in counters.items():
            print(f"{split}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))


app.command("train")(train_command)
app.command("finetune")(finetune_command)
app.command("attention")(attention_command)
app.command("compare")(compare_command)
app.command("convert")(convert_command)
app.command("push")(push_command)


@app.command()
def average(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Model folders; or one RUN, with --last.")],
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="The new model folder.")],
    last: Annotated[int | None, typer.Option("--last", min=1, help="The last so many checkpoints of RUN.")] = None,
) -> None:
    """Average the weights of checkpoints into one model folder (paper: the last 5 for base, the last 20 for big).

    \b
    vanilla-transformer average runs/base --last 5 --output runs/base/averaged
    vanilla-transformer average runs/base/checkpoints/step-9000 runs/base/best --output mean
    """
    if last is not None:
        folders = _last_checkpoints(folders, last)
    from vanilla_transformer.training.averaging import average_checkpoints

    print(average_checkpoints(list(folders), output))


app.command("evaluate")(evaluate_command)


app.command("translate")(translate_command)


@app.command()
def score(
    model: Model,
    source: Annotated[Path, typer.Option("--source", help="Sentences, one a line.")],
    target: Annotated[Path, typer.Option("--target", help="Their translations.")],
    per_token: Annotated[bool, typer.Option("--per-token", help="Divide by the target's number of tokens.")] = False,
    batch_tokens: BatchTokens = 4096,
    precision: Precision = "float32",
    device: Device = None,
    json_: Json = False,
) -> None:
    """Print log P(target | source), natural, of each pair of lines.

    \b
    vanilla-transformer score runs/base/final --source test.en --target test.de
    """
    from vanilla_transformer.training.saved_model import load_model
    from vanilla_transformer.training.text_files import read_lines
    from vanilla_transformer.training.translation import score_pairs

    sources, targets = read_lines(source), read_lines(target)
    loaded, tokenizer = load_model(model, device=device, precision=precision)
    values = score_pairs(loaded, tokenizer, sources, targets, per_token=per_token, batch_tokens=batch_tokens)
    if json_:
        print_json(values)
    else:
        print(*(f"{value:.6f}" for value in values), sep="\n")


def _last_checkpoints(folders: list[Path], count: int) -> list[Path]:
    from vanilla_transformer.training.checkpoint import checkpoints

    if len(folders) != 1:
        raise UsageError("average --last takes one RUN; without --last, name the folders themselves.")
    found = checkpoints(folders[0] / "checkpoints")
    if len(found) < count:
        there = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{folders[0]} has {len(found)} checkpoints ({there}), and --last asks for {count}.")
    return found[-count:]

"""What every way to start a program of ours shares: errors, exit codes, logs; and the options of `train`.

`vanilla-transformer train`, torchrun and `accelerate launch -m vanilla_transformer.training.train` parse the same
command line. Nothing here loads torch before an option has been parsed.
"""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe in YAML, or the RUN/recipe.yaml of an earlier run.")
]
RunOption = Annotated[Path, typer.Option("--output-dir", metavar="RUN", help="Folder of the run; made if missing.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key of the recipe; may be repeated."),
]


def train_command(
    recipe: RecipeArgument,
    output_dir: RunOption,
    set_: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in RUN exactly where it stopped.")] = False,
) -> None:
    """Train a model as a recipe says, and leave checkpoints, metrics and a Hub-ready folder RUN/final.

    \b
    vanilla-transformer train recipes/reverse.yaml --output-dir runs/reverse
    vanilla-transformer train recipes/reverse.yaml --output-dir runs/seed3 --set training.seed=3
    vanilla-transformer train runs/reverse/recipe.yaml --output-dir runs/reverse --resume
    torchrun --nproc-per-node 2 -m vanilla_transformer.training.train recipes/reverse.yaml --output-dir runs/two

    Exit code 75: a scheduler's SIGTERM or SIGUSR1 was answered with a checkpoint; --resume goes on from it.
    """
    from vanilla_transformer.training.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    from vanilla_transformer.training.train import train

    final = train(loaded, output_dir, resume)
    if is_main_process():
        print(final)


def is_main_process() -> bool:
    """Whether this is the only process, or the first of those that a launcher started."""
    return os.environ.get("RANK", "0") == "0"


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> None:
    """Run a command line and leave the process: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    A user's mistake is its message on stderr and nothing else; only faults of our own show a traceback.
    """
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    logging.getLogger("vanilla_transformer").setLevel(logging.INFO)
    try:
        app(args=arguments)
    except Exception as error:
        # UserError's attribute; the error of the model's config, which must work without this package, has it too.
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(error, file=sys.stderr)
        sys.exit(code)


def main() -> None:
    """`train` alone, for launchers that start a module."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(train_command)
    run(app)

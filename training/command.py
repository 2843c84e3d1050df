"""What every way to start a program of ours shares: errors, exit codes, logs; and the options of `train`.

`vanilla-transformer train`, torchrun and `accelerate launch -m vanilla_transformer.training.train` parse the same
command line. Nothing here loads torch before an option has been parsed.
"""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.redaction import ADVICE, RedactedRecord, holds_secret, redacted

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
    dry_run: Annotated[
        int | None,
        typer.Option("--dry-run", min=1, metavar="PROCESSES", help="Only check and reckon, for so many processes."),
    ] = None,
) -> None:
    """Train a model as a recipe says, and leave checkpoints, metrics and a Hub-ready folder RUN/final.

    \b
    vanilla-transformer train recipes/reverse.yaml --output-dir runs/reverse
    vanilla-transformer train recipes/reverse.yaml --output-dir runs/seed3 --set training.seed=3
    vanilla-transformer train runs/reverse/recipe.yaml --output-dir runs/reverse --resume
    torchrun --nproc-per-node 2 -m vanilla_transformer.training.train recipes/reverse.yaml --output-dir runs/two
    vanilla-transformer train recipes/wmt14-en-de-base.yaml --output-dir runs/base --dry-run 8

    --dry-run reads no data: it prints updates, tokens, parameters, memory, disk and FLOPs, all by arithmetic.

    Exit code 75: a scheduler's SIGTERM or SIGUSR1 was answered with a checkpoint; --resume goes on from it.
    """
    from vanilla_transformer.training.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    if dry_run is not None:
        from vanilla_transformer.training.dry_run import dry_run as reckon
        from vanilla_transformer.training.dry_run import told

        print(told(reckon(loaded, dry_run)))
        return
    from vanilla_transformer.training.train import train

    final = train(loaded, output_dir, resume)
    if is_main_process():
        print(final)


def is_main_process() -> bool:
    """Whether this is the only process, or the first of those that a launcher started."""
    return os.environ.get("RANK", "0") == "0"


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> None:
    """Run a command line and leave the process: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    A user's mistake, or a fault of the machine, is its message on stderr and nothing else; only faults of our own show
    a traceback. Neither shows a token or password.
    """
    if sys.stderr is None:  # closed by whoever started this; what is said there is lost, and nothing else
        sys.stderr = open(os.devnull, "w")
    logging.setLogRecordFactory(RedactedRecord)
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    logging.getLogger("vanilla_transformer").setLevel(logging.INFO)
    try:
        if sys.stdout is None:
            raise UserError("stdout is closed, and results go there; send it to a file or to /dev/null.")
        _check(sys.argv[1:] if arguments is None else arguments)
        try:
            app(args=arguments)
        finally:
            sys.stdout.flush()  # what was printed is only now known to have arrived
    except Exception as error:
        message, code = _told(error)
        print(redacted(message), end="", file=sys.stderr)
        sys.exit(code)


def _check(arguments: Sequence[str]) -> None:
    """Refuse arguments that a run could not keep: bytes that are no text, and secrets."""
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"Argument {number}, {ascii(argument)}, is not UTF-8 text.") from None
        if holds_secret(argument):
            raise UsageError(f"Argument {number}, {redacted(argument)}: {ADVICE}.")


def _told(error: Exception) -> tuple[str, int]:
    """What to say about an error, and the exit code."""
    # UserError's attribute; the error of the model's config, which must work without this package, has it too.
    code = getattr(error, "exit_code", None)
    if code is not None:
        return f"{error}\n", code
    if not isinstance(error, OSError):
        return "".join(traceback.format_exception(error)), 1
    if error.errno in (errno.EPIPE, errno.ENOSPC) and error.filename is None:
        _discard_stdout()  # or Python would try, and complain, once more at its end
    if error.errno == errno.EPIPE:
        return "", 1  # whoever read the results has left
    where = error.filename or ("stdout" if error.errno == errno.ENOSPC else "")
    return f"{where}: {error.strerror}\n" if where else f"{error}\n", 1


def _discard_stdout() -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:  # a stream of a test's, without a file behind it
        pass


def main() -> None:
    """`train` alone, for launchers that start a module."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(train_command)
    run(app)

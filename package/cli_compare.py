"""`vanilla-transformer compare`: the ladder from recurrent networks to the Transformer, measured."""

from pathlib import Path
from typing import Annotated

import typer

from vanilla_transformer.cli_options import Json


def compare_command(
    ladder: Annotated[Path, typer.Argument(metavar="LADDER", help="What to measure, in YAML.")],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", metavar="FOLDER", help="Results, runs and report; made if missing.")
    ],
    json_: Json = False,
) -> None:
    """Train and measure RNN, LSTM, GRU, both with attention, and the Transformer, all of one size, and compare them.

    \b
    vanilla-transformer compare recipes/ladder-smoke.yaml --output-dir runs/ladder-smoke
    vanilla-transformer compare recipes/ladder.yaml --output-dir runs/ladder

    Each section of LADDER is a study, and FOLDER/STUDY.json its results. A command that was stopped goes on where it
    was when it is given again. Prints the report's page; ladder.md and plots/ lie beside it. With --json, its tables.
    """
    from vanilla_transformer.training.ladder.ladder import run_ladder
    from vanilla_transformer.training.ladder.settings import load_ladder

    page = run_ladder(load_ladder(ladder), output_dir)
    print((output_dir / "ladder.json").read_text(encoding="utf-8") if json_ else page)

"""`vanilla-transformer push`: a model folder to the Hub."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def push_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model folder such as RUN/final.")],
    repo: Annotated[str, typer.Argument(metavar="ORG/NAME", help="The repo on the Hub; made where it is missing.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repo that only its owners see.")] = False,
    tag: Annotated[str | None, typer.Option("--tag", help="A new tag for the commit, such as v1.")] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="BRANCH", help="Push to this branch. Default: main.")
    ] = None,
    license_: Annotated[
        str | None, typer.Option("--license", help="Of the weights, for the card, such as cc-by-4.0.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Render the model card, push the folder to the Hub in one commit, and check what arrived.

    \b
    vanilla-transformer push runs/base/final org/name --private --tag v1 --license apache-2.0

    Prints the commit's address. The token is HF_TOKEN's or that of `hf auth login`. A push that was cut off can be
    repeated: it makes one commit or none. The exit code is 0 only when the Hub delivers every file as it is here.
    """
    from vanilla_transformer.training.publish import push

    pushed = push(folder, repo, private=private, tag=tag, revision=revision, license=license_)
    print(json.dumps(asdict(pushed), ensure_ascii=False, indent=2) if json_ else pushed.url)

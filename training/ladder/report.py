"""What the finished cells in a folder say: ladder.md with plots/*.png, ladder.html, and the tables in ladder.json."""

import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vanilla_transformer.training.durable import write_bytes, write_json, write_text
from vanilla_transformer.training.ladder.cells import read_cells
from vanilla_transformer.training.ladder.exhibits import Part, Plot, Table, shown
from vanilla_transformer.training.ladder.page import page
from vanilla_transformer.training.ladder.plots import draw
from vanilla_transformer.training.ladder.settings import STUDIES
from vanilla_transformer.training.write_errors import explained

TITLE = "From recurrent networks to the Transformer"


def write_report(folder: Path) -> Path:
    """Write the report of whatever STUDY.json files the folder holds, and return the page."""
    parts, made = [], ""
    for name in STUDIES:
        path = folder / f"{name}.json"
        if path.exists():
            rows = list(read_cells(path)[1].values())
            module = importlib.import_module(f"vanilla_transformer.training.ladder.{name}")
            parts.append(Part(name, module.TITLE, module.tables(rows), module.plots(rows)))
            made = measured_with(json.loads(path.read_text(encoding="utf-8")))
    plots = folder / "plots"
    with explained(f"The report in {folder}", "Make room and start the same command again; finished cells are kept."):
        plots.mkdir(exist_ok=True)
        for part in parts:
            for plot in part.plots:
                write_bytes(plots / file_name(part, plot), draw(plot, "png"))
        write_json(folder / "ladder.json", {part.name: _as_data(part) for part in parts})
        write_text(folder / "ladder.md", markdown(made, parts))
        write_text(folder / "ladder.html", page(TITLE, made, parts))
    return folder / "ladder.html"


def file_name(part: Part, plot: Plot) -> str:
    return f"{part.name}-{plot.name}.png"


def markdown(made: str, parts: Sequence[Part]) -> str:
    """The report as text that GitHub shows, with pictures from plots/."""
    lines = [f"# {TITLE}", "", made]
    for part in parts:
        lines += ["", f"## {part.title}"]
        for table in part.tables:
            lines += ["", f"**{table.title}**", "", *table_lines(table), *(["", table.note] if table.note else [])]
        for plot in part.plots:
            lines += ["", f"![{plot.title}](plots/{file_name(part, plot)})", *(["", plot.note] if plot.note else [])]
    return "\n".join(lines) + "\n"


def table_lines(table: Table) -> list[str]:
    """The table in Markdown, without its title and note."""
    rows = [[shown(value).replace("|", "\\|") for value in row] for row in table.rows]
    sides = ["---", *["---:"] * (len(table.columns) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (list(table.columns), sides, *rows)]


def _as_data(part: Part) -> dict[str, Any]:
    """A part's tables with all digits, for programs."""
    return {"title": part.title, "tables": [dataclasses.asdict(table) for table in part.tables]}


def measured_with(content: Mapping[str, Any]) -> str:
    """Where and with what the cells of a study were measured, in one line."""
    machine, libraries, code = content["machine"], content["libraries"], content["code"]
    devices = ", ".join(machine["accelerators"]) or "no GPU"
    commit = f" at {code['commit'][:7]}" if code.get("commit") else ""
    return (
        f"Measured on {machine['processor']} ({machine['cpus']} CPUs, {machine['threads']} threads, {devices}) with "
        f"torch {libraries['torch']}, transformers {libraries['transformers']}, vanilla-transformer "
        f"{code['version']}{commit}."
    )

"""Writes docs/why_transformer.md and docs/why_transformer.zh.md from docs/templates and the ladder's result files.

    vanilla-transformer compare recipes/ladder.yaml --output-dir runs/ladder
    python docs/make_why_transformer.py --results runs/ladder

`--results` first copies the report's tables, every STUDY.json and the plots of a finished run to
benchmarks/results/ladder, which is committed; without it the documents are made of what lies there. No number of a
measurement is written by hand: tables come from a study's own `tables(rows)`, sentences about them from
why_transformer_notes.py, and the Chinese of tables from templates/why_transformer.zh.yaml.
"""

import argparse
import importlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import why_transformer_notes
from why_transformer_chinese import chinese, chinese_table

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.durable import write_text
from vanilla_transformer.training.ladder.cells import read_cells
from vanilla_transformer.training.ladder.report import measured_with, table_lines
from vanilla_transformer.training.ladder.settings import STUDIES

DOCS = Path(__file__).resolve().parent
TEMPLATES = DOCS / "templates"
FILES = {"en": "why_transformer.md", "zh": "why_transformer.zh.md"}
RESULTS = DOCS.parent / "benchmarks" / "results" / "ladder"
MODEL = DOCS.parent / "modeling" / "modeling_vanilla_transformer.py"
COMMAND = "vanilla-transformer compare recipes/ladder.yaml --output-dir runs/ladder"

# Links, from where the documents stand.
_RESULTS_LINK = "../benchmarks/results/ladder"
_MODEL_LINK = "../modeling/modeling_vanilla_transformer.py"
_TRACE = {
    "en": "*Made by `{command}`; all digits: [{study}.json]({link}/{study}.json).*",
    "zh": "*由 `{command}` 生成；全部数字见 [{study}.json]({link}/{study}.json)。*",
}


class Results:
    """The studies in a folder of result files; UserError names the file that is missing and how it is made."""

    def __init__(self, folder: Path):
        self.folder = folder

    def rows(self, study: str) -> list[Mapping[str, Any]]:
        """The study's finished cells."""
        return list(read_cells(self.file(f"{study}.json"))[1].values())

    def file(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            raise UserError(
                f"{path} is missing; make it with `{COMMAND}`, and copy it with "
                "`python docs/make_why_transformer.py --results runs/ladder`."
            )
        return path

    def measured(self) -> list[str]:
        """Where and with what the studies were measured; one sentence where all were alike."""
        contents = [json.loads(self.file(f"{study}.json").read_text(encoding="utf-8")) for study in STUDIES]
        return list(dict.fromkeys(map(measured_with, contents)))


class Document:
    """What the template of one language may ask for: table, plot, note, code and measured."""

    def __init__(self, language: str, results: Results):
        self.language, self.results = language, results
        self.shown: set[tuple[str, str]] = set()

    def table(self, study: str, part: str = "") -> str:
        """The study's tables whose titles contain `part`, in either case, and that the document did not show before."""
        tables = importlib.import_module(f"vanilla_transformer.training.ladder.{study}").tables(
            self.results.rows(study)
        )
        wanted = [
            table for table in tables if part.lower() in table.title.lower() and (study, table.title) not in self.shown
        ]
        if not wanted:
            titles = "; ".join(table.title for table in tables) or "none"
            raise UserError(
                f'table("{study}", "{part}"): no table of that title is left to show; '
                f"{self.results.folder / study}.json gives: {titles}"
            )
        self.shown |= {(study, table.title) for table in wanted}
        trace = _TRACE[self.language].format(command=COMMAND, study=study, link=_RESULTS_LINK)
        blocks = []
        for table in wanted:
            translated = table if self.language == "en" else chinese_table(table)
            blocks += [f"**{translated.title}**", "\n".join(table_lines(translated))]
            blocks += [translated.note, trace] if translated.note else [trace]
        return "\n\n".join(blocks)

    def plot(self, study: str, name: str) -> str:
        """Where the picture is that the report drew."""
        picture = f"plots/{study}-{name}.png"
        self.results.file(picture)
        return f"{_RESULTS_LINK}/{picture}"

    def note(self, key: str) -> str:
        """What the numbers show, in words."""
        study, write = why_transformer_notes.NOTES[key]
        return write(self.results.rows(study), self.language)

    def measured(self) -> str:
        """Where and with what the tables were measured."""
        lines = self.results.measured()
        return "\n\n".join(lines if self.language == "en" else map(chinese, lines))

    def render(self) -> str:
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
        )
        template = environment.get_template(f"{FILES[self.language]}.j2")
        asked = {"table": self.table, "plot": self.plot, "note": self.note, "code": code, "measured": self.measured}
        return template.render(asked)


def code(text: str) -> str:
    """A link to the one line of the Transformer's file that reads `text`, spaces at its ends aside."""
    lines = MODEL.read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.strip() == text]
    if len(found) != 1:
        raise UserError(f"{MODEL} has {len(found)} lines that read `{text}`; the document links to exactly one.")
    return f"[{MODEL.name}:{found[0]}]({_MODEL_LINK}#L{found[0]})"


def copy_results(run: Path, folder: Path) -> None:
    """What the documents are made of, from a finished run's folder; UserError where a study is missing in it."""
    finished = Results(run)
    for name in (*(f"{study}.json" for study in STUDIES), "ladder.json"):
        source = finished.file(name)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)
    shutil.copytree(finished.file("plots"), folder / "plots", dirs_exist_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, metavar="RUN", help="copy the results of this run's folder first")
    run = parser.parse_args().results
    try:
        if run is not None:
            copy_results(run, RESULTS)
        texts = {name: Document(language, Results(RESULTS)).render() for language, name in FILES.items()}
    except UserError as error:
        sys.exit(f"error: {error}")
    for name, text in texts.items():
        write_text(DOCS / name, text)
        print(DOCS / name)


if __name__ == "__main__":
    main()

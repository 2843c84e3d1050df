"""Finished cells of a study: one measurement each, kept as soon as it is made, so that a rerun goes on behind it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vanilla_transformer.configuration.errors import UsageError, UserError, problems_error
from vanilla_transformer.training.durable import write_json
from vanilla_transformer.training.manifest import code_version, libraries, machine
from vanilla_transformer.training.write_errors import explained


class Cells:
    """The rows of STUDY.json by key, such as "lstm/seed 1/distance 64"; the file is whole at any moment.

    `made_with` are the settings that decide what the rows hold. Raises UsageError where the file's rows were made with
    other ones, since rows of two kinds in one table would compare nothing; UserError where the file is not ours.
    """

    def __init__(self, path: Path, made_with: Mapping[str, Any] | None = None):
        self.path = path
        # As JSON gives it back: tuples are lists, keys are text.
        self._made_with: dict[str, Any] = json.loads(json.dumps(made_with or {}))
        self._rows: dict[str, dict[str, Any]] = {}
        # Of the newest row; times are compared within a file, which is therefore made on one machine.
        self._environment = {"machine": machine(), "libraries": libraries(), "code": code_version()}
        if path.exists():
            self._load()

    def done(self, key: str) -> bool:
        """Whether the cell is finished."""
        return key in self._rows

    def put(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep a finished cell; `row` holds what JSON can, and no NaN."""
        self._rows[key] = dict(row)
        content = {"made_with": self._made_with, **self._environment, "rows": self._rows}
        with explained(str(self.path), "Make room and start the same command again; finished cells are kept."):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, content)

    def rows(self) -> list[dict[str, Any]]:
        """The finished rows in the order they were made."""
        return list(self._rows.values())

    def _load(self) -> None:
        before, self._rows = read_cells(self.path)
        if self._made_with and before != self._made_with:
            old, new = _flat(before), _flat(self._made_with)
            changes = [
                f"{name} = {new.get(name)}: the rows in the file have {old.get(name)}"
                for name in sorted({*old, *new})
                if old.get(name) != new.get(name)
            ]
            what = f"{self.path} was made with other settings; keep them, or give a new --output-dir"
            raise problems_error(what, changes, UsageError)


def read_cells(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings and the rows by key of a STUDY.json; UserError where it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return dict(content["made_with"]), dict(content["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read as results of a study ({error}); move it away.") from error


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Every value that is no mapping, by its keys with dots between them."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found

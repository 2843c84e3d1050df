"""Reads the tables of docs/bad_inputs.md, so that what the documentation promises is what the tests compare with."""

import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "bad_inputs.md"


@dataclass(frozen=True)
class Row:
    """One row: what the program says, with <placeholders>, its exit code, and what is kept."""

    id: str
    says: str
    exit_code: int
    kept: str

    def pattern(self, values: dict[str, object]) -> str:
        """A regular expression of the sentence: `values` in their placeholders, anything in the others."""
        parts = re.split(r"<([a-z]+)>", self.says)
        missing = set(values) - set(parts[1::2])
        assert not missing, f"{self.id}: the sentence has no <{', '.join(missing)}>"
        for number, part in enumerate(parts):
            is_name = number % 2 == 1
            parts[number] = re.escape(str(values.get(part, part))) if not is_name or part in values else ".+"
        return "".join(parts)


def rows() -> dict[str, Row]:
    """The rows of all tables by their ids, in their order."""
    found: dict[str, Row] = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| ") or line.startswith("| id "):
            continue
        cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split(" | ")]
        assert len(cells) == 5, line
        row = Row(cells[0], cells[2].strip("`"), int(cells[3]), cells[4])
        assert row.id not in found, f"{row.id} stands twice"
        found[row.id] = row
    return found

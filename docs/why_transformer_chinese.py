"""The ladder's tables in Chinese, by the pairs of patterns in templates/why_transformer.zh.yaml."""

import re
from functools import cache
from pathlib import Path

import yaml

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.ladder.exhibits import Table
from vanilla_transformer.training.ladder.systems import SYSTEMS

PAIRS = Path(__file__).resolve().parent / "templates" / "why_transformer.zh.yaml"
# Columns whose cells are names of things and the same in every language.
_NAMES = ("system", "device")


def chinese(text: str) -> str:
    """The text in Chinese; UserError where no pattern fits."""
    for pattern, translation in _pairs():
        if found := pattern.fullmatch(text):
            return translation.format(**found.groupdict())
    raise UserError(f"{PAIRS} has no Chinese for this text of a table; add it:\n  {text}")


def chinese_table(table: Table) -> Table:
    """The table with its title, columns, note and words in Chinese; numbers and names stay."""
    rows = [
        [
            value if column in _NAMES or not isinstance(value, str) or _has_no_word(value) else chinese(value)
            for column, value in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]
    columns = [column if _has_no_word(column) else chinese(column) for column in table.columns]
    return Table(chinese(table.title), columns, rows, chinese(table.note) if table.note else "")


@cache
def _pairs() -> list[tuple[re.Pattern[str], str]]:
    pairs = []
    for english, translation in yaml.safe_load(PAIRS.read_text(encoding="utf-8")):
        # re.split with a group gives text and names in turn.
        parts = re.split(r"\{(\w+)\}", english)
        pattern = "".join(f"(?P<{part}>.+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts))
        pairs.append((re.compile(pattern), translation))
    return pairs


def _has_no_word(text: str) -> bool:
    """Whether it is a system's name, or has no letter but the e of 1.5e-07."""
    return text in SYSTEMS or not re.search(r"[^\W\d_]", re.sub(r"(?<=\d)e[-+]?\d+", "", text))

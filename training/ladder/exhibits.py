"""What a study shows: tables and plots as data, which the report renders as Markdown, PNG and HTML.

A study's module, training/ladder/STUDY.py, offers the report, besides its settings and `run`:
    TITLE: str, the heading of its part of the report;
    tables(rows: Sequence[Mapping[str, Any]]) -> list[Table] and plots(rows) -> list[Plot], where `rows` are
    `Cells.rows()`, perhaps of some of the cells only: a study that was stopped half-way is reported as far as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; None is shown as a dash, a number with four significant digits."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    # One sentence or two under the table: units, what an interval is, what was not measured.
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One line of a plot: a system's values `y` at `x`, and half the height of its error bars."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    # A dashed line without points: a fit, chance level, a formula.
    is_reference: bool = False


@dataclass(frozen=True)
class Plot:
    """Lines over one axis; saved as plots/STUDY-NAME.png."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    # Names of x = 0, 1, 2, ... where the axis counts kinds and not numbers: bars stand there instead of lines.
    categories: Sequence[str] | None = None
    note: str = ""


@dataclass(frozen=True)
class Part:
    """A study's part of the report."""

    name: str
    title: str
    tables: Sequence[Table]
    plots: Sequence[Plot]


def shown(value: Value) -> str:
    """A table's value as a reader sees it."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"

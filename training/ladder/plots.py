"""Plots as pictures: every system has its colour and its mark wherever it appears."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.ladder.exhibits import Plot, Series
from vanilla_transformer.training.ladder.systems import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers tell apart; the marks tell them apart without colours.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#f0e442")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STYLE = {
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "svg.fonttype": "none",  # text stays text, in the reader's font
}


def require_matplotlib() -> None:
    """Raise UserError, before hours of training, where plots could not be drawn after them."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("Plots need matplotlib; install the extra: pip install 'vanilla-transformer[plots]'.") from None


def draw(plot: Plot, kind: str) -> bytes:
    """The plot as "png" or "svg"; the same plot gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Ids inside an SVG are made of the salt: two plots on one page must not share any.
    with rc_context({**_STYLE, "svg.hashsalt": f"{plot.name} {plot.title}"}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained", dpi=140)
        axes = figure.subplots()
        if plot.categories is None:
            _lines(axes, plot.series)
        else:
            _bars(axes, plot.series, plot.categories)
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        if plot.log_x:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if plot.log_y:
            axes.set_yscale("log")
        if len(plot.series) > 1:
            figure.legend(loc="outside right upper", frameon=False)
        picture = io.BytesIO()
        # Neither a date nor matplotlib's version: a plot changes where its numbers do.
        named = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
        figure.savefig(picture, format=kind, metadata=dict.fromkeys(named))
    return picture.getvalue()


def _lines(axes: "Axes", series: Sequence[Series]) -> None:
    for number, one in enumerate(series):
        if one.is_reference:
            axes.plot(one.x, one.y, label=one.label, color="#777777", linestyle=("--", ":", "-.")[number % 3])
            continue
        style: dict[str, Any] = {"label": one.label, "color": _of(one, number, COLOURS)}
        style |= {"marker": _of(one, number, MARKS), "markersize": 4, "linewidth": 1.4}
        if one.spread is None:
            axes.plot(one.x, one.y, **style)
        else:
            axes.errorbar(one.x, one.y, yerr=one.spread, capsize=2, **style)


def _bars(axes: "Axes", series: Sequence[Series], categories: Sequence[str]) -> None:
    width = 0.8 / len(series)
    for number, one in enumerate(series):
        places = [x + (number - (len(series) - 1) / 2) * width for x in one.x]
        axes.bar(places, one.y, width, yerr=one.spread, capsize=2, label=one.label, color=_of(one, number, COLOURS))
    axes.set_xticks(range(len(categories)), categories)
    axes.grid(visible=False, axis="x")


def _of(series: Series, number: int, choices: Sequence[str]) -> str:
    """A system's own colour or mark; by its place for what is no system."""
    names = list(SYSTEMS)
    return choices[(names.index(series.label) if series.label in names else number) % len(choices)]

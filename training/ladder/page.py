"""The report as one HTML file that needs no network: tables as tables, plots as pictures inside it."""

import html
import re
from collections.abc import Sequence

from vanilla_transformer.training.ladder.exhibits import Part, Plot, Table, shown
from vanilla_transformer.training.ladder.plots import draw

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
body { font: 15px/1.5 system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif;
       margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #bbb; }
nav a { margin-right: 1rem; }
.frame { overflow-x: auto; }
table { border-collapse: collapse; margin: .4rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding: .4rem 0; }
th, td { border-bottom: 1px solid #ddd; padding: .15rem .7rem .15rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { white-space: normal; vertical-align: bottom; border-bottom: 1px solid #555; }
figure { margin: 1.2rem 0; }
figure svg { max-width: 100%; height: auto; }
.note { color: #555; margin: .2rem 0 1.2rem; max-width: 50rem; }
</style>
</head>
<body>
<h1>@TITLE@</h1>
<p class="note">@MADE@</p>
<nav>@LINKS@</nav>
@PARTS@
</body>
</html>
"""


def page(title: str, made: str, parts: Sequence[Part]) -> str:
    """The whole file; `made` says where and with what the numbers were measured."""
    filled = {
        "TITLE": html.escape(title),
        "MADE": html.escape(made),
        "LINKS": "".join(f'<a href="#{part.name}">{html.escape(part.title)}</a>' for part in parts),
        "PARTS": "\n".join(map(_part, parts)),
    }
    return re.sub("@([A-Z]+)@", lambda match: filled[match[1]], _PAGE)


def _part(part: Part) -> str:
    exhibits = [*map(_table, part.tables), *(_figure(part, plot) for plot in part.plots)]
    return "\n".join([f'<section id="{part.name}">', f"<h2>{html.escape(part.title)}</h2>", *exhibits, "</section>"])


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in table.columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(shown(value))}</td>" for value in row) + "</tr>" for row in table.rows
    )
    caption = f"<caption>{html.escape(table.title)}</caption>"
    content = f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    return f'<div class="frame">{content}</div>' + _note(table.note)


def _figure(part: Part, plot: Plot) -> str:
    picture = draw(plot, "svg").decode()
    # Every picture of matplotlib's has the same names for its parts; only those stay that something refers to.
    picture = re.sub(r' id="([^"]+)"', lambda match: match[0] if f"#{match[1]}" in picture else "", picture)
    picture = picture[picture.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{_attribute(plot)}" ', 1)
    return f'<figure id="{part.name}-{plot.name}">{picture}</figure>' + _note(plot.note)


def _attribute(plot: Plot) -> str:
    return html.escape(f"{plot.title}: {plot.y_label} against {plot.x_label}", quote=True)


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>' if text else ""

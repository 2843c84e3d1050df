"""The report shows what the cells hold, in four forms, and the page needs nothing but itself."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.ladder import plots, report
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.exhibits import Part, Plot, Series, Table, shown
from vanilla_transformer.training.ladder.page import page

TABLE = Table(
    "Accuracy <by> distance", ["system", "4", "512"], [["lstm", 0.98765, None], ["a|b", 1, 12345.6]], "A & B."
)
LINES = Plot("curve", "Accuracy", "k", "share", [Series("lstm", [4, 8, 16], [1.0, 0.5, 0.25], [0.1, 0.1, 0.1])])
BARS = Plot(
    "bars",
    "By part",
    "",
    "BLEU",
    [Series("lstm", [0, 1], [3.0, 4.0]), Series("gru", [0, 1], [2.0, 1.0])],
    categories=["whole", "no FFN"],
)
PART = Part("recall", "Recall", [TABLE], [LINES, BARS])


def test_values_as_a_reader_sees_them():
    assert [shown(value) for value in (None, "x", 3, 1234567, 0.123456, 33.10, 98765.4)] == [
        *("–", "x", "3", "1,234,567", "0.1235", "33.1", "98,765"),
    ]


def test_markdown_has_every_value_and_picture():
    text = report.markdown("Measured here.", [PART])
    assert "| system | 4 | 512 |\n| --- | ---: | ---: |\n| lstm | 0.9877 | – |\n| a\\|b | 1 | 12,346 |" in text
    assert "A & B." in text
    assert re.findall(r"!\[.*\]\((.*)\)", text) == ["plots/recall-curve.png", "plots/recall-bars.png"]


def test_the_page_holds_its_pictures_and_asks_the_network_for_nothing():
    text = page("Title & more", "Measured <here>.", [PART])
    assert "Title &amp; more" in text and "Accuracy &lt;by&gt; distance" in text and "<td>0.9877</td>" in text
    assert text.count("<svg ") == 2 and "no FFN" in text  # text of a picture is text
    # Namespaces of SVG are names, not places.
    addresses = set(re.findall(r"https?://[^\"' <)]+", text))
    assert all(address.startswith(("http://www.w3.org/", "http://purl.org/")) for address in addresses)
    assert not re.search(r"<(script|link|img|iframe)", text) and "url(" not in re.sub(r"url\(#", "", text)
    # Ids that pictures refer to inside themselves are theirs alone.
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and len(re.findall("<clipPath id=", text)) == 2
    assert {"recall", "recall-curve", "recall-bars"} < set(ids)
    assert {name for name in re.findall(r'[("]#([^)"]+)', text) if name[0] != "f"} <= set(ids)


def test_pictures_are_the_same_bytes_each_time_and_tell_systems_apart():
    assert plots.draw(LINES, "png").startswith(b"\x89PNG")
    assert plots.draw(BARS, "svg") == plots.draw(BARS, "svg")
    drawn = plots.draw(BARS, "svg").decode()
    assert plots.COLOURS[1] in drawn and plots.COLOURS[2] in drawn  # of lstm and gru, which are second and third


def test_the_report_is_of_the_studies_that_have_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Cells(tmp_path / "recall.json").put("one", {"accuracy": 0.5})

    def tables(rows):
        return [Table("T", ["accuracy"], [[row["accuracy"]] for row in rows])]

    module = SimpleNamespace(TITLE="Recall", tables=tables, plots=lambda rows: [LINES])
    monkeypatch.setattr(report.importlib, "import_module", lambda name: {"recall": module}[name.rpartition(".")[2]])
    assert report.write_report(tmp_path) == tmp_path / "ladder.html"
    assert json.loads((tmp_path / "ladder.json").read_text())["recall"]["tables"][0]["rows"] == [[0.5]]
    markdown = (tmp_path / "ladder.md").read_text()
    assert "| 0.5 |" in markdown and "Measured on" in markdown
    assert (tmp_path / "plots" / "recall-curve.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {
        *("recall.json", "ladder.json", "ladder.md", "ladder.html", "plots"),
    }


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'vanilla-transformer\[plots\]'"):
        plots.require_matplotlib()

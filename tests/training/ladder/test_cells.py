"""Finished cells survive the process, and cells of two kinds never stand in one file."""

import json
from pathlib import Path

import pytest

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.ladder.cells import Cells, read_cells


def test_a_finished_cell_is_found_by_the_next_run(tmp_path: Path):
    path = tmp_path / "results" / "recall.json"
    first = Cells(path, {"lengths": (4, 8), "share": 0.5})
    assert not first.done("lstm/4")
    first.put("lstm/4", {"accuracy": 0.25})
    first.put("lstm/8", {"accuracy": 0.125})
    second = Cells(path, {"lengths": [4, 8], "share": 0.5})  # as JSON gives it back
    assert second.done("lstm/4") and not second.done("gru/4")
    assert second.rows() == [{"accuracy": 0.25}, {"accuracy": 0.125}]
    second.put("gru/4", {"accuracy": 1.0})
    settings, rows = read_cells(path)
    assert settings == {"lengths": [4, 8], "share": 0.5}
    assert list(rows) == ["lstm/4", "lstm/8", "gru/4"]


def test_the_file_says_where_and_with_what_it_was_measured(tmp_path: Path):
    Cells(tmp_path / "a.json").put("one", {})
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["machine"]["cpus"] >= 1 and "torch" in content["libraries"] and content["code"]["version"]


def test_other_settings_are_refused_with_each_change_named(tmp_path: Path):
    Cells(tmp_path / "a.json", {"training": {"updates": 100, "rate": 0.1}, "layers": 1, "same": True}).put("one", {})
    with pytest.raises(UsageError) as caught:
        Cells(tmp_path / "a.json", {"training": {"updates": 200, "rate": 0.1}, "layers": 2, "same": True})
    head, *lines = str(caught.value).splitlines()
    assert head.endswith("2 problems") and "give a new --output-dir" in head
    assert lines == [
        "  layers = 2: the rows in the file have 1",
        "  training.updates = 200: the rows in the file have 100",
    ]


@pytest.mark.parametrize("content", ["", "[]", '{"rows": {}}', '{"made_with": {}, "rows": 3}'])
def test_a_file_that_is_not_ours_is_named(tmp_path: Path, content: str):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=r"a\.json cannot be read as results of a study"):
        Cells(tmp_path / "a.json")


def test_a_row_that_is_no_json_leaves_the_file_as_it_was(tmp_path: Path):
    cells = Cells(tmp_path / "a.json")
    cells.put("one", {"loss": 1.5})
    before = (tmp_path / "a.json").read_bytes()
    with pytest.raises(ValueError, match="Out of range float"):
        cells.put("two", {"loss": float("nan")})
    assert (tmp_path / "a.json").read_bytes() == before

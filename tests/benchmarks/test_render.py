"""The tables are those of the result files, and have what a stranger needs to check a figure."""

import copy
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def render(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import render

    yield render
    for name in ("render", "result_files"):
        del sys.modules[name]


def test_the_page_and_the_readme_are_what_the_files_say(render):
    assert (ROOT / "benchmarks" / "results.md").read_text(encoding="utf-8") == render.page()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"<!-- results -->\n(.*?)\n<!-- /results -->", readme, flags=re.DOTALL)
    assert shown == render.readme_block()


def test_every_link_leads_somewhere(render):
    for text, folder in ((render.page(), ROOT / "benchmarks"), (render.readme_block(), ROOT)):
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert links
        assert [link for link in links if not (folder / link).exists()] == []


def test_a_row_by_hand(render):
    [run] = [run for run in render.result_files.runs() if run["name"] == "reverse"]
    run = copy.deepcopy(run)
    run["tests"][0]["scores"] = {"bleu": {"score": 12.344, "signature": "a|b"}, "chrf": {"score": 1, "signature": "c"}}
    run["remark"] = None
    first, second = render.tables([run], [], "").split("\n")[2:4]
    sha256 = run["tests"][0]["sha256"]["hypotheses"]
    file = f"[{sha256[:12]}](benchmarks/results/reverse.test.hypotheses.txt)"
    assert first.endswith(f"| test | BLEU 12.34 | a\\|b | {file} |")
    assert first.startswith(
        "| [reverse](recipes/reverse.yaml) ([manifest](benchmarks/results/reverse.json)) | 661,248 |"
    )
    assert second == "|  |  |  |  |  |  | chrF 1.00 | c |  |"


def test_seeds_have_a_mean_and_a_spread(render):
    score = {"mean": 41.0, "standard_deviation": 0.5, "signature": "s"}
    summary = {"name": "x", "recipe_name": "reverse", "seeds": [1, 2, 3], "command": "do", "remark": None}
    summary["tests"] = [{"name": "test2016", "scores": {"bleu": score}}]
    text = render.tables([], [summary], "")
    assert "| [reverse](recipes/reverse.yaml) | 1, 2, 3 | test2016 | BLEU 41.00 | 0.50 | s |" in text
    assert text.endswith("\n\nx: `do`")

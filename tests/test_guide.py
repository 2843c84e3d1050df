"""The guide's Python runs as it stands, its links lead somewhere, and its transcript is of the files beside it."""

import re
from pathlib import Path

import pytest

from vanilla_transformer.training.conversion import READERS, WRITERS

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "guide"
PAGES = ("use_a_model.md", "fine_tune.md", "share_a_model.md")


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.integration
@pytest.mark.parametrize("name", PAGES)
def test_the_python_runs_in_order(name: str, trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a tiny model in the place of the quickstart's."""
    (tmp_path / "runs" / "quickstart").mkdir(parents=True)
    (tmp_path / "runs" / "quickstart" / "final").symlink_to(trained.run / "final")
    monkeypatch.chdir(tmp_path)
    python = blocks(GUIDE / name, "python")
    assert python
    names: dict = {}
    for block in python:
        exec(compile(block, name, "exec"), names)


@pytest.mark.parametrize("page", sorted(GUIDE.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (GUIDE / target).exists(), target


def test_every_page_is_in_the_index():
    listed = set(re.findall(r"\]\((\w+\.md)\)", (GUIDE / "README.md").read_text(encoding="utf-8")))
    assert listed == {page.name for page in GUIDE.glob("*.md")} - {"README.md"}


def test_the_formats_are_those_that_are_converted():
    text = (GUIDE / "convert_a_model.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip(" `") for cell in row.split("|")] for row in re.findall(r"^\| (`.*)$", text, flags=re.MULTILINE)
    ]
    assert {name for name, read, *_ in rows if read} == set(READERS)
    assert {name for name, _, written, *_ in rows if written} == set(WRITERS)


def test_the_walk_through_shows_the_files_that_it_ran():
    shown = [text for language in ("yaml", "python") for text in blocks(GUIDE / "walkthrough.md", language)]
    files = [path.read_text(encoding="utf-8") for path in (GUIDE / "walkthrough").iterdir()]
    assert sorted(shown) == sorted(files)


def test_the_walk_through_gained_and_what_was_loaded_again_scores_the_same():
    text = (GUIDE / "walkthrough.md").read_text(encoding="utf-8")
    (before, _), (after, signature), (again, again_signature) = re.findall(r"BLEU (\d+\.\d\d)  (\S+)", text)
    assert float(before) < float(after) == float(again)
    assert signature == again_signature

"""Committed hypotheses score what the committed files say; a changed figure or text is seen."""

import json
import shutil
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def rescore(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import rescore

    yield rescore
    for name in ("rescore", "result_files"):
        del sys.modules[name]


def test_every_hypotheses_file_has_the_committed_scores(rescore, capsys):
    assert rescore.main() == 0
    checked = capsys.readouterr().out
    # its references are generated, so that no machine leaves it out
    assert "reverse test: bleu 86.9310754187418" in checked


def test_every_hypotheses_file_belongs_to_a_result(rescore):
    named = {test["hypotheses_file"] for run in rescore.result_files.runs() for test in run["tests"]}
    assert named == {path.name for path in (BENCHMARKS / "results").glob("*.hypotheses.txt")}


@pytest.fixture
def copied(rescore, tmp_path):
    """A folder with the result of the reverse task alone."""
    for path in (BENCHMARKS / "results").glob("reverse.*"):
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path


def test_a_changed_figure_is_seen(rescore, copied, capsys):
    result = json.loads((copied / "reverse.json").read_text(encoding="utf-8"))
    result["tests"][0]["scores"]["bleu"]["score"] += 1e-13
    (copied / "reverse.json").write_text(json.dumps(result), encoding="utf-8")
    assert rescore.main(copied) == 1
    assert ", and the file says 86.931" in capsys.readouterr().out


def test_a_changed_hypothesis_is_seen(rescore, copied, capsys):
    path = copied / "reverse.test.hypotheses.txt"
    path.write_text(path.read_text(encoding="utf-8").replace("1", "2", 1), encoding="utf-8")
    assert rescore.main(copied) == 1
    assert "reverse.test.hypotheses.txt is not the text that was scored" in capsys.readouterr().out


def test_references_that_are_not_here_are_said_and_no_failure(rescore, copied, capsys):
    result = json.loads((copied / "reverse.json").read_text(encoding="utf-8"))
    result["tests"][0]["references"] = ["nowhere/test.de.gz"]
    (copied / "reverse.json").write_text(json.dumps(result), encoding="utf-8")
    assert rescore.main(copied) == 0
    assert "reverse test: not checked, its references are not here" in capsys.readouterr().out


def test_samples_are_by_chance_and_the_worst(rescore, capsys):
    from argparse import Namespace

    import samples

    rows = [(f"s{n}", "ein haus", "ein haus" if n else "xyz") for n in range(5)]
    found = samples.samples(rows, 2)
    assert found["the worst"][0] == ("s0", "ein haus", "xyz")
    assert len(found["by chance"]) == 2 and found == samples.samples(rows, 2)
    samples.main(Namespace(result="reverse", test="test", count=3))
    page = capsys.readouterr().out
    assert page.startswith("# reverse: translations of test\n\n## By chance\n")
    for line in page.splitlines():
        if line.startswith("| ") and "source" not in line:
            source, reference, _ = line.strip("| ").split(" | ")
            assert reference.split() == source.split()[::-1]
    del sys.modules["samples"]

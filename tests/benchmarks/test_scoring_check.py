"""The committed figures of the scoring check come out again, and agree with the published ones."""

import json
import sys
from pathlib import Path

import pytest
from sacrebleu.dataset import DATASETS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
COMMITTED = json.loads((BENCHMARKS / "results" / "scoring_check.json").read_text(encoding="utf-8"))


@pytest.fixture
def scoring_check(shared_data, monkeypatch):
    """The benchmark as a module; sacreBLEU has read where its cache is already, so each set is told again."""
    cache = shared_data("sacrebleu_cache")
    monkeypatch.setenv("SACREBLEU", str(cache))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("wmt13", "wmt14", "iwslt17"):
        monkeypatch.setattr(DATASETS[name], "_outdir", str(cache / name))
    import scoring_check

    yield scoring_check
    del sys.modules["scoring_check"]


def test_twelve_system_outputs_and_tensorflow_nmt_s_own_figure(scoring_check):
    assert scoring_check.system_outputs() == COMMITTED["system_outputs"]
    assert scoring_check.nmt_fixture() == COMMITTED["nmt_fixture"]
    assert [row["agrees"] for row in COMMITTED["system_outputs"]] == [True] * 12
    assert COMMITTED["nmt_fixture"]["agrees"]
    assert (BENCHMARKS / "results" / "scoring_check.md").read_text(encoding="utf-8") == scoring_check.report(COMMITTED)


def test_a_wrong_figure_is_seen(scoring_check, monkeypatch):
    wrong = [{**row, "agrees": False} for row in COMMITTED["system_outputs"]]
    assert "| **no** |" in scoring_check.report({**COMMITTED, "system_outputs": wrong})
    monkeypatch.setattr(scoring_check, "NMT_PUBLISHED", 22.58550845)
    assert not scoring_check.nmt_fixture()["agrees"]

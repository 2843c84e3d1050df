"""decode_quality.py compares transformers' own search with ours, and not ours with itself."""

import sys
from pathlib import Path

import pytest

from vanilla_transformer.modeling import quick_search_vanilla_transformer as quick

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.integration
def test_every_side_translates_and_the_standard_without_our_search(trained, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "decode_quality", raising=False)
    import decode_quality

    searches = []

    def spy(*arguments, own=quick.beam_search):
        searches.append(own)
        return own(*arguments)

    monkeypatch.setattr(quick, "beam_search", spy)
    sources = list(trained.pairs)
    for side in decode_quality.SIDES:
        searches.clear()
        hypotheses, settings = decode_quality.hypotheses_of(trained.run / "final", side, sources)
        assert hypotheses == list(trained.pairs.values())  # learned by heart
        assert bool(searches) is (side != decode_quality.STANDARD)
        assert settings["num_beams"] > 1

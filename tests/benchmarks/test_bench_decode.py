"""The parts of bench_decode.py that compute: operations, shares, ratios, and the page."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True, scope="module")
def benchmarks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.syspath_prepend(str(BENCHMARKS / "peers"))
        yield


@pytest.fixture
def bench():
    import bench_decode

    return bench_decode


def test_operations_of_a_sentence(bench):
    # By hand, multiplications of base. Encoder and the decoder's keys and values of 1 token: 6 layers x (4 x 512^2 +
    # 2 x 512 x 2048 + 2 x 512 + 2 x 512^2). A step of one hypothesis: 6 x (6 x 512^2 + 2 x 512 x 2048) + 512 x 37,000,
    # and attention to its own positions and to the source's, 6 x 2 x 512 x (position + 1).
    encoder = 6 * (1_048_576 + 2_097_152 + 1024 + 524_288)
    step = 6 * (1_572_864 + 2_097_152) + 18_944_000
    assert bench.operations(1, 1, 4) == 2 * (encoder + step + 6 * 1024 * 2)
    # The second step has four hypotheses.
    assert bench.operations(1, 2, 4) - bench.operations(1, 1, 4) == 2 * 4 * (step + 6 * 1024 * 3)


class Fake:
    """Sides that take known times; the second one writes something else."""

    def __init__(self, seconds: dict[str, float]):
        self.seconds, self.turns = seconds, 0

    def products(self):
        return {kind: {"vocabulary": {"forward": 100.0}} for kind in ("float32", "bfloat16")}

    def turn(self, sources, beams, new_tokens):
        self.turns += 1
        assert {len(row) for row in sources} == {12} and {row[-1] for row in sources} == {2}
        return {
            name: {"seconds": seconds * len(sources), "outputs": [[number] for _ in sources]}
            for number, (name, seconds) in enumerate(self.seconds.items())
        }


def test_the_page_says_ratios_and_what_was_reached(bench):
    from bench_decode_report import report

    fake = Fake({"ours float32": 0.5, "marian float32": 1.0, "ours int8": 0.25, "ctranslate2 int8": 0.1})
    found = bench.measure(fake, (12, 6, 2))
    assert fake.turns == 4 * (1 + 2)  # a round warms up
    setting = found["settings"]["32 beam 4"]
    assert setting["ratios"]["ours float32"]["marian float32"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert setting["sides"]["ours float32"]["tokens_per_second"]["median"] == pytest.approx(6 / 0.5)
    share = bench.operations(12, 6, 4) / 0.5 / 100e9
    assert setting["sides"]["ours float32"]["share_of_limit"]["median"] == pytest.approx(share)
    assert "share_of_limit" not in setting["sides"]["ours int8"]
    assert setting["sides"]["marian float32"]["identical_to_ours_float32"] == 0
    facts = {"date": "2026-01-01", "seconds": 1, "threads": 1, "source_tokens": 12, "new_tokens": 6, "rounds": 2}
    machine = {"processor": "a processor", "cpus": 2, "threads": 2}
    page = report(
        found
        | facts
        | {"hardware": machine, "allocator": "none", "code": {"commit": "0123456789"}}
        | {"versions": {"ours float32": {"torch": "2"}}, "absent": {"ctranslate2 bfloat16": "no such type"}}
    )
    assert "ours float32 against marian float32, batch 32 beam 4: 2.00, aimed at 1.5: reached" in page
    assert "ours int8 against ctranslate2 int8, batch 32 beam 4: 0.40, aimed at 0.8: missed" in page
    assert "Not measured: ctranslate2 bfloat16: no such type" in page
    assert "2 cores" in page and "1 thread(s)" in page

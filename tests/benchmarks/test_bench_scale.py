"""The parts of bench_scale.py that compute: powers of growth, shares, and the arithmetic of GPUs."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True, scope="module")
def benchmarks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield


def test_growth_is_the_power_of_the_length():
    from bench_scale import growth

    points = [{"length": length, "linear": 7 * length, "quadratic": 3 * length**2} for length in (64, 128, 512)]
    assert growth(points, "linear") == pytest.approx(1)
    assert growth(points, "quadratic") == pytest.approx(2)


def test_a_share_compares_the_runs_of_one_round():
    from bench_scale_runs import summary

    share = summary([90.0, 40.0, 100.0], [100.0, 50.0, 100.0])["share"]
    assert share == {"median": pytest.approx(0.9), "min": pytest.approx(0.8), "max": pytest.approx(1.0)}


def test_a_ring_moves_every_byte_to_and_fro_but_for_its_own_part():
    from bench_scale_arithmetic import ring_seconds

    assert ring_seconds(1e9, 1, 1e9) == 0
    assert ring_seconds(1e9, 2, 1e9) == pytest.approx(1)  # half of it out and half of the sum back
    assert ring_seconds(1e9, 8, 1e9) == pytest.approx(1.75)


def test_base_on_one_gpu_by_hand():
    # 3 x (44.04 + 81.93) million FLOPs for a pair of tokens, 25,000 pairs, 100,000 updates: 9.448e17. At 40% of
    # 989e12 a second that is 2,388 s.
    from bench_scale_arithmetic import estimate

    one, many = estimate("base", 1), estimate("base", 64)
    assert one.flops == pytest.approx(3 * (44_040_192 + 81_928_192) * 25_000 * 100_000)
    assert one.hours_hidden == one.hours_exposed == pytest.approx(2388.3 / 3600, rel=1e-3)
    assert one.parameters == 63_045_632
    # 63,045,632 x 4 bytes, 2 x 63 / 64 of them over 50 GB/s
    assert many.communication_seconds == pytest.approx(63_045_632 * 4 * 1.96875 / 50e9)
    assert many.compute_seconds == pytest.approx(one.compute_seconds / 64)
    assert many.hours_hidden == pytest.approx(100_000 * many.communication_seconds / 3600)
    assert many.gpu_hours[1] == pytest.approx(64 * many.hours_exposed)


def test_points_vary_one_thing_at_a_time():
    from bench_scale import points

    series = points(quick=False)
    lengths = [point["length"] for point in series["one sentence, sdpa"]]
    assert (lengths[0], lengths[-1]) == (64, 4096)
    assert lengths == sorted(set(lengths))
    for name, varied in (("batch", "rows"), ("vocabulary", "vocabulary")):
        rest = [{key: value for key, value in point.items() if key != varied} for point in series[name]]
        assert rest.count(rest[0]) == len(rest)

"""bench_data.py: a corpus whose faults are known, stages and memory of a watched process, goals."""

import json
import sys
from pathlib import Path

import pytest

from vanilla_transformer.training.cleaning import DROPPED, DigestSet, Rules, clean, hold_out

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
POOL = [(f"one {number} two", f"eins {number} zwei") for number in range(50)]
HELD_OUT = [
    ("Never train on this.", "Nie damit trainieren."),
    ("Nor on that.", "Noch damit."),
    ("A pair whose sides differ that much fails an earlier check.", "Ratio."),
]


@pytest.fixture(autouse=True, scope="module")
def benchmarks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield


def test_cleaning_finds_every_fault_that_was_sown():
    from wmt_size_corpus import MAX_RATIO, SOWN, generate

    rows = list(generate(POOL, HELD_OUT, 2000, seed=3))
    sown = {reason: sum(row[2] == reason for row in rows) for reason in SOWN}
    assert all(sown.values())
    held_out, counters = DigestSet(), dict[str, int]()
    for source, _ in HELD_OUT:
        hold_out(source, held_out)
    kept = list(clean(((source, target) for source, target, _ in rows), Rules(max_ratio=MAX_RATIO), held_out, counters))
    assert kept == [(source, target) for source, target, reason in rows if reason is None]
    assert len(set(kept)) == len(kept) == 2000
    assert {name: counters[name] for name in DROPPED} == dict.fromkeys(DROPPED, 0) | sown


def test_a_seed_is_a_corpus():
    from wmt_size_corpus import generate

    once, again, other = (list(generate(POOL, HELD_OUT, 300, seed)) for seed in (1, 1, 2))
    assert once == again != other


def test_a_watched_process_tells_its_time_memory_and_words():
    from started import watched

    program = "import sys, time; held = bytearray(b'x') * 2**26; print('first', file=sys.stderr, flush=True); "
    program += "time.sleep(0.5); print('second', file=sys.stderr); print('result')"
    done = watched([sys.executable, "-c", program])
    assert done.stdout == "result\n"
    (first, one), (second, two) = done.said
    assert (one, two) == ("first", "second")
    assert second - first == pytest.approx(0.5, abs=0.3)
    assert done.seconds >= 0.5
    assert 2**26 < done.anonymous <= done.resident < 2**26 + 2**26


def test_a_process_that_fails_ends_the_benchmark_with_what_it_said():
    from started import watched

    with pytest.raises(SystemExit, match="exit code 3\nwhy"):
        watched([sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"])


def test_stages_begin_with_what_the_program_says():
    from bench_data import stages
    from started import Started

    said = [(1.0, "a warning"), (4.0, "Learning a vocabulary from 3 of 9 pairs."), (9.0, "Tokenising 9 pairs.")]
    assert stages(Started(15.0, 0.0, 0, 0, "", said)) == {"read_clean_store": 4, "vocabulary": 5, "tokenise": 6}


def test_a_counter_that_is_not_what_was_sown_is_a_problem():
    from bench_data import problems

    counters = {"read": 9, "kept": 4, "too_many_tokens": 1, "duplicate": 1, "empty": 1, "ratio": 1, "test_overlap": 1}
    assert problems(counters, counters | {"kept": 5}) == []
    assert problems(counters, counters | {"kept": 5, "empty": 2}) == ["empty: 1 instead of 2"]


@pytest.mark.integration
def test_the_whole_of_it_at_a_small_size(tmp_path, shared_data):
    from started import watched

    output = tmp_path / "result.json"
    watched(
        [sys.executable, str(BENCHMARKS / "bench_data.py"), "--pairs", "3000", "--vocabulary", "1000", "--data"]
        + [str(shared_data("wmt").parent), "--cache", str(tmp_path / "cache"), "--output", str(output)],
    )
    result = json.loads(output.read_text(encoding="utf-8"))
    whole, batches = result["prepare"]["whole"], result["batches"]
    assert whole["counters"]["kept"] + whole["counters"]["too_many_tokens"] == 3000
    assert sum(whole["seconds_of_stages"].values()) == pytest.approx(whole["seconds"])
    assert batches["pairs"] == whole["counters"]["kept"]
    assert batches["tokens_per_second"]["1 workers"]["median"] > 0
    assert result["import_time"]["vanilla-transformer --help"]["cpu_seconds"] < 0.5
    assert "| lines read |" in output.with_suffix(".md").read_text(encoding="utf-8")

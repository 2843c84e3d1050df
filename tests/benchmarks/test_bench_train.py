"""The parts of bench_train.py that compute: operations, speeds, ratios, the page, and batches equal for all sides."""

import json
import sys
from pathlib import Path

import pytest
import torch

from vanilla_transformer.modeling.loss_vanilla_transformer import shifted_right
from vanilla_transformer.training.batching import IGNORED_LABEL, micro_batches, plan_epoch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True, scope="module")
def benchmarks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.syspath_prepend(str(BENCHMARKS / "peers"))
        yield


@pytest.fixture
def figures():
    import bench_train_figures

    return bench_train_figures


def test_operations_of_a_pair(figures):
    # Worked by hand. Encoder: 2 tokens x (4 x 4 + 2 x 2 x 3) + 2 x 2 x 2 x 2 = 72. Decoder: 3 x (6 x 4 + 12), keys and
    # values of 2 tokens 2 x 8, own attention 2 x 9 x 2, cross-attention 2 x 6 x 2: 184. Softmax: 3 x 2 x 5 = 30.
    tiny = figures.Dimensions(layers=1, d_model=2, d_ff=3, heads=1, vocabulary=5, dropout=0.1)
    assert figures.operations(tiny, source=2, target=3) == 6 * (72 + 184 + 30)
    # The paper's base, a pair of one token each: 44.04 million forward for the source's, 81.93 for the target's, times
    # three, and attention: 6 layers x 3 x 2 x 512 x 6.
    base = figures.Dimensions(layers=6, d_model=512, d_ff=2048, heads=8, vocabulary=37_000, dropout=0.1)
    assert figures.operations(base, 1, 1) == 3 * (44_040_192 + 81_928_192) + 110_592


def test_work_counts_tokens_and_pads(figures):
    tiny = figures.Dimensions(layers=1, d_model=2, d_ff=3, heads=1, vocabulary=5, dropout=0.1)
    # Lengths (2, 3) and (1, 1): 7 tokens; two rows of 2 + 3 padded. A pair (1, 1): 6 x (28 + 4 + 52 + 10) operations.
    work = figures.work_of(tiny, [([7, 2], [8, 9, 2]), ([2], [2])])
    assert work == figures.Work(7, 10, 1716 + 564, 2 * 1716)
    assert work + work == figures.Work(14, 20, 4560, 6864)


def test_speeds_and_ratios(figures):
    works = [figures.Work(10, 20, 100, 160)] * 3
    speeds = figures.speeds([2.0, 4.0, 1.0], works, limit=200.0)
    assert speeds["tokens_per_second"] == {"median": 5.0, "min": 2.5, "max": 10.0}
    assert speeds["padded_tokens_per_second"]["median"] == 10.0
    assert speeds["mfu"] == {"median": 0.25, "min": 0.125, "max": 0.5}
    assert speeds["mfu_with_padding"]["median"] == 0.4
    # Round by round 2, 1 and 2.5 times as fast; the ratio of the medians would be 1.
    assert figures.ratio([1.0, 2.0, 4.0], [2.0, 2.0, 10.0]) == {"median": 2.0, "min": 1.0, "max": 2.5}


def test_limits_are_medians_of_every_rate(figures):
    rounds = [{"float32": {"vocabulary": {"all": rate}}} for rate in (90.0, 130.0, 100.0)]
    assert figures.limits(rounds) == {"float32": {"vocabulary": {"all": 100.0}}}


PAIRS = [([*range(5, 5 + s), 2], [*range(30, 30 + t), 2]) for s, t in [(3, 4), (1, 1), (5, 2), (2, 6), (4, 4), (7, 3)]]


def test_other_sides_get_the_updates_that_the_loop_makes(tmp_path):
    from bench_train_batches import SEED, plan_updates
    from side_ours import pairs_in
    from worker import PAD, make_batch

    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(PAIRS))
    lengths = [[len(pair[side]) for pair in PAIRS] for side in (0, 1)]
    plan = plan_epoch(*lengths, 16, 16, SEED, epoch=1)
    ours = list(micro_batches(pairs_in(path), plan, pad_id=PAD))
    updates = plan_updates(PAIRS, 16)
    assert len(updates) == len(ours) > 1
    for update, pairs in zip(ours, updates, strict=True):
        batch, [expected] = make_batch(json.loads(json.dumps(pairs))), update.batches
        assert torch.equal(batch.source, expected["input_ids"])
        assert torch.equal(batch.mask, expected["attention_mask"])
        labels = batch.labels.masked_fill(batch.labels.eq(PAD), IGNORED_LABEL)
        assert torch.equal(labels, expected["labels"])
        real = batch.labels.ne(PAD)
        assert torch.equal(batch.inputs[real], shifted_right(labels, PAD, 0)[real])
        assert batch.target_tokens == update.target_tokens


def model_result(**ratios: float) -> dict:
    """What the page reads of a run with these ratios of ours in bfloat16, and the same halved in float32."""
    spread = {name: {"median": value, "min": value - 0.1, "max": value + 0.1} for name, value in ratios.items()}
    half = {name: {"median": value / 2, "min": value / 2, "max": value / 2} for name, value in ratios.items()}
    speed = {"median": 1234.0, "min": 1200.0, "max": 1300.0}
    side = {"tokens_per_second": speed, "padded_tokens_per_second": speed}
    side |= {"mfu": {"median": 0.5}, "mfu_with_padding": {"median": 0.51}}
    rate = {"vocabulary": {"all": 100.0}, "feed_forward": {"all": 120.0}}
    return {
        "model": dict(layers=6, d_model=512, d_ff=2048, heads=8, vocabulary=37_000, dropout=0.1),
        "threads": 1,
        "text": "Some text",
        "budget": 1024,
        "rounds": 5,
        "updates_a_round": 2,
        "tokens_a_round": [1000, 1100],
        "padding": 0.05,
        "gflops": {"float32": rate, "bfloat16": rate},
        "workers": {"marian": {"versions": {"torch": "2.13.0+cpu"}}},
        "absent": {"sockeye": "ImportError: no such thing"},
        "sides": {name: side for name in ("ours float32", "ours bfloat16", *ratios)},
        "ratios": {"ours float32": half, "ours bfloat16": spread},
    }


LIMIT = "; at an MFU of 100% it would be "  # ours is at 50%


def test_the_page_says_how_far_every_goal_is(benchmarks):
    from bench_train_report import goal_lines

    model = model_result(
        **{
            "marian sdpa float32": 2.5,
            "marian eager bfloat16": 1.3,
            "joeynmt float32": 2.0,
            "joeynmt bfloat16": 1.7,
            "eole bfloat16": 1.55,
        }
    )
    assert goal_lines("base", model) == [
        "ours bfloat16 against Marian, sdpa, float32: 2.50, aimed at 2.40: reached" + LIMIT + "5.00",
        "ours bfloat16 against Marian, eager, bfloat16: 1.30, aimed at 1.40: missed" + LIMIT + "2.60",
        "ours bfloat16 against the fastest toolkit at its best precision (eole bfloat16): 1.55, aimed at 1.60: missed"
        + LIMIT
        + "3.10",
        "ours float32 against marian sdpa float32 (float32 against float32): 1.25, aimed at 1.20: reached"
        + LIMIT
        + "2.50",
        "ours float32 against joeynmt float32 (float32 against float32): 1.00, aimed at 1.20: missed" + LIMIT + "2.00",
        "MFU in bfloat16: 50%, aimed at 55%: missed",
    ]
    assert goal_lines("multi30k-tiny", model) == [
        "ours bfloat16 against Marian at its best setting (marian eager bfloat16): 1.30, aimed at 2.50: missed"
        + LIMIT
        + "2.60"
    ]


def test_the_page_has_every_side_and_the_reason_of_every_absent_one(benchmarks):
    from bench_train_report import report

    page = report(
        {
            "date": "2026-12-01",
            "code": {"commit": "0123456789", "changed": True},
            "hardware": {"processor": "a processor", "cpus": 2},
            "allocator": "the C library's",
            "results": {"base": model_result(**{"marian sdpa float32": 2.5})},
        }
    )
    cells = "| marian sdpa float32 | 1,234 (1,200 to 1,300) | 1,234 | 50% | 51% | 1.25 (1.25 to 1.25) x | 2.50 "
    assert cells in page
    assert "Not measured: sockeye: ImportError: no such thing" in page
    assert "commit 0123456 and changes" in page and "torch 2.13.0+cpu" in page
    assert "2,100 tokens in all, 5.0% padding" in page


ANSWERS = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "die":
        sys.exit("out of order")
    print(json.dumps({"error": "ValueError: bad"} if request["do"] == "fail" else {"heard": request}), flush=True)
"""


def test_a_side_answers_fails_and_dies_with_its_reason(tmp_path, monkeypatch):
    import bench_train_workers
    from peer_environments import PeerUnavailable

    monkeypatch.setattr(bench_train_workers, "PEERS", tmp_path)
    (tmp_path / "side.py").write_text(ANSWERS)
    worker = bench_train_workers.Worker("side", sys.executable, "side.py", 1, tmp_path)
    try:
        assert worker.ask({"do": "update"}) == {"heard": {"do": "update"}}
        with pytest.raises(PeerUnavailable, match="^ValueError: bad$"):
            worker.ask({"do": "fail"})
        assert worker.ask({"do": "again"}) == {"heard": {"do": "again"}}  # an error ends no side
        with pytest.raises(PeerUnavailable, match="ended with 1: out of order"):
            worker.ask({"do": "die"})
    finally:
        worker.close()


def test_an_environment_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    import peer_environments

    monkeypatch.setattr(peer_environments, "PEERS", {"odd": peer_environments.Peer("odd", ())})
    monkeypatch.setattr(peer_environments.sys, "executable", "false")
    with pytest.raises(peer_environments.PeerUnavailable, match="exit code 1"):
        peer_environments.python_of("odd", tmp_path)


@pytest.mark.parametrize(
    ("installed", "gpu", "system", "expected"),
    [
        ("2.13.0+cpu", False, "Linux", "torch==2.13.0+cpu"),
        ("2.13.0+cu130", False, "Linux", "torch==2.13.0+cpu"),
        ("2.13.0+cu130", True, "Linux", "torch==2.13.0"),
        ("2.13.0", False, "Darwin", "torch==2.13.0"),
    ],
)
def test_a_machine_without_gpu_gets_no_cuda(installed, gpu, system, expected, monkeypatch):
    import peer_environments

    monkeypatch.setattr(peer_environments.torch, "__version__", installed)
    monkeypatch.setattr(peer_environments.torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(peer_environments.platform, "system", lambda: system)
    assert peer_environments.torch_requirement() == expected

import gzip
import itertools
import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer.configuration.errors import CorpusError, UsageError
from vanilla_transformer.training.batching import collate, micro_batches, plan_epoch
from vanilla_transformer.training.token_columns import pair_lengths

PAD = 1


@st.composite
def corpora(draw):
    """Lengths of 1 to 150 pairs, and budgets that the longest side may or may not fit."""
    pairs = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=150))
    source, target = np.array(pairs).T
    smallest = int(np.maximum(source, target).min())
    budget = st.integers(smallest, 300)
    return source, target, draw(budget), draw(budget)


def contents(plan):
    return [sorted(np.concatenate(update).tolist()) for update in plan]


@given(corpora(), st.integers(0, 5), st.integers(0, 5), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_every_pair_is_in_one_update_or_counted_and_budgets_hold(corpus, seed, epoch, parts):
    source, target, max_source, max_target = corpus
    plan = plan_epoch(source, target, max_source, max_target, seed, epoch, parts)
    planned = [row for update in contents(plan) for row in update]
    too_long = [i for i, (s, t) in enumerate(zip(source, target, strict=True)) if s > max_source or t > max_target]
    assert sorted(planned + too_long) == list(range(len(source)))
    assert plan.over_budget.tolist() == too_long
    assert plan.counters["pairs"] == len(source) == plan.counters["planned"] + plan.counters["over_budget"]
    padded_source = padded_target = 0
    for index, update in enumerate(plan):
        assert len(update) == parts
        rows = np.concatenate(update)
        assert 0 < len(rows) * source[rows].max() <= max_source
        assert 0 < len(rows) * target[rows].max() <= max_target
        assert plan.source_tokens[index] == source[rows].sum()
        assert plan.target_tokens[index] == target[rows].sum()
        # A part is only empty where there are fewer pairs than parts.
        assert sum(len(part) > 0 for part in update) == min(parts, len(rows))
        padded_source += sum(len(part) * source[part].max() for part in update if len(part))
        padded_target += sum(len(part) * target[part].max() for part in update if len(part))
    assert plan.counters["padded_source_tokens"] == padded_source
    assert plan.counters["padded_target_tokens"] == padded_target


@given(corpora(), st.integers(2, 9))
@settings(max_examples=100, deadline=None)
def test_updates_do_not_depend_on_the_number_of_parts(corpus, parts):
    whole, split = plan_epoch(*corpus, seed=1, epoch=2), plan_epoch(*corpus, seed=1, epoch=2, parts=parts)
    assert contents(whole) == contents(split)
    assert whole.target_tokens.tolist() == split.target_tokens.tolist()
    assert split.counters["padded_source_tokens"] <= whole.counters["padded_source_tokens"]
    assert split.counters["padded_target_tokens"] <= whole.counters["padded_target_tokens"]


@given(corpora(), st.integers(0, 2**31), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_a_plan_is_a_function_of_seed_and_epoch(corpus, seed, epoch):
    np.random.seed(0)
    first = plan_epoch(*corpus, seed, epoch, 3)
    np.random.seed(1)
    second = plan_epoch(*corpus, seed, epoch, 3)
    assert first.rows.tolist() == second.rows.tolist()
    assert first.bounds.tolist() == second.bounds.tolist()


def test_epochs_and_seeds_differ():
    random = np.random.default_rng(0)
    source, target = random.integers(1, 30, (2, 2000))
    plans = [plan_epoch(source, target, 500, 500, seed, epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        together_a, together_b = ({frozenset(update) for update in contents(plans[i])} for i in (a, b))
        assert len(together_a & together_b) < len(together_a) / 10


def test_updates_come_in_no_order_of_length():
    source = target = np.repeat(np.arange(1, 41), 50)
    plan = plan_epoch(source, target, 200, 200, seed=1, epoch=0)
    longest = [source[np.concatenate(update)].max() for update in plan]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2


def test_equal_lengths_fill_the_budget_exactly():
    # 100 pairs of 5 and 4 tokens: 50 // 5 = 10 pairs an update by the source, 48 // 4 = 12 by the target.
    plan = plan_epoch(np.full(100, 5), np.full(100, 4), 50, 48, seed=1, epoch=0)
    assert [len(update) for update in contents(plan)] == [10] * 10
    assert plan.padding == 0


def test_a_remainder_is_shared_with_the_update_before_it():
    # 11 pairs of 10 tokens in updates of at most 10: not 10 and 1.
    plan = plan_epoch(np.full(11, 10), np.full(11, 10), 100, 100, seed=1, epoch=0)
    assert sorted(len(update) for update in contents(plan)) == [5, 6]


def test_parts_are_of_near_equal_cost():
    random = np.random.default_rng(0)
    source = random.integers(1, 100, 3000)
    target = np.maximum(1, source + random.integers(-5, 6, 3000))
    plan = plan_epoch(source, target, 10_000, 10_000, seed=1, epoch=0, parts=4)
    for update in plan:
        costs = [(source[part] + target[part]).sum() for part in update]
        # Up to a pair at each edge.
        assert max(costs) - min(costs) <= 2 * 2 * 104


def test_one_pair_alone():
    plan = plan_epoch(np.array([7]), np.array([9]), 9, 9, seed=1, epoch=0, parts=3)
    assert [part.tolist() for part in plan[0]] == [[0], [], []]
    assert plan.target_tokens.tolist() == [9]


def test_no_pair_and_no_fitting_pair_are_named_errors():
    with pytest.raises(CorpusError, match="no sentence pair"):
        plan_epoch(np.array([]), np.array([]), 100, 100, seed=1, epoch=0)
    with pytest.raises(UsageError, match="training.max_source_tokens = 10 .* the shortest one needs 11 tokens"):
        plan_epoch(np.array([11, 30]), np.array([5, 5]), 10, 10, seed=1, epoch=0)


def lines(path):
    return gzip.open(path, "rt", encoding="utf-8", newline="\n").read().split("\n")[:-1]


def token_lengths(texts, vocab_size):
    """Lengths, end token included, under a plain shared BPE: independent of the package's own tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Metaspace()
    bpe.train_from_iterator([line for side in texts for line in side], trainers.BpeTrainer(vocab_size=vocab_size))
    return [np.array([len(encoding.ids) + 1 for encoding in bpe.encode_batch(side)]) for side in texts]


def test_padding_on_multi30k_is_below_8_percent(shared_data):
    texts = [lines(shared_data("multi30k") / f"train.{language}.gz") for language in ("en", "de")]
    source, target = token_lengths(texts, vocab_size=8000)
    for budget, epoch in itertools.product((4096, 8192), range(3)):
        plan = plan_epoch(source, target, budget, budget, seed=1, epoch=epoch)
        assert plan.counters["planned"] == 29_000
        assert plan.padding < 0.08
        # Full updates, too: no cheap way out through small ones.
        assert plan.source_tokens.sum() + plan.target_tokens.sum() > 0.85 * len(plan) * 2 * budget


def test_padding_on_the_length_distribution_of_newstest_is_below_8_percent(shared_data):
    texts = [
        lines(shared_data("wmt") / f"newstest2013.{language}.gz")
        + lines(shared_data("wmt") / f"newstest2014-full.en-de.{language}.gz")
        for language in ("en", "de")
    ]
    source, target = token_lengths(texts, vocab_size=8000)
    # 6,003 pairs make only eight updates of 25,000 tokens; this has their lengths and a tenth of the size of WMT.
    source, target = np.tile(source, 75), np.tile(target, 75)
    plan = plan_epoch(source, target, 25_000, 25_000, seed=1, epoch=0)
    assert plan.counters["planned"] == 450_225
    assert plan.padding < 0.08
    assert plan.source_tokens.sum() + plan.target_tokens.sum() > 0.85 * len(plan) * 50_000


def tokenised(pairs=300, chunks=(300,)):
    """A dataset whose ids tell their row: the source of row i is i+100 repeated, its target i+1000 repeated."""
    random = np.random.default_rng(3)
    source, target = random.integers(1, 20, pairs), random.integers(1, 20, pairs)
    columns = {
        "source_ids": [[i + 100] * int(n) for i, n in enumerate(source)],
        "target_ids": [[i + 1000] * int(n) for i, n in enumerate(target)],
        "line": [10 * i for i in range(pairs)],
    }
    whole = datasets.Dataset.from_dict(columns)
    edges = np.cumsum([0, *chunks])
    pieces = [whole.select(range(a, b)).flatten_indices() for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return datasets.concatenate_datasets(pieces), source, target


def same(a, b):
    return (
        a.number == b.number
        and a.lines.tolist() == b.lines.tolist()
        and len(a.batches) == len(b.batches)
        and all(
            x is y is None or x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)
            for x, y in zip(a.batches, b.batches, strict=True)
        )
    )


@pytest.mark.parametrize("chunks", [(300,), (7, 100, 0, 1, 192)])
def test_batches_hold_the_rows_of_the_plan_padded_on_the_right(chunks):
    dataset, source, target = tokenised(chunks=chunks)
    plan = plan_epoch(*pair_lengths(dataset), 150, 150, seed=1, epoch=0, parts=2)
    for update in micro_batches(dataset, plan, pad_id=PAD):
        parts = plan[update.number]
        assert update.target_tokens == sum(target[part].sum() for part in parts)
        assert update.lines.tolist() == [10 * row for part in parts for row in part]
        for batch, part in zip(update.batches, parts, strict=True):
            if not len(part):
                assert batch is None
                continue
            width, label_width = source[part].max(), target[part].max()
            assert batch["input_ids"].tolist() == [
                [row + 100] * source[row] + [PAD] * (width - source[row]) for row in part
            ]
            assert batch["attention_mask"].tolist() == [[1] * source[row] + [0] * (width - source[row]) for row in part]
            assert batch["labels"].tolist() == [
                [row + 1000] * target[row] + [-100] * (label_width - target[row]) for row in part
            ]
            assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_processes_share_the_parts_of_an_update():
    dataset, _, _ = tokenised()
    plan = plan_epoch(*pair_lengths(dataset), 150, 150, seed=1, epoch=0, parts=4)
    alone = list(micro_batches(dataset, plan, pad_id=PAD))
    shares = [list(micro_batches(dataset, plan, process_index=p, world_size=2, pad_id=PAD)) for p in range(2)]
    for whole, first, second in zip(alone, *shares, strict=True):
        assert same(
            whole, whole._replace(batches=[first.batches[0], second.batches[0], first.batches[1], second.batches[1]])
        )
        assert first.target_tokens == second.target_tokens == whole.target_tokens
    with pytest.raises(ValueError, match="4 parts cannot be shared evenly by 3 processes"):
        micro_batches(dataset, plan, world_size=3, pad_id=PAD)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1000), st.integers(25, 120))
@settings(max_examples=40, deadline=None)
def test_any_number_of_processes_sees_every_pair_once_in_the_same_updates(pairs, world, accumulation, seed, budget):
    dataset, source, target = tokenised(pairs, chunks=(pairs,))
    whole = list(micro_batches(dataset, plan_epoch(source, target, budget, budget, seed, 1), pad_id=PAD))
    plan = plan_epoch(source, target, budget, budget, seed, 1, parts=world * accumulation)
    shares = [list(micro_batches(dataset, plan, 0, process, world, pad_id=PAD)) for process in range(world)]
    rows = []
    for alone, *parts in zip(whole, *shares, strict=True):
        here = [batch for part in parts for batch in part.batches if batch is not None]
        assert all(len(part.batches) == accumulation for part in parts)
        assert sum((batch["labels"] != -100).sum() for batch in here) == alone.target_tokens == parts[0].target_tokens
        seen = sorted(row - 100 for batch in here for row in batch["input_ids"][:, 0].tolist())
        assert [10 * row for row in seen] == sorted(alone.lines.tolist()) == sorted(parts[0].lines.tolist())
        rows += seen
    assert sorted(rows) == list(range(pairs))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_and_a_later_start_do_not_change_the_sequence(workers):
    dataset, _, _ = tokenised()
    plan = plan_epoch(*pair_lengths(dataset), 150, 150, seed=1, epoch=0)
    expected = list(micro_batches(dataset, plan, pad_id=PAD))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    got = list(micro_batches(dataset, plan, first_update=3, num_workers=workers, pad_id=PAD))
    assert torch.equal(before, torch.get_rng_state())
    assert len(got) == len(plan) - 3
    assert all(same(a, b) for a, b in zip(expected[3:], got, strict=True))


def test_a_selection_of_rows_is_respected():
    dataset, source, _ = tokenised()
    chosen = dataset.select([5, 2, 250])
    assert pair_lengths(chosen)[0].tolist() == source[[5, 2, 250]].tolist()
    plan = plan_epoch(*pair_lengths(chosen), 1000, 1000, seed=1, epoch=0)
    (update,) = micro_batches(chosen, plan, pad_id=PAD)
    assert sorted(update.lines.tolist()) == [20, 50, 2500]


def test_collate_pads_on_the_right():
    batch = collate(
        [{"source_ids": [5, 6, 2], "target_ids": [7, 2]}, {"source_ids": [2], "target_ids": [8, 9, 2]}], pad_id=PAD
    )
    assert batch["input_ids"].tolist() == [[5, 6, 2], [2, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[7, 2, -100], [8, 9, 2]]


# An update is taken and the iterator kept, as a traceback keeps it, while Python ends.
ENDS_EARLY = """
import sys
import datasets
from vanilla_transformer.training.batching import micro_batches, plan_epoch
from vanilla_transformer.training.token_columns import pair_lengths

ids = datasets.List(datasets.Value("int32"))
features = datasets.Features(source_ids=ids, target_ids=ids, line=datasets.Value("int64"))
rows = {"source_ids": [[5, 2]] * 400, "target_ids": [[6, 2]] * 400, "line": list(range(1, 401))}
pairs = datasets.Dataset.from_dict(rows, features=features)
plan = plan_epoch(*pair_lengths(pairs), 4, 4, seed=1, epoch=0)
updates = micro_batches(pairs, plan, num_workers=1, pad_id=1)
next(updates)
print("ends")
"""


@pytest.mark.integration
def test_a_program_that_leaves_an_epoch_unfinished_ends():
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr

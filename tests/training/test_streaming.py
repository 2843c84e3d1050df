import json

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.recipe_sections import TokenizerConfig
from vanilla_transformer.training.streaming import StreamedPairs
from vanilla_transformer.training.tokenizer import train_tokenizer

PAIRS = 230
# The source of pair i holds the word i, so every row of a batch tells where it comes from.
SOURCES = [f"{i} " + "a " * (i * 7 % 11) for i in range(PAIRS)]
TARGETS = ["b " * (1 + i * 5 % 13) for i in range(PAIRS)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SOURCES + TARGETS, TokenizerConfig(vocab_size=1000, type="words"))


def rows(shards):
    for shard in shards:
        for i in shard:
            yield {"translation": {"en": SOURCES[i], "xx": TARGETS[i]}}


def stream():
    """Three shards and a filter, as a corpus on the Hub after cleaning has."""
    shards = [list(range(0, 50)), list(range(50, 180)), list(range(180, PAIRS))]
    pairs = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": shards})
    return pairs.filter(lambda row: not row["translation"]["en"].startswith("7 "))


@pytest.fixture
def streamed(tokenizer):
    return StreamedPairs(stream(), ("en", "xx"), tokenizer, max_length=12, buffer_pairs=60)


def updates(streamed, **options):
    return list(
        streamed.updates(
            **{"max_source_tokens": 60, "max_target_tokens": 70, "seed": 1, "epoch": 0, "pad_id": 1} | options
        )
    )


def seen(tokenizer, some_updates):
    """The numbers of the pairs in some updates, in order."""
    batches = [batch for update in some_updates for batch in update.batches if batch is not None]
    return [int(tokenizer.decode([ids])) for batch in batches for ids in batch["input_ids"][:, 0].tolist()]


def same(a, b):
    return (
        (a.number, a.target_tokens, a.source_tokens, a.last, a.cursor)
        == (b.number, b.target_tokens, b.source_tokens, b.last, b.cursor)
        and a.lines.tolist() == b.lines.tolist()
        and all(
            torch.equal(x[name], y[name]) for x, y in zip(a.batches, b.batches, strict=True) if x or y for name in x
        )
    )


def fits(i):
    # words and </s>
    return 1 + i * 7 % 11 + 1 <= 12 and 1 + i * 5 % 13 + 1 <= 12 and i != 7


def test_every_pair_comes_once_an_epoch_within_the_budgets(streamed, tokenizer):
    got = updates(streamed)
    assert sorted(seen(tokenizer, got)) == [i for i in range(PAIRS) if fits(i)]
    for update in got:
        (batch,) = update.batches
        assert batch["input_ids"].numel() <= 60
        assert batch["labels"].numel() <= 70
        assert update.target_tokens == (batch["labels"] != -100).sum()
    assert [update.number for update in got] == list(range(len(got)))
    assert [update.last for update in got] == [False] * (len(got) - 1) + [True]
    kept = sum(map(fits, range(PAIRS)))
    assert streamed.counters == {
        "read": PAIRS - 1,
        "planned": kept,
        "too_many_tokens": PAIRS - 1 - kept,
        "over_budget": 0,
    }


def test_epochs_differ_and_repeat(streamed, tokenizer):
    orders = [seen(tokenizer, updates(streamed, epoch=epoch)) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != seen(tokenizer, updates(streamed, seed=2))


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_run_goes_on_at_any_update_with_and_without_a_cursor(streamed, tokenizer, epoch):
    whole = updates(streamed, epoch=epoch)
    for first in range(0, len(whole), 7):
        # As it comes back from a checkpoint, in a fresh process.
        cursor = json.loads(json.dumps(whole[first].cursor))
        again = StreamedPairs(stream(), ("en", "xx"), tokenizer, max_length=12, buffer_pairs=60)
        rest = updates(again, epoch=epoch, first_update=first, cursor=cursor)
        assert len(rest) == len(whole) - first
        assert all(same(a, b) for a, b in zip(whole[first:], rest, strict=True))
        assert again.counters["read"] == PAIRS - 1 - cursor["pairs"]
    rest = updates(streamed, epoch=epoch, first_update=11)
    assert all(same(a, b) for a, b in zip(whole[11:], rest, strict=True))


def test_processes_see_the_parts_of_one_update(streamed, tokenizer):
    whole = updates(streamed)
    shares = [updates(streamed, parts=4, process_index=process, world_size=2) for process in range(2)]
    assert len(shares[0]) == len(shares[1]) == len(whole)
    for one, first, second in zip(whole, *shares, strict=True):
        assert sorted(seen(tokenizer, [one])) == sorted(seen(tokenizer, [first, second]))
        assert first.target_tokens == second.target_tokens == one.target_tokens


def test_pairs_over_the_budget_are_counted(streamed, tokenizer):
    got = updates(streamed, max_source_tokens=5, max_target_tokens=60)
    planned = [i for i in range(PAIRS) if fits(i) and 2 + i * 7 % 11 <= 5]
    assert sorted(seen(tokenizer, got)) == planned
    assert streamed.counters["over_budget"] == sum(map(fits, range(PAIRS))) - len(planned)


def test_a_stream_without_a_usable_pair_is_a_corpus_error(streamed):
    with pytest.raises(CorpusError, match="holds no pair that fits"):
        updates(streamed, max_source_tokens=1)


def test_lines_count_the_pairs_of_the_stream(streamed, tokenizer):
    # 7 is filtered out before, so pair 8 is the eighth of the stream.
    lines = np.concatenate([update.lines for update in updates(streamed)]).tolist()
    assert sorted(lines) == [i + 1 if i < 7 else i for i in range(PAIRS) if fits(i)]


def rows_of_lengths(shards):
    for number, source, target in (pair for shard in shards for pair in shard):
        yield {"translation": {"en": f"{number}" + " a" * source, "xx": "b " * target}}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(1, 70),
    st.integers(13, 60),
    st.floats(0, 1),
)
def test_any_stream_is_read_once_within_the_budget_and_taken_up_anywhere(
    tokenizer, lengths, shards, buffer, budget, where
):
    pairs = [(number, *sides) for number, sides in enumerate(lengths)]
    cut = [pairs[number::shards] for number in range(min(shards, len(pairs)))]

    def fresh():
        stream = datasets.IterableDataset.from_generator(rows_of_lengths, gen_kwargs={"shards": cut})
        return StreamedPairs(stream, ("en", "xx"), tokenizer, max_length=12, buffer_pairs=buffer)

    # The number, the words and </s>; the words and </s>.
    kept = [number for number, source, target in pairs if source + 2 <= 12 and target + 1 <= 12]
    options = {"max_source_tokens": budget, "max_target_tokens": budget}
    if not kept:
        with pytest.raises(CorpusError, match="no pair that fits"):
            updates(fresh(), **options)
        return
    whole = updates(fresh(), **options)
    assert sorted(seen(tokenizer, whole)) == kept
    assert all(max(tensor.numel() for tensor in update.batches[0].values()) <= budget for update in whole)
    first = int(where * (len(whole) - 1))
    cursor = json.loads(json.dumps(whole[first].cursor))
    rest = updates(fresh(), **options, first_update=first, cursor=cursor)
    assert len(rest) == len(whole) - first
    assert all(same(a, b) for a, b in zip(whole[first:], rest, strict=True))


def test_a_stream_that_breaks_off_says_where_and_goes_on_with_resume(tokenizer):
    def broken():
        yield {"translation": {"en": "1 a", "xx": "b"}}
        raise ConnectionResetError("Connection reset by peer\nadvice for programmers")

    streamed = StreamedPairs(
        datasets.IterableDataset.from_generator(broken), ("en", "xx"), tokenizer, max_length=12, buffer_pairs=60
    )
    with pytest.raises(CorpusError) as caught:
        updates(streamed)
    assert str(caught.value) == (
        "The training stream broke off after 1 rows (Connection reset by peer). Check the network and the data, then "
        "continue with --resume."
    )


def test_a_fault_of_the_data_in_a_stream_keeps_its_own_words(tokenizer):
    def wrong():
        yield {"translation": {"en": "1 a", "xx": "b"}}
        raise CorpusError("train.en:2: not valid UTF-8")

    streamed = StreamedPairs(
        datasets.IterableDataset.from_generator(wrong), ("en", "xx"), tokenizer, max_length=12, buffer_pairs=60
    )
    with pytest.raises(CorpusError, match="^train.en:2: not valid UTF-8$"):
        updates(streamed)

import random

import pytest

from vanilla_transformer.training.named_corpora import load_named_corpus, reverse_pairs


@pytest.fixture(scope="module")
def splits():
    return load_named_corpus("reverse", "src", "trg").splits


def test_targets_are_the_sources_reversed_digits(splits):
    for pairs in splits.values():
        for source, target in pairs:
            digits = source.split(" ")
            assert target.split(" ") == digits[::-1]
            assert all(len(digit) == 1 and digit in "0123456789" for digit in digits)


@pytest.mark.parametrize(("split", "count", "longest"), [("train", 50_000, 10), ("dev", 500, 15), ("test", 1_000, 15)])
def test_sizes_and_lengths(splits, split, count, longest):
    lengths = [len(source.split()) for source, _ in splits[split]]
    assert len(lengths) == count
    assert set(lengths) == set(range(1, longest + 1))
    # uniform: within five standard deviations of a binomial count
    expected, deviation = count / longest, (count / longest * (1 - 1 / longest)) ** 0.5
    assert all(abs(lengths.count(length) - expected) < 5 * deviation for length in set(lengths))


def test_no_held_out_source_of_five_digits_or_more_is_in_training(splits):
    training = {source for source, _ in splits["train"]}
    held_out = [source for split in ("dev", "test") for source, _ in splits[split]]
    assert not [source for source in held_out if len(source.split()) >= 5 and source in training]


def test_the_corpus_is_a_function_of_the_seed():
    assert (
        list(reverse_pairs("dev", seed=2)) == list(reverse_pairs("dev", seed=2)) != list(reverse_pairs("dev", seed=3))
    )
    # random.Random(text).random() is promised to stay: the first digits of seed 1, worked out from the definition
    draw = random.Random("reverse 1 dev").random
    length = 1 + int(15 * draw())
    assert [source for source, _ in reverse_pairs("dev")][0] == " ".join(str(int(10 * draw())) for _ in range(length))

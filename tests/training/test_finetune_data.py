from types import SimpleNamespace

import datasets
import pytest
from transformers import AutoTokenizer

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.finetune_data import (
    LengthGroupedEpochs,
    tokenised,
    training_pairs,
    validation_pairs,
)
from vanilla_transformer.training.recipe import DataConfig
from vanilla_transformer.training.translation import SentenceTooLongError


def config(**fields):
    """As much of a model's config as the length checks look at."""
    return SimpleNamespace(**fields)


@pytest.fixture(scope="module")
def tokenizer(trained):
    return AutoTokenizer.from_pretrained(trained.run / "final")


def split(*pairs):
    features = datasets.Features({"translation": datasets.Translation(languages=["en", "zh"])})
    return datasets.Dataset.from_dict(
        {"translation": [dict(zip(("en", "zh"), p, strict=True)) for p in pairs]}, features
    )


def data(**fields):
    return DataConfig(corpus="x", source_lang="en", target_lang="zh", **fields)


def test_a_row_is_both_sides_in_tokens_with_their_end(tokenizer):
    table = tokenised(split(("no .", "否 。"), ("turn on the light !", "打开 灯 ！")), tokenizer, ("en", "zh"))
    assert set(table.column_names) == {"input_ids", "attention_mask", "labels", "length"}
    for row, (source, target) in zip(table, (("no .", "否 。"), ("turn on the light !", "打开 灯 ！")), strict=True):
        assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == [*source.split(), "</s>"]
        assert tokenizer.convert_ids_to_tokens(row["labels"]) == [*target.split(), "</s>"]
        assert row["attention_mask"] == [1] * len(row["input_ids"])
    assert list(table["length"]) == [3, 6]


def test_too_long_pairs_are_left_out_by_the_longer_side(tokenizer):
    pairs = split(("no .", "否 。"), ("no no no no", "否"), ("no", "否 否 否 否"), ("no no", "否 否"))
    kept = training_pairs(pairs, tokenizer, data(max_length=3), config())
    assert list(kept["length"]) == [3, 3]
    learned = config(max_source_positions=9, max_target_positions=4)
    assert len(training_pairs(pairs, tokenizer, data(), learned)) == 2
    with pytest.raises(CorpusError, match="No training pair is of 2 tokens or fewer a side"):
        training_pairs(pairs, tokenizer, data(max_length=2), config())


def test_dev_is_sorted_with_its_references_and_never_shortened(tokenizer):
    pairs = split(("no", "否"), ("no no no no", "否 。"), ("no no", "否 否"))
    table, references = validation_pairs(pairs, tokenizer, data(max_length=2), config())
    assert list(table["length"]) == [5, 3, 2]
    assert references == ["否 。", "否 否", "否"]
    learned = config(positional_encoding="learned", max_source_positions=4, max_target_positions=9)
    with pytest.raises(SentenceTooLongError, match="Sentence 2 has 5 tokens.* max_source_positions = 4"):
        validation_pairs(pairs, tokenizer, data(), learned)


class TestOrder:
    lengths = [1 + 7 * i % 50 for i in range(400)]

    def order(self, seed=1, epoch=0):
        return list(LengthGroupedEpochs(self.lengths, 8, seed, lambda: epoch))

    def test_every_row_once(self):
        assert sorted(self.order()) == list(range(400))

    def test_is_a_function_of_seed_and_epoch_alone(self):
        assert self.order() == self.order()
        orders = [self.order(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
        assert len({tuple(order) for order in orders}) == 4

    def test_an_update_holds_pairs_of_like_length(self):
        def spread(order):
            return sum(
                max(part) - min(part)
                for part in ([self.lengths[row] for row in order[start : start + 8]] for start in range(0, 400, 8))
            )

        assert spread(self.order()) < spread(range(400)) / 4

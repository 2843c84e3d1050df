"""Sentence pairs as Seq2SeqTrainer takes them, and in which order it learns from them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import datasets
import torch
from torch.utils.data import Sampler
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.recipe import DataConfig
from vanilla_transformer.training.translation import check_lengths

LENGTH = "length"  # a pair's longer side in tokens, </s> included


def tokenised(pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, langs: tuple[str, str]) -> datasets.Dataset:
    """Columns input_ids, attention_mask, labels and length of a split with a `translation` column, row by row."""

    def encode(rows: dict[str, list[dict[str, str]]]) -> dict[str, list[Any]]:
        sources, targets = ([pair[lang] for pair in rows["translation"]] for lang in langs)
        encoded = tokenizer(sources, text_target=targets, truncation=False)
        longer = [max(map(len, pair)) for pair in zip(encoded["input_ids"], encoded["labels"], strict=True)]
        return {name: encoded[name] for name in ("input_ids", "attention_mask", "labels")} | {LENGTH: longer}

    return pairs.map(encode, batched=True, remove_columns=pairs.column_names, desc="tokenising")


def training_pairs(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, data: DataConfig, config: PreTrainedConfig
) -> datasets.Dataset:
    """The tokenised training split without pairs that are longer than data.max_length or than learned positions.

    Raises CorpusError where none is left.
    """
    table = tokenised(pairs, tokenizer, (data.source_lang, data.target_lang))
    limits = [data.max_length]
    for field in ("max_source_positions", "max_target_positions"):
        limits += [limit] if (limit := getattr(config, field, None)) else []
    longest = min(limits)
    kept = table.filter(lambda lengths: [n <= longest for n in lengths], input_columns=LENGTH, batched=True)
    if not len(kept):
        raise CorpusError(f"No training pair is of {longest} tokens or fewer a side, </s> included.")
    return kept


def validation_pairs(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, data: DataConfig, config: PreTrainedConfig
) -> tuple[datasets.Dataset, list[str]]:
    """The tokenised dev split, longest pair first so that batches hold little padding, and its targets as text.

    Raises SentenceTooLongError for one that the model cannot translate whole.
    """
    table = tokenised(pairs, tokenizer, (data.source_lang, data.target_lang))
    for field, column in (("max_source_positions", "input_ids"), ("max_target_positions", "labels")):
        check_lengths(config, field, dict(enumerate(table[column], start=1)))
    lengths = list(table[LENGTH])
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return table.select(order), [pairs[row]["translation"][data.target_lang] for row in order]


class LengthGroupedEpochs(Sampler[int]):
    """Every row once an epoch, pairs of like length together; the order is a function of seed and epoch alone.

    transformers' own train_sampling_strategy="group_by_length" draws from the process's generator, so that a run
    continued inside an epoch would meet other batches, and it changes the order of evaluation too.
    """

    def __init__(self, lengths: Sequence[int], update_size: int, seed: int, epoch: Callable[[], int]):
        """`update_size` is the number of pairs in an update; `epoch` is asked for whenever an epoch begins."""
        self.lengths, self.update_size, self.seed, self.epoch = list(lengths), update_size, seed, epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch()) % 2**63)  # another each epoch
        return iter(get_length_grouped_indices(self.lengths, self.update_size, generator=generator))

"""The batches of bench_train.py: real sentence pairs, tokenised and put into updates as in this package's training."""

import gzip
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.training.batching import plan_epoch
from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.recipe import TokenizerConfig
from vanilla_transformer.training.token_ids import PairEncoder
from vanilla_transformer.training.tokenizer import train_tokenizer

SEED = 1
LONGEST = 256
SIDES = ("en", "de")


@dataclass(frozen=True)
class Text:
    """Files of line-aligned English and German, `{lang}` in their names: the batches', and more for the vocabulary."""

    pairs: str
    vocabulary: tuple[str, ...]
    said: str  # what a reader is told of it


TEXTS = {
    "news": Text(
        "wmt/newstest2013.{lang}.gz",
        ("tatoeba_en-de/train.{lang}.gz", "wmt/newstest2013.{lang}.gz", "wmt/newstest2014-full.en-de.{lang}.gz"),
        "newstest2013 English-German, in a BPE vocabulary learned from Tatoeba and newstest2013 and 2014",
    ),
    "multi30k": Text(
        "multi30k/tok/train.lc.norm.tok.{lang}.gz",
        ("multi30k/tok/train.lc.norm.tok.{lang}.gz",),
        "Multi30k English-German, lower-cased and tokenised, in its own BPE vocabulary",
    ),
}


@dataclass(frozen=True)
class Batches:
    """Updates of one epoch in the order of training, each a list of pairs of token ids with </s>."""

    pairs: list[tuple[list[int], list[int]]]  # the corpus that the updates are of
    updates: list[list[tuple[list[int], list[int]]]]
    tokenizer: PreTrainedTokenizerBase
    budget: int  # padded tokens a side of an update


def make_batches(text: Text, data: Path, vocabulary: int, budget: int) -> Batches:
    """Learn the vocabulary, tokenise, plan one epoch. Raises FileNotFoundError where the text is absent."""
    texts = [line for name in text.vocabulary for side in SIDES for line in _lines(data / name.format(lang=side))]
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=vocabulary))
    source, target = (_lines(data / text.pairs.format(lang=side)) for side in SIDES)
    rows = PairEncoder(tokenizer, LONGEST)(source, target, first_line=1)
    pairs = list(zip(rows["source_ids"].to_pylist(), rows["target_ids"].to_pylist(), strict=True))
    return Batches(pairs, plan_updates(pairs, budget), tokenizer, budget)


def plan_updates(pairs: list[tuple[list[int], list[int]]], budget: int) -> list[list[tuple[list[int], list[int]]]]:
    """The updates of a run's first epoch, as training/loop.py plans them with SEED."""
    lengths = ([len(pair[side]) for pair in pairs] for side in (0, 1))
    plan = plan_epoch(*lengths, budget, budget, SEED, TrainerState().epoch)
    return [[pairs[row] for row in rows] for (rows,) in plan]


def _lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[:-1]

"""From a recipe to what training reads: a tokenizer and the training pairs as token ids, made once and kept in the run.

RUN/prepared/KEY holds the tokenizer, `train.arrow` and a manifest. KEY is made of the content of the source files and
of every setting that changes the result, not of paths, so a run that is moved with its data is still the same run.
"""

import fcntl
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.corpus import Corpus, load_corpus
from vanilla_transformer.training.durable import MANIFEST, fault, sha256, whole_folder, write_manifest
from vanilla_transformer.training.streaming import StreamedPairs, unbroken
from vanilla_transformer.training.token_ids import SCHEMA, PairEncoder
from vanilla_transformer.training.tokenizer import load_tokenizer, train_tokenizer
from vanilla_transformer.training.write_errors import explained

if TYPE_CHECKING:
    from vanilla_transformer.training.recipe import Recipe

logger = logging.getLogger(__name__)

# Part of the key: raise it when the same content and settings give another result than before.
FORMAT_VERSION = 1
# Settings of recipe.data that say which pairs are in the training split; where they come from is told by their hashes.
SELECTING = (
    "source_lang target_lang max_length max_ratio drop_duplicates drop_test_overlap lowercase limit streaming".split()
)

LINES_PER_BATCH = 10_000
# Pairs that the vocabulary is learned from, at most: the learner's memory and time grow with the distinct words. They
# lie evenly spread over a corpus; of a stream they are the beginning, which has to stand for the rest.
VOCABULARY_PAIRS = 1_000_000
# Pairs of an update lie anywhere in the file, and each record batch that they touch costs a step of its own.
BYTES_PER_RECORD_BATCH = 2**26


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training.

    train: columns source_ids and target_ids (both with the end token) and line, the pair's number in the cleaned
        training split, from 1; for a streamed corpus the pairs as they come.
    dev and test: the raw pairs in a column `translation`, None where the corpus has none.
    fingerprint: changes when the training data or the vocabulary do.
    facts: for the manifest: counters per split (read == kept + all others), what was seen in dev and test, tokens, the
        vocabulary, and each source file with its hash.
    """

    tokenizer: PreTrainedTokenizerBase
    train: datasets.Dataset | StreamedPairs
    dev: datasets.Dataset | None
    test: datasets.Dataset | None
    fingerprint: str
    facts: dict[str, Any]


def prepare(recipe: "Recipe", output_dir: str | Path) -> Prepared:
    """Make, or find in RUN/prepared, what the recipe's data and tokenizer sections describe; RUN is `output_dir`.

    Processes that call it together wait for the first one and share its work. Raises what `load_corpus`,
    `train_tokenizer` and `load_tokenizer` raise, CorpusError when no pair is left, WriteError when the folder cannot be
    written.
    """
    reused = load_tokenizer(recipe.tokenizer.path) if recipe.tokenizer.path is not None else None
    corpus = load_corpus(recipe.data)
    if "train" not in corpus.splits:
        raise CorpusError(f"data.corpus = {recipe.data.corpus}: there is no training split.")
    parent = Path(output_dir) / "prepared"
    key = _fingerprint(recipe, corpus)
    folder = parent / key
    with explained(f"The prepared data {parent}", "Make room, or choose another folder."), _locked(parent):
        if fault(folder):
            with whole_folder(folder) as written:
                _write(written, recipe, corpus, reused)
        # What other data or settings left behind is of no use any more.
        for other in parent.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other, ignore_errors=True)
    facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(folder / "tokenizer")
    if recipe.data.streaming:
        langs = recipe.data.source_lang, recipe.data.target_lang
        train = StreamedPairs(corpus.splits["train"], langs, tokenizer, recipe.data.max_length)
    else:
        train = datasets.Dataset.from_file(str(folder / "train.arrow"))
    return Prepared(
        tokenizer=tokenizer,
        train=train,
        dev=corpus.splits.get("dev"),
        test=corpus.splits.get("test"),
        fingerprint=key,
        facts={
            # dev and test are not kept here and may have changed
            "counters": {**corpus.counters, **facts["counters"]},
            "reported": corpus.reported,
            "sources": corpus.sources,
            "tokens": facts["tokens"],
            "vocabulary": facts["vocabulary"],
        },
    )


def _fingerprint(recipe: "Recipe", corpus: Corpus) -> str:
    content: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "data": {name: getattr(recipe.data, name) for name in SELECTING},
        # Dev and test too: what they hold is kept out of training.
        "sources": [[source["split"], source["sha256"], source["lines"]] for source in corpus.sources],
    }
    if recipe.data.streaming:  # no hash is known before the stream is read
        content["stream"] = [recipe.data.corpus, recipe.data.name, recipe.data.revision, recipe.data.train]
    elif recipe.tokenizer.path is None and len(corpus.splits["train"]) > VOCABULARY_PAIRS:
        content["vocabulary_pairs"] = VOCABULARY_PAIRS
    if recipe.tokenizer.path is None:
        content["tokenizer"] = [recipe.tokenizer.type, recipe.tokenizer.vocab_size]
        if recipe.tokenizer.codes is not None:
            content["tokenizer"].append(sha256(Path(recipe.tokenizer.codes)))
    else:
        files = sorted(file for file in Path(recipe.tokenizer.path).iterdir() if file.is_file())
        content["tokenizer"] = [[file.name, sha256(file)] for file in files]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time, the others wait; the kernel lets go of the lock however the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(folder: Path, recipe: "Recipe", corpus: Corpus, reused: PreTrainedTokenizerBase | None) -> None:
    """Write tokenizer/, the training pairs as train.arrow unless they are streamed, and the manifest."""
    langs, max_length = (recipe.data.source_lang, recipe.data.target_lang), recipe.data.max_length
    train = corpus.splits["train"]
    if reused is None:
        sample = _StreamedTexts(train, langs) if recipe.data.streaming else _Texts(train, langs)
        logger.info(sample.described)
    tokenizer = reused or train_tokenizer(sample, recipe.tokenizer)
    tokenizer.save_pretrained(folder / "tokenizer")
    vocabulary = {"size": len(tokenizer), "sha256": sha256(folder / "tokenizer" / "tokenizer.json")}
    if recipe.data.streaming:
        write_manifest(folder, counters={}, tokens=None, vocabulary=vocabulary)
        return
    logger.info(f"Tokenising {len(train):,} pairs.")
    counts = _write_ids(folder / "train.arrow", train, langs, tokenizer, max_length)
    dropped = counts["too_many_tokens"]
    if not counts["kept"]:
        raise CorpusError(
            f"data.max_length = {max_length}: no training pair is that short, </s> included ({dropped:,} dropped)."
        )
    if dropped:
        logger.info(f"Dropped {dropped:,} pairs of more than {max_length} tokens a side (data.max_length).")
    tokens = {"source": counts.pop("source_tokens"), "target": counts.pop("target_tokens")}
    counters = {"train": corpus.counters["train"] | counts}
    write_manifest(folder, counters=counters, tokens=tokens, vocabulary=vocabulary)


class _StreamedTexts:
    """Both sides of the first VOCABULARY_PAIRS pairs of a stream, as often as it is iterated over."""

    described = "Learning a vocabulary."

    def __init__(self, pairs: datasets.IterableDataset, langs: tuple[str, str]) -> None:
        self._pairs, self._langs = pairs.take(VOCABULARY_PAIRS), langs

    def __iter__(self) -> Iterator[str]:
        return (row["translation"][lang] for row in unbroken(self._pairs) for lang in self._langs)


class _Texts:
    """Both sides of up to VOCABULARY_PAIRS evenly spread pairs, as often as it is iterated over; a batch in memory."""

    def __init__(self, pairs: datasets.Dataset, langs: tuple[str, str]) -> None:
        self._pairs, self._langs = pairs, langs
        self._wanted = min(len(pairs), VOCABULARY_PAIRS)
        of = f" from {self._wanted:,} of {len(pairs):,} pairs" if self._wanted < len(pairs) else ""
        self.described = f"Learning a vocabulary{of}."

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(chain(*sides) for sides in _sides(self._pairs, self._langs, self._wanted))


def _sides(pairs: datasets.Dataset, langs: tuple[str, str], wanted: int | None = None) -> Iterator[list[list[str]]]:
    """The source lines and the target lines of one batch after the other: of all pairs, or of `wanted` evenly spread.

    Pair number i, from 0, is wanted where i x wanted / pairs passes a whole number on the way to the next pair.
    """
    first = 0
    for table in pairs.with_format("arrow").iter(batch_size=LINES_PER_BATCH):
        column = table.column("translation").combine_chunks()
        if wanted is not None and wanted < len(pairs):
            passed = np.arange(first, first + len(column) + 1) * wanted // len(pairs)
            column, first = column.filter(pa.array(np.diff(passed) > 0)), first + len(column)
        yield [column.field(lang).to_pylist() for lang in langs]


def _write_ids(
    path: Path, pairs: datasets.Dataset, langs: tuple[str, str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, int]:
    """Write the pairs of at most `max_length` tokens a side; returns counts of pairs and tokens."""
    encode = PairEncoder(tokenizer, max_length)
    counts = dict.fromkeys(("kept", "too_many_tokens", "source_tokens", "target_tokens"), 0)
    line = 1
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        waiting: list[pa.RecordBatch] = []

        def flush() -> None:
            writer.write_table(pa.Table.from_batches(waiting, SCHEMA).combine_chunks())
            waiting.clear()

        for sources, targets in _sides(pairs, langs):
            batch = encode(sources, targets, line)
            waiting.append(batch)
            line += len(sources)
            counts["kept"] += len(batch)
            counts["too_many_tokens"] += len(sources) - len(batch)
            counts["source_tokens"] += len(batch.column("source_ids").flatten())
            counts["target_tokens"] += len(batch.column("target_ids").flatten())
            if sum(batch.nbytes for batch in waiting) >= BYTES_PER_RECORD_BATCH:
                flush()
        flush()
    return counts

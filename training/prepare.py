"""From a recipe to what training reads: a tokenizer and the training pairs as token ids, made once and kept in the run.

RUN/prepared/KEY holds the tokenizer, `train.arrow` and a manifest. KEY is made of the content of the source files and
of every setting that changes the result, not of paths, so a run that is moved with its data is still the same run.
"""

import fcntl
import hashlib
import json
import logging
import os
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
import tokenizers
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.configuration.errors import CorpusError, UserError
from vanilla_transformer.training.corpus import Corpus, load_corpus
from vanilla_transformer.training.durable import MANIFEST, fault, sha256, whole_folder, write_manifest
from vanilla_transformer.training.tokenizer import load_tokenizer, train_tokenizer

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
# Pairs of an update lie anywhere in the file, and each record batch that they touch costs a step of its own.
BYTES_PER_RECORD_BATCH = 2**26

SCHEMA = pa.schema({"source_ids": pa.list_(pa.int32()), "target_ids": pa.list_(pa.int32()), "line": pa.int64()})


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training.

    train: columns source_ids and target_ids (both with the end token) and line, the pair's number in the cleaned
        training split, from 1.
    dev and test: the raw pairs in a column `translation`, None where the corpus has none.
    fingerprint: changes when the training data or the vocabulary do.
    facts: for the manifest: counters per split (read == kept + all others), what was seen in dev and test, tokens, the
        vocabulary, and each source file with its hash.
    """

    tokenizer: PreTrainedTokenizerBase
    train: datasets.Dataset
    dev: datasets.Dataset | None
    test: datasets.Dataset | None
    fingerprint: str
    facts: dict[str, Any]


def prepare(recipe: "Recipe", output_dir: str | Path) -> Prepared:
    """Make, or find in RUN/prepared, what the recipe's data and tokenizer sections describe; RUN is `output_dir`.

    Processes that call it together wait for the first one and share its work. Raises what `load_corpus`,
    `train_tokenizer` and `load_tokenizer` raise, CorpusError when no pair is left, UserError when the folder cannot be
    written.
    """
    reused = load_tokenizer(recipe.tokenizer.path) if recipe.tokenizer.path is not None else None
    corpus = load_corpus(recipe.data)
    if "train" not in corpus.splits:
        raise CorpusError(f"data.corpus = {recipe.data.corpus}: there is no training split.")
    parent = Path(output_dir) / "prepared"
    key = _fingerprint(recipe, corpus)
    folder = parent / key
    try:
        with _locked(parent):
            if fault(folder):
                with whole_folder(folder) as written:
                    _write(written, recipe, corpus, reused)
            # What other data or settings left behind is of no use any more.
            for other in parent.iterdir():
                if other.is_dir() and other != folder:
                    shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{parent} cannot be written: {error.strerror or error}.") from error
    facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return Prepared(
        tokenizer=load_tokenizer(folder / "tokenizer"),
        train=datasets.Dataset.from_file(str(folder / "train.arrow")),
        dev=corpus.splits.get("dev"),
        test=corpus.splits.get("test"),
        fingerprint=key,
        facts={
            # dev and test are not kept here and may have changed
            "counters": {**corpus.counters, "train": facts["train"]},
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
    if recipe.tokenizer.path is None:
        content["tokenizer"] = [recipe.tokenizer.type, recipe.tokenizer.vocab_size]
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
    """Write tokenizer/, train.arrow and the manifest."""
    langs = recipe.data.source_lang, recipe.data.target_lang
    train = corpus.splits["train"]
    if reused is None:
        logger.info(f"Learning a vocabulary from {len(train):,} pairs.")
    tokenizer = reused or train_tokenizer(_Texts(train, langs), recipe.tokenizer)
    tokenizer.save_pretrained(folder / "tokenizer")
    logger.info(f"Tokenising {len(train):,} pairs.")
    counts = _write_ids(folder / "train.arrow", train, langs, tokenizer, recipe.data.max_length)
    if not counts["kept"]:
        raise CorpusError(
            f"data.max_length = {recipe.data.max_length}: no training pair is that short, </s> included "
            f"({counts['too_many_tokens']:,} dropped)."
        )
    if counts["too_many_tokens"]:
        logger.info(f"Dropped {counts['too_many_tokens']:,} pairs of more than {recipe.data.max_length} tokens a side.")
    tokens = {"source": counts.pop("source_tokens"), "target": counts.pop("target_tokens")}
    write_manifest(
        folder,
        train=corpus.counters["train"] | counts,
        tokens=tokens,
        vocabulary={"size": len(tokenizer), "sha256": sha256(folder / "tokenizer" / "tokenizer.json")},
    )


class _Texts:
    """Every line of both sides, as often as it is iterated over, one batch of lines in memory."""

    def __init__(self, pairs: datasets.Dataset, langs: tuple[str, str]) -> None:
        self.pairs, self.langs = pairs, langs

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(chain(*sides) for sides in _sides(self.pairs, self.langs))


def _sides(pairs: datasets.Dataset, langs: tuple[str, str]) -> Iterator[list[list[str]]]:
    """The source lines and the target lines of one batch of pairs after the other."""
    for table in pairs.with_format("arrow").iter(batch_size=LINES_PER_BATCH):
        column = table.column("translation").combine_chunks()
        yield [column.field(lang).to_pylist() for lang in langs]


def encoder(tokenizer: PreTrainedTokenizerBase) -> tokenizers.Tokenizer:
    """A copy of the tokenizer's engine that cuts nothing, pads nothing and takes special tokens in a text for text."""
    # Without a choice, the library warns in every data worker that is forked later; ours never tokenise.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    engine = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    engine.no_truncation()
    engine.no_padding()
    engine.encode_special_tokens = True
    return engine


def _write_ids(
    path: Path, pairs: datasets.Dataset, langs: tuple[str, str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, int]:
    """Write the pairs of at most `max_length` tokens a side; returns counts of pairs and tokens."""
    engine = encoder(tokenizer)
    counts = dict.fromkeys(("kept", "too_many_tokens", "source_tokens", "target_tokens"), 0)
    line = 1
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        waiting: list[pa.RecordBatch] = []

        def flush() -> None:
            writer.write_table(pa.Table.from_batches(waiting, SCHEMA).combine_chunks())
            waiting.clear()

        for sides in _sides(pairs, langs):
            source, target = ([encoding.ids for encoding in engine.encode_batch_fast(side)] for side in sides)
            lengths = np.array([[*map(len, source)], [*map(len, target)]])
            kept = np.flatnonzero(lengths.max(axis=0) <= max_length)
            waiting.append(
                pa.record_batch(
                    [_list_array(source, kept), _list_array(target, kept), pa.array(kept + line)], schema=SCHEMA
                )
            )
            line += len(source)
            counts["kept"] += len(kept)
            counts["too_many_tokens"] += len(source) - len(kept)
            counts["source_tokens"] += int(lengths[0, kept].sum())
            counts["target_tokens"] += int(lengths[1, kept].sum())
            if sum(batch.nbytes for batch in waiting) >= BYTES_PER_RECORD_BATCH:
                flush()
        flush()
    return counts


def _list_array(rows: list[list[int]], kept: np.ndarray) -> pa.ListArray:
    offsets = np.cumsum([0, *(len(rows[row]) for row in kept)], dtype=np.int32)
    values = chain.from_iterable(rows[row] for row in kept)
    return pa.ListArray.from_arrays(offsets, np.fromiter(values, dtype=np.int32, count=offsets[-1]))

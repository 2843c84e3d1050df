"""Parallel data sets on the Hub: a `translation` column, or one text column a language."""

import os
from collections.abc import Iterator
from typing import Any, TypeAlias

import datasets

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.corpus_files import SPLIT_NAMES
from vanilla_transformer.training.hub_access import reading_problem
from vanilla_transformer.training.language_codes import pick_language
from vanilla_transformer.training.readers import Pair
from vanilla_transformer.training.redaction import redacted
from vanilla_transformer.training.text_files import checked

Table: TypeAlias = datasets.Dataset | datasets.IterableDataset


def load_splits(
    corpus: str, name: str | None, revision: str | None, wanted: dict[str, list[str]], streaming: bool
) -> dict[str, list[tuple[str, Table]]]:
    """(name on the Hub, table) for train, dev and test, by the names in `wanted` or else those in SPLIT_NAMES.

    Raises CorpusError in one sentence whatever went wrong: no network, no such data set, no permission, no such split.
    """

    def load(split: str | None) -> Any:
        try:
            return datasets.load_dataset(corpus, name, split=split, revision=revision, streaming=streaming)
        except Exception as error:  # each layer below (requests, files, builders) has errors of its own
            raise _hub_error(corpus, error, revision) from error

    if any(wanted.values()):
        found = {split: [(given, load(given)) for given in names] for split, names in wanted.items() if names}
        there = ", ".join(name for names in wanted.values() for name in names)
    else:
        tables = load(None)
        there = ", ".join(tables)
        found = {}
        for split, aliases in SPLIT_NAMES.items():
            names = [alias for alias in aliases if alias in tables]
            if len(names) > 1:
                raise CorpusError(f"Hub data set {corpus}: {split} could be {' or '.join(names)}; set data.{split}")
            if names:
                found[split] = [(names[0], tables[names[0]])]
    if "train" not in found:
        raise CorpusError(f"Hub data set {corpus}: no training split; it has {there}; name one in data.train")
    return found


def _hub_error(corpus: str, error: Exception, revision: str | None = None) -> CorpusError:
    while isinstance(error, datasets.exceptions.DatasetGenerationError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, OSError) and error.errno:  # the disk's, under the cache
        where = f"{error.filename}: " if error.filename else ""
        return CorpusError(f"Hub data set {corpus}: {where}{error.strerror}; make room, or set HF_HOME to a folder.")
    # What comes from the network is an OSError without a number; a split that does not exist, say, is none.
    if isinstance(error, OSError) and (problem := reading_problem("dataset", corpus, revision)):
        return CorpusError(f"{problem} No local file or folder is called {corpus} either.")
    # The first line; the others are advice for programmers.
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CorpusError(redacted(f"Hub data set {corpus}: {reason}"))


def content_key(table: Table, corpus: str, revision: str | None) -> str:
    """A text that changes when the data does: the files of a table on disk, the commit of a streamed one."""
    if isinstance(table, datasets.Dataset):
        files = [(file["filename"], os.path.getmtime(file["filename"])) for file in table.cache_files]
        return f"{files} {table.num_rows}"
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(corpus, revision=revision).sha)
    except Exception as error:
        raise _hub_error(corpus, error, revision) from error


def hub_columns(table: Table, corpus: str, source_lang: str, target_lang: str) -> tuple[str | None, str, str]:
    """(name of the nested column or None, key of the source text, key of the target text), from the first row."""
    try:
        row = next(iter(table), None)
    except Exception as error:
        raise _hub_error(corpus, error) from error
    where = f"Hub data set {corpus}"
    if row is None:
        raise CorpusError(f"{where}: a split without rows")
    nested = "translation" if isinstance(row.get("translation"), dict) else None
    texts = row["translation"] if nested else row
    return nested, pick_language(source_lang, texts, where), pick_language(target_lang, texts, where)


def _row_pair(row: dict[str, Any], nested: str | None, source_key: str, target_key: str, where: str) -> Pair:
    texts = (row[nested] or {}) if nested else row
    source, target = (
        None if (text := texts.get(key)) is None else checked(text, where) for key in (source_key, target_key)
    )
    return source, target


def hub_pairs(table: Table, corpus: str, source_lang: str, target_lang: str) -> Iterator[Pair]:
    """The pairs in the table's order; a null is a missing side."""
    nested, source_key, target_key = hub_columns(table, corpus, source_lang, target_lang)
    rows = iter(table.select_columns([nested] if nested else [source_key, target_key]))
    number = 0
    while True:
        try:
            row = next(rows, None)
        except Exception as error:
            raise _hub_error(corpus, error) from error
        if row is None:
            return
        number += 1
        yield _row_pair(row, nested, source_key, target_key, f"Hub data set {corpus}: row {number}")


def _translation_row(
    row: dict[str, Any], columns: tuple[str | None, str, str], langs: tuple[str, str], where: str
) -> Any:
    return {"translation": dict(zip(langs, _row_pair(row, *columns, where), strict=True))}


def hub_stream(
    table: datasets.IterableDataset, corpus: str, source_lang: str, target_lang: str, features: datasets.Features
) -> datasets.IterableDataset:
    """The streamed table with a `translation` column of the two languages; shards and position stay as they are."""
    columns = hub_columns(table, corpus, source_lang, target_lang)
    kept = table.select_columns([columns[0]] if columns[0] else list(columns[1:]))
    return kept.map(
        _translation_row,
        remove_columns=[columns[0]] if columns[0] else list(columns[1:]),
        features=features,
        fn_kwargs={"columns": columns, "langs": (source_lang, target_lang), "where": f"Hub data set {corpus}"},
    )

"""Reads parallel text: every format yields (source, target) pairs in file order, strictly (see text_files)."""

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.language_codes import pick_language
from vanilla_transformer.training.text_files import (
    DAMAGED_GZIP,
    checked,
    iterate_lines,
    open_bytes,
    read_aligned,
    read_lines,
    unreadable,
)
from vanilla_transformer.training.tmx import read_tmx

__all__ = ["FORMATS", "Pair", "file_format", "iterate_lines", "read_aligned", "read_lines", "read_pairs"]

# A side is None where a multilingual file has no text in that language for a unit.
Pair = tuple[str | None, str | None]


def row_pair(row: dict[str, Any], source_lang: str, target_lang: str, where: str) -> tuple[str, str]:
    """The pair in {"translation": {lang: text}} or {lang: text}; raises CorpusError if it isn't there."""
    texts = row["translation"] if isinstance(row.get("translation"), dict) else row
    sides = (texts[pick_language(lang, texts, where)] for lang in (source_lang, target_lang))
    source, target = (checked(text, where) for text in sides)
    return source, target


def read_tsv(path: str | Path) -> Iterator[tuple[str, str]]:
    """source<TAB>target, one pair a line, no header, no quoting."""
    for number, line in enumerate(iterate_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            count = f"{len(columns)} column" + ("s" if len(columns) != 1 else "")
            raise CorpusError(f"{path}:{number}: {count} instead of 2 (source, tab, target)")
        yield columns[0], columns[1]


def read_jsonl(path: str | Path, source_lang: str, target_lang: str) -> Iterator[tuple[str, str]]:
    """One JSON object a line, as row_pair reads it; other keys are ignored."""
    for number, line in enumerate(iterate_lines(path), start=1):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{where}: not valid JSON ({error}); expected one object a line") from None
        if not isinstance(row, dict):
            raise CorpusError(f"{where}: expected a JSON object, found {type(row).__name__}")
        yield row_pair(row, source_lang, target_lang, where)


def read_parquet(path: str | Path, source_lang: str, target_lang: str) -> Iterator[Pair]:
    """A `translation` column of {lang: text}, or one text column a language; a null is a missing side."""
    import pyarrow as pa  # comes with datasets; the text readers do without it
    import pyarrow.parquet as pq

    try:
        with open_bytes(path) as stream, tempfile.TemporaryFile() as seekable:
            if isinstance(stream, gzip.GzipFile):
                # Parquet keeps its index at the end; gzip can't be read from there
                shutil.copyfileobj(stream, seekable)
                seekable.seek(0)
            table = pq.ParquetFile(seekable if isinstance(stream, gzip.GzipFile) else stream)
            schema, nested = table.schema_arrow, False
            if "translation" in schema.names and pa.types.is_struct(schema.field("translation").type):
                languages, nested = [field.name for field in schema.field("translation").type], True
            else:
                languages = schema.names
            chosen = [pick_language(lang, languages, str(path)) for lang in (source_lang, target_lang)]
            number = 0
            for batch in table.iter_batches(batch_size=1024, columns=["translation"] if nested else chosen):
                rows = batch.column("translation").to_pylist() if nested else batch.to_pylist()
                for row in rows:
                    number += 1
                    texts = [(row or {}).get(lang) for lang in chosen]
                    source, target = (None if t is None else checked(t, f"{path}: row {number}") for t in texts)
                    yield source, target
    except (pa.ArrowException, *DAMAGED_GZIP, OSError) as error:
        if isinstance(error, pa.ArrowException):
            raise CorpusError(f"{path}: not a whole Parquet file ({error})") from error
        raise unreadable(path, error) from error
    if number == 0:
        raise CorpusError(f"{path}: the file has no rows")


FORMATS: dict[str, Callable[[str | Path, str, str], Iterator[Pair]]] = {
    ".tsv": lambda path, _source_lang, _target_lang: read_tsv(path),
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_jsonl,
    ".parquet": read_parquet,
    ".tmx": read_tmx,
}


def file_format(name: str | Path) -> str | None:
    """The key of FORMATS that a file's name ends in, before a possible ".gz"; None for line-aligned text."""
    return next((ending for ending in FORMATS if str(name).lower().removesuffix(".gz").endswith(ending)), None)


def read_pairs(files: Sequence[str | Path], source_lang: str, target_lang: str) -> Iterator[Pair]:
    """Pairs in order from one bilingual file (TSV, JSONL, Parquet, TMX) or from two line-aligned text files.

    `files` is (bilingual,) or (source, target). Raises CorpusError, naming file and line, at the first fault.
    """
    if len(files) == 2:
        yield from read_aligned(*files)
        return
    (path,) = files
    ending = file_format(path)
    if ending is None:
        raise CorpusError(
            f"{path}: unknown format; known are {', '.join(FORMATS)} (plain or .gz) and pairs of text files, "
            "written with {lang} for the language"
        )
    yield from FORMATS[ending](path, source_lang, target_lang)

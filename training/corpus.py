"""From the recipe's data section to train, dev and test with a `translation` column, cleaned, counted and cached.

A corpus is a named one (NAMES in named_corpora.py), a local file, pattern or folder, or a data set on the Hub, tried in
that order; write ./reverse for a folder that is called like a named corpus. The cleaned pairs are written to Arrow
files in the cache of `datasets` (HF_DATASETS_CACHE), keyed by the content of the files and by every setting that
changes the result, so memory does not grow with the corpus and a second call only opens them.

Streaming (`streaming: true`) leaves the training split of files or of a Hub data set an IterableDataset that is read
anew in each epoch. What that costs: duplicates are not dropped (that would need a memory over the whole stream),
training has no counters and no line count, and a fault in a training file is found only when the stream gets there.
Dev and test are as ever.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets

from vanilla_transformer.configuration.errors import CorpusError, UsageError
from vanilla_transformer.training import hub_corpus
from vanilla_transformer.training.cleaning import DigestSet, Rules, hold_out, reason_to_drop
from vanilla_transformer.training.corpus_files import SPLIT_NAMES, as_list, find_files
from vanilla_transformer.training.corpus_store import Corpus, Part, stored, translation_features
from vanilla_transformer.training.named_corpora import NAMES, load_named_corpus
from vanilla_transformer.training.readers import FORMATS, file_format, read_pairs
from vanilla_transformer.training.text_files import file_sha256

if TYPE_CHECKING:
    from vanilla_transformer.training.recipe import DataConfig

__all__ = ["Corpus", "load_corpus"]

# No sentence within the token limit is longer: 40 characters a token is far above what any vocabulary reaches.
CHARACTERS_PER_TOKEN = 40


def load_corpus(data: "DataConfig") -> Corpus:
    """Reads, cleans and caches the corpus of a recipe's data section.

    Raises CorpusError, naming file and line, for data that can't be used: nothing is skipped or cut silently. Raises it
    as well if no training pair is left.
    """
    if data.source_lang == data.target_lang:
        raise UsageError(f"data.source_lang and data.target_lang are both {data.source_lang!r}")
    langs = data.source_lang, data.target_lang
    rules = Rules(
        max_characters=max(10_000, CHARACTERS_PER_TOKEN * data.max_length),
        max_ratio=data.max_ratio,
        drop_duplicates=data.drop_duplicates,
        drop_test_overlap=data.drop_test_overlap,
        limit=data.limit,
    )
    if data.corpus in NAMES:
        return _with_dev_limit(_named_corpus(data.corpus, langs, data.lowercase, rules), data.dev_limit)
    parts = _local_parts(data, langs) if _is_local(data.corpus) else _hub_parts(data, langs)
    if not data.streaming:
        return _with_dev_limit(stored(parts, langs, data.lowercase, rules), data.dev_limit)
    train = parts.pop("train")
    corpus = stored(parts, langs, data.lowercase, rules)
    stream = _streamed(train, corpus.splits, langs, data.lowercase, rules)
    corpus.splits = datasets.DatasetDict({"train": stream, **corpus.splits})
    return _with_dev_limit(corpus, data.dev_limit)


def _with_dev_limit(corpus: Corpus, limit: int | None) -> Corpus:
    if limit is not None and "dev" in corpus.splits:
        counters = corpus.counters["dev"]
        kept = min(limit, counters["kept"])
        corpus.splits["dev"] = corpus.splits["dev"].select(range(kept))
        corpus.counters["dev"] = counters | {"kept": kept, "limit": counters["kept"] - kept}
    return corpus


def _named_corpus(name: str, langs: tuple[str, str], lowercase: bool, rules: Rules) -> Corpus:
    named = load_named_corpus(name, *langs)
    if not named.drop_repetitions:
        rules = replace(rules, drop_duplicates=False, drop_test_overlap=False)
    label = f"{name} ({named.description})"
    parts = {
        split: [Part([label], [None], label, partial(iter, pairs))] for split, pairs in named.splits.items() if pairs
    }
    corpus = stored(parts, langs, lowercase, rules)
    for split, cleaned in corpus.counters.items():
        # building read all there is, and cleaning read what building kept: one account of both
        built = named.counters.get(split, {"read": cleaned["read"]})
        names = [name for name in {**built, **cleaned} if name not in ("read", "kept")]
        dropped = {name: built.get(name, 0) + cleaned.get(name, 0) for name in names}
        corpus.counters[split] = {"read": built["read"], "kept": cleaned["kept"], **dropped}
    return corpus


def _is_local(corpus: str) -> bool:
    """Whether the name means files: it exists, or it is no possible name of a data set on the Hub."""
    if Path(corpus).expanduser().exists():
        return True
    looks_like_path = corpus.startswith(("/", ".", "~")) or corpus.count("/") > 1 or "{lang}" in corpus or "*" in corpus
    return looks_like_path or corpus.endswith((".gz", ".txt", *FORMATS))


def _local_parts(data: "DataConfig", langs: tuple[str, str]) -> dict[str, list[Part]]:
    path = Path(data.corpus).expanduser()
    if not path.exists() and "{lang}" not in data.corpus and "*" not in data.corpus:
        raise CorpusError(f"{data.corpus}: no such file or folder")
    found = find_files(path, {split: as_list(getattr(data, split)) for split in SPLIT_NAMES}, langs)
    features = translation_features(*langs)
    parts: dict[str, list[Part]] = {}
    for split, groups in found.items():
        for files in groups:
            names = [str(file) for file in files]
            hashes = [file_sha256(file) for file in files]
            if len(files) == 2 and hashes[0] == hashes[1] and files[0].stat().st_size:
                raise CorpusError(
                    f"{names[1]}: holds the same text as {names[0]}; put the translation there, or, where copying is "
                    "to be learned, make it a .tsv file of both"
                )
            formats = [file_format(file) if len(files) == 1 else "text" for file in files]
            parts.setdefault(split, []).append(
                Part(
                    names,
                    [*hashes],
                    json.dumps([formats, hashes]),
                    partial(read_pairs, names, *langs),
                    partial(
                        datasets.IterableDataset.from_generator,
                        translation_rows,
                        features=features,
                        gen_kwargs={"files": tuple(names), "langs": langs},
                    ),
                )
            )
    return parts


def translation_rows(files: tuple[str, ...], langs: tuple[str, str]) -> Iterator[dict[str, dict[str, str | None]]]:
    """Rows of a streamed local corpus."""
    for pair in read_pairs(files, *langs):
        yield {"translation": dict(zip(langs, pair, strict=True))}


def _hub_parts(data: "DataConfig", langs: tuple[str, str]) -> dict[str, list[Part]]:
    """Parts of a data set on the Hub; data.train, data.dev, data.test are split names or slices: train[:5%]."""
    wanted = {split: as_list(getattr(data, split)) for split in SPLIT_NAMES}
    loaded = hub_corpus.load_splits(data.corpus, data.name, data.revision, wanted, data.streaming)
    parts: dict[str, list[Part]] = {}
    for split, tables in loaded.items():
        for name, table in tables:
            label = "/".join(filter(None, ("hub", data.corpus, data.name, name))) + f"@{data.revision or 'main'}"
            parts.setdefault(split, []).append(
                Part(
                    [label],
                    [None],
                    f"{label} {hub_corpus.content_key(table, data.corpus, data.revision)}",
                    partial(hub_corpus.hub_pairs, table, data.corpus, *langs),
                    partial(hub_corpus.hub_stream, table, data.corpus, *langs, translation_features(*langs)),
                )
            )
    return parts


def _streamed(
    parts: list[Part], held_out_splits: datasets.DatasetDict, langs: tuple[str, str], lowercase: bool, rules: Rules
) -> datasets.IterableDataset:
    """The training split as a stream, cleaned pair by pair."""
    held_out = DigestSet()
    for table in held_out_splits.values():
        for row in table:
            hold_out(row["translation"][langs[0]], held_out)
    streams = [part.stream() for part in parts if part.stream is not None]
    stream = datasets.concatenate_datasets(streams) if len(streams) > 1 else streams[0]
    if lowercase:
        stream = stream.map(_lowered_row, features=translation_features(*langs))
    stream = stream.filter(_keeps, fn_kwargs={"langs": langs, "rules": rules, "held_out": held_out})
    return stream if rules.limit is None else stream.take(rules.limit)


def _lowered_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"translation": {lang: text and text.lower() for lang, text in row["translation"].items()}}


def _keeps(row: dict[str, Any], langs: tuple[str, str], rules: Rules, held_out: DigestSet) -> bool:
    source, target = (row["translation"].get(lang) for lang in langs)
    return reason_to_drop(source, target, rules, held_out) is None

"""Writes a cleaned corpus to Arrow files in the cache of `datasets`, once for each content and setting."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.cleaning import DigestSet, Rules, clean, hold_out
from vanilla_transformer.training.corpus_files import SPLIT_NAMES
from vanilla_transformer.training.readers import Pair

# Part of the key: raise it when the same content and settings give another result than before.
STORE_VERSION = 2

ROWS_PER_BATCH, CHARACTERS_PER_BATCH = 10_000, 2**25


@dataclass
class Corpus:
    """A corpus ready for tokenisation.

    splits: train, dev and test as far as they exist, each with the column `translation`, {language: text}.
    counters: per split read, kept and what was dropped for which reason (cleaning.DROPPED and, for home-assistant,
        home_assistant.LEFT_OUT): read == kept + all others. Dev and test only ever drop units that lack a language
        and, where data.dev_limit asks for it, the end of dev. A streamed training split has none.
    reported: per dev and test split what was seen and left in: empty_source, empty_target.
    sources: what was read, for the manifest: split, file, sha256 (of the file, or of the pairs where there is no
        file), lines.
    """

    splits: datasets.DatasetDict
    counters: dict[str, dict[str, int]]
    reported: dict[str, dict[str, int]]
    sources: list[dict[str, Any]]


@dataclass
class Part:
    """One source of a split: a file or pair of files, a split on the Hub, or a generated list."""

    files: list[str]
    sha256: list[str | None]  # None: not a file, the pairs are hashed while they are read
    key: str  # changes when the content does
    read: Callable[[], Iterator[Pair]]
    stream: Callable[[], datasets.IterableDataset] | None = None  # rows of `translation`, a missing side null
    lines: int = 0
    pair_hash: Any = field(default=None, repr=False)

    def pairs(self, lowercase: bool) -> Iterator[Pair]:
        """The pairs, counted and, where there is no file to hash, hashed."""
        self.lines, self.pair_hash = 0, hashlib.sha256()
        for source, target in self.read():
            self.lines += 1
            if None in self.sha256:
                self.pair_hash.update(f"{source}\0{target}\n".encode())
            if lowercase:
                source, target = source and source.lower(), target and target.lower()
            yield source, target

    def entries(self, split: str) -> list[dict[str, Any]]:
        hashes = [sha256 or self.pair_hash.hexdigest() for sha256 in self.sha256]
        return [
            {"split": split, "file": file, "sha256": sha256, "lines": self.lines}
            for file, sha256 in zip(self.files, hashes, strict=True)
        ]


def translation_features(source_lang: str, target_lang: str) -> datasets.Features:
    """The column that the Hub's translation data sets have."""
    return datasets.Features({"translation": datasets.Translation(languages=[source_lang, target_lang])})


def stored(parts: dict[str, list[Part]], langs: tuple[str, str], lowercase: bool, rules: Rules) -> Corpus:
    """The corpus made of the parts of each split, from the cache or else read, cleaned and written there.

    The folder is written under a temporary name and renamed, so that processes that start together don't disturb each
    other. Raises CorpusError if a split has no usable pair, or the cache can't be written.
    """
    splits = [split for split in SPLIT_NAMES if split in parts]
    content = [[split, *(part.key for part in parts[split])] for split in splits]
    settings = [STORE_VERSION, content, langs, lowercase, asdict(rules)]
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "vanilla_transformer" / key
    record = _valid_record(folder)
    if record is None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as temporary:
                written = Path(temporary) / key
                written.mkdir()
                record = _write(written, parts, langs, lowercase, rules)
                _move_into_place(written, folder)
        except OSError as error:
            raise CorpusError(
                f"cannot write the corpus cache in {folder.parent} ({error.strerror or error}); "
                "make room there, or set HF_DATASETS_CACHE to another folder"
            ) from error
    files = [file for split in splits for part in parts[split] for file in part.files]
    return Corpus(
        datasets.DatasetDict({split: datasets.Dataset.from_file(str(folder / f"{split}.arrow")) for split in splits}),
        record["counters"],
        record["reported"],
        # the same content may lie elsewhere this time
        [entry | {"file": file} for entry, file in zip(record["sources"], files, strict=True)],
    )


def _valid_record(folder: Path) -> dict[str, Any] | None:
    """What was noted when the folder was written, or None if a file is missing or has another size than then."""
    try:
        record = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        sizes = {split: (folder / f"{split}.arrow").stat().st_size for split in record["bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if sizes == record["bytes"] else None


def _move_into_place(written: Path, folder: Path) -> None:
    """Renames; where another process was faster, its folder holds the same and stays, unless it is damaged."""
    try:
        os.replace(written, folder)
    except OSError:
        if _valid_record(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(written, folder)


def _write(
    folder: Path, parts: dict[str, list[Part]], langs: tuple[str, str], lowercase: bool, rules: Rules
) -> dict[str, Any]:
    """Writes SPLIT.arrow and corpus.json; returns the content of the latter."""
    features = translation_features(*langs)
    counters: dict[str, dict[str, int]] = {split: {} for split in SPLIT_NAMES if split in parts}
    reported: dict[str, dict[str, int]] = {split: {} for split in counters if split != "train"}
    held_out = DigestSet()
    # training last: what dev and test hold must be known by then
    for split in [*reported, "train"] if "train" in parts else reported:
        counter = counters[split]
        if split == "train":
            pairs = (pair for part in parts[split] for pair in part.pairs(lowercase))
            kept = clean(pairs, rules, held_out, counter)
        else:
            kept = _evaluation_pairs(parts[split], lowercase, rules.max_characters, counter, reported[split], held_out)
        _write_arrow(folder / f"{split}.arrow", kept, features)
        blank = max(reported.get(split, {}).get(side, 0) for side in ("empty_source", "empty_target"))
        if counter["kept"] == blank:
            tally = ", ".join(
                f"{name} {count:,}" for name, count in counter.items() if count or name in ("read", "kept")
            )
            raise CorpusError(f"no usable {split} pair in {', '.join(parts[split][0].files)}: {tally}, blank {blank}")
    record = {
        "counters": counters,
        "reported": reported,
        "sources": [entry for split in counters for part in parts[split] for entry in part.entries(split)],
        "bytes": {split: (folder / f"{split}.arrow").stat().st_size for split in counters},
    }
    (folder / "corpus.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    return record


def _evaluation_pairs(
    parts: list[Part],
    lowercase: bool,
    max_characters: int,
    counters: dict[str, int],
    reported: dict[str, int],
    held_out: DigestSet,
) -> Iterator[tuple[str, str]]:
    """Every pair of dev or test; blank sides are reported, and the sources noted in `held_out`.

    A side that is no sentence by its length is refused: it cannot be left out of a score, and translating it would end
    the run at its first validation.
    """
    counters.update(dict.fromkeys(("read", "kept", "missing_language"), 0))
    reported.update(dict.fromkeys(("empty_source", "empty_target"), 0))
    for part in parts:
        for source, target in part.pairs(lowercase):
            counters["read"] += 1
            hold_out(source, held_out)
            if source is None or target is None:
                counters["missing_language"] += 1
                continue
            if (length := max(len(source), len(target))) > max_characters:
                raise CorpusError(
                    f"{' and '.join(part.files)}:{part.lines}: {length:,} characters, and a line of dev or test may "
                    f"have {max_characters:,}; shorten it, take the pair out, or raise data.max_length"
                )
            counters["kept"] += 1
            reported["empty_source"] += not source.strip()
            reported["empty_target"] += not target.strip()
            yield source, target


def _write_arrow(path: Path, pairs: Iterable[tuple[str, str]], features: datasets.Features) -> None:
    """Writes the pairs as an Arrow stream, which Dataset.from_file maps into memory."""
    schema = features.arrow_schema
    source_lang, target_lang = features["translation"].languages
    rows: list[dict[str, str]] = []
    characters = 0

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:

        def flush() -> None:
            column = pa.array(rows, type=schema.field("translation").type)
            writer.write_batch(pa.record_batch([column], schema=schema))
            rows.clear()

        for source, target in pairs:
            rows.append({source_lang: source, target_lang: target})
            characters += len(source) + len(target)
            if len(rows) >= ROWS_PER_BATCH or characters >= CHARACTERS_PER_BATCH:
                flush()
                characters = 0
        if rows:
            flush()

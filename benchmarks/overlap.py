"""How much of each dev and test set stands in the training text too, for every data set that results are reported on.

    python benchmarks/overlap.py

Lines are compared as `data.drop_test_overlap` compares them: Unicode NFC, single spaces, case folded. That rule drops
training pairs whose source is one of dev's or of the recipe's test's; what is reported here is before any dropping.
Reads the shared data (SHARED_DATA) and, for home-assistant, the wheel that it is made of. Writes
benchmarks/results/overlap.json and .md.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from vanilla_transformer.training.cleaning import overlap_key
from vanilla_transformer.training.named_corpora import load_named_corpus
from vanilla_transformer.training.text_files import read_aligned

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATA = Path(os.environ.get("SHARED_DATA", ROOT.parent / "shared" / "data"))

SPLITS = {"train": "train", "dev": "dev", "test": "test"}
MULTI30K = {
    "train": "train",
    "dev": "val",
    "test2016": "test_2016_flickr",
    "test2017": "test_2017_flickr",
    "mscoco": "test_2017_mscoco",
}
# Name, folder of the shared data or None for a named corpus, languages, and the files of each split.
DATA_SETS: list[tuple[str, str | None, tuple[str, str], dict[str, str]]] = [
    ("multi30k en-de", "multi30k", ("en", "de"), MULTI30K),
    ("multi30k de-en", "multi30k", ("de", "en"), MULTI30K),
    ("multi30k en-fr", "multi30k", ("en", "fr"), MULTI30K),
    ("tatoeba en-zh", "tatoeba_en-zh", ("en", "zh"), SPLITS),
    ("home-assistant en-zh", None, ("en", "zh"), SPLITS),
    ("tatoeba en-de", "tatoeba_en-de", ("en", "de"), SPLITS),
    ("lohelp en-de", "lohelp_en-de", ("en", "de"), SPLITS),
]


def overlap(train: list[tuple[str, str]], held_out: list[tuple[str, str]]) -> dict[str, int]:
    """Of the held-out lines, how many have a source, a target, or both as one pair that training has too.

    `training_pairs` is the other side: training pairs whose source is one of the held-out sources.
    """
    keys, wanted = _keys(train), _keys(held_out)
    sources, targets, pairs = {s for s, _ in keys}, {t for _, t in keys}, set(keys)
    held_out_sources = {source for source, _ in wanted}
    return {
        "lines": len(held_out),
        "sources": sum(source in sources for source, _ in wanted),
        "targets": sum(target in targets for _, target in wanted),
        "pairs": sum(pair in pairs for pair in wanted),
        "training_pairs": sum(source in held_out_sources for source, _ in keys),
    }


def _keys(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(overlap_key(source), overlap_key(target)) for source, target in pairs]


def read(folder: str | None, langs: tuple[str, str], files: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """The pairs of every split."""
    if folder is None:
        return load_named_corpus("home-assistant", *langs).splits
    return {
        split: list(read_aligned(*(DATA / folder / f"{name}.{lang}.gz" for lang in langs)))
        for split, name in files.items()
    }


def measure() -> list[dict[str, Any]]:
    """A row for each held-out set of each data set."""
    rows = []
    for name, folder, langs, files in DATA_SETS:
        splits = read(folder, langs, files)
        train = splits.pop("train")
        for split, pairs in splits.items():
            rows.append({"data": name, "training": len(train), "set": split, **overlap(train, pairs)})
    return rows


def report(rows: list[dict[str, Any]]) -> str:
    """The page of the rows."""
    lines = [
        "# Dev and test lines that training has too",
        "",
        "Made by `python benchmarks/overlap.py`. Lines are compared in Unicode NFC with single spaces and folded case.",
        "Training pairs of the last column are dropped from training where the set is the recipe's dev or test",
        "(`data.drop_test_overlap`, on by default) and counted in the run's manifest as `test_overlap`.",
        "",
        "| data | training pairs | set | lines | source in training | target in training | pair in training "
        "| training pairs with such a source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row[name] for name in ("lines", "sources", "targets", "pairs", "training_pairs"))
        counts = " | ".join(f"{cell:,}" for cell in cells)
        lines.append(f"| {row['data']} | {row['training']:,} | {row['set']} | {counts} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    rows = measure()
    (RESULTS / "overlap.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "overlap.md").write_text(report(rows), encoding="utf-8")
    print(report(rows))

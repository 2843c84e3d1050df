"""A corpus as large as WMT 2014's, made of real sentences, for measuring what preparing one costs.

A pair is one to five real pairs of the shared data behind each other, drawn with a seed, and in every third a made-up
name on both sides: so that lengths spread as those of news do, and the vocabulary has a long tail. Pairs that cleaning
must drop are sown among them, so many that the counters can be checked to the last one.
"""

import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

from vanilla_transformer.training.cleaning import overlap_key

LANGS = ("en", "de")
# German-English training files of the shared data; the dev split is none of them.
SOURCES = ("tatoeba_en-de/train", "multi30k/train", "iwslt14_de-en/train-sample")
DEV = "wmt/newstest2013"
# How many real pairs are joined, and how often: about 24 words a side, as WMT's training data has.
JOINED, WEIGHTS = (1, 2, 3, 4, 5), (10, 25, 30, 20, 15)
NAME_EVERY = 3
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvwz" for vowel in ("a", "e", "i", "o", "u", "en", "er")]
# Of a thousand written lines so many are to be dropped, for each of cleaning's reasons.
SOWN = {"duplicate": 10, "empty": 2, "ratio": 2, "test_overlap": 1}
MAX_RATIO = 3.0


def read_pool(shared: Path, names: tuple[str, ...] = SOURCES) -> list[tuple[str, str]]:
    """The distinct pairs of the shared data's files, in their order."""
    pairs: dict[tuple[str, str], None] = {}
    for name in names:
        sides = []
        for lang in LANGS:
            with gzip.open(shared / f"{name}.{lang}.gz", "rt", encoding="utf-8", newline="\n") as file:
                sides.append([" ".join(line.split()) for line in file])
        pairs |= dict.fromkeys(zip(*sides, strict=True))
    return [pair for pair in pairs if all(pair)]


def generate(
    pool: list[tuple[str, str]], held_out: list[tuple[str, str]], pairs: int, seed: int
) -> Iterator[tuple[str, str, str | None]]:
    """`pairs` distinct pairs that cleaning keeps, with None, and sown among them others, with the reason to drop them.

    `held_out` are the dev pairs, whose sources the pairs of test_overlap repeat in other letters.
    """
    draw = random.Random(seed)
    held_out_keys = {overlap_key(source) for source, _ in held_out}
    held_out = [pair for pair in held_out if _kept_by_ratio(*pair)]  # that check comes before theirs
    seen: set[int] = set()
    reasons = [reason for reason, count in SOWN.items() for _ in range(count)]
    sow_every = (1000 - len(reasons)) // len(reasons)
    kept = 0
    while kept < pairs:
        parts = [pool[int(draw.random() * len(pool))] for _ in range(draw.choices(JOINED, WEIGHTS)[0])]
        source, target = (" ".join(side) for side in zip(*parts, strict=True))
        if kept % NAME_EVERY == 0:
            name = "".join(draw.choices(SYLLABLES, k=draw.randint(2, 4))).title()
            source, target = f"{name}: {source}", f"{name}: {target}"
        size = len(seen)
        seen.add(hash((source, target)))
        if len(seen) == size or not _kept_by_ratio(source, target) or overlap_key(source) in held_out_keys:
            continue
        kept += 1
        yield source, target, None
        if kept % sow_every == 0:
            reason = reasons[kept // sow_every % len(reasons)]
            yield *_sown(reason, (source, target), draw.choice(held_out)), reason


def _kept_by_ratio(source: str, target: str) -> bool:
    few, many = sorted((len(source.split()), len(target.split())))
    return many <= MAX_RATIO * few


def _sown(reason: str, kept: tuple[str, str], held_out: tuple[str, str]) -> tuple[str, str]:
    """A pair that fails the check of that name and none before it, made of the last kept one or of a dev pair."""
    source, target = kept
    if reason == "empty":
        return source, "  "
    if reason == "ratio":
        return source, "no " * int(MAX_RATIO + 1) * len(source.split())
    if reason == "test_overlap":
        return f"  {held_out[0].upper()} ", held_out[1]
    return kept


def written(folder: Path, shared: Path, pairs: int, seed: int) -> dict[str, int]:
    """Write train and dev as text, unless they lie there whole; returns the counters that cleaning must reach.

    The folder may be used again: what it was made from is noted in it.
    """
    record = folder / "made_from.json"
    content = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    made_from = {"pairs": pairs, "seed": seed, "generator": content}
    if record.is_file():
        found = json.loads(record.read_text(encoding="utf-8"))
        if found["made_from"] == made_from:
            return found["expected"]
    folder.mkdir(parents=True, exist_ok=True)
    dev = read_pool(shared, (DEV,))
    for side, lang in enumerate(LANGS):
        text = "".join(f"{pair[side]}\n" for pair in dev)
        (folder / f"dev.{lang}").write_text(text, encoding="utf-8", newline="\n")
    expected = {"read": 0, "kept": 0, **dict.fromkeys(SOWN, 0)}
    paths = [folder / f"train.{lang}" for lang in LANGS]
    with (
        open(paths[0], "w", encoding="utf-8", newline="\n") as sources,
        open(paths[1], "w", encoding="utf-8", newline="\n") as targets,
    ):
        for source, target, reason in generate(read_pool(shared), dev, pairs, seed):
            sources.write(f"{source}\n")
            targets.write(f"{target}\n")
            expected["read"] += 1
            expected[reason or "kept"] += 1
    record.write_text(json.dumps({"made_from": made_from, "expected": expected}), encoding="utf-8")
    return expected

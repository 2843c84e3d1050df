"""Drops training pairs that would teach nothing or teach the test, and counts every one of them.

Each pair is checked in the order of DROPPED and counted under the first check that it fails, so that
read == kept + sum of the DROPPED counters:

missing_language  the unit has no text in one of the two languages (TMX, null in Parquet or on the Hub)
empty             a side has nothing but white space
over_long         a side has more than `max_characters`; the limit in tokens is checked after tokenisation
ratio             one side has more than `max_ratio` times as many words as the other
test_overlap      the source side occurs in the dev or test sources, see `overlap_key`
duplicate         the same pair, character for character, was kept before
limit             the pair comes after the first `limit` kept ones

Dev and test are never passed through here: a score covers every line or it is no score.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from vanilla_transformer.training.readers import Pair

DROPPED = ("missing_language", "empty", "over_long", "ratio", "test_overlap", "duplicate", "limit")

# Scripts without spaces between words: Thai to Khmer, kana, Han. Each character counts as one word.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(f"[{UNSPACED}]|[^\\s{UNSPACED}]+")
HAS_UNSPACED = re.compile(f"[{UNSPACED}]")


@dataclass(frozen=True)
class Rules:
    """What to drop; the fields have the meaning of the recipe's data section."""

    max_characters: int = 10_000
    max_ratio: float | None = None
    drop_duplicates: bool = True
    drop_test_overlap: bool = True
    limit: int | None = None


class DigestSet:
    """A set of 64-bit digests in one flat array: about 16 bytes an entry, where a set of Python ints takes about 90.

    Open addressing with linear probing; the digests are uniform, so their low bits are the hash. Two different texts
    share a digest with probability n**2 / 2**65: 4e-5 for a corpus of 40 million pairs.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _slot(self, digest: int) -> int:
        slots, mask = self._slots, len(self._slots) - 1
        slot = digest & mask
        while slots[slot] and slots[slot] != digest:
            slot = (slot + 1) & mask
        return slot

    def __contains__(self, digest: int) -> bool:
        return bool(self._slots[self._slot(digest or 1)])  # 0 marks a free slot

    def add(self, digest: int) -> bool:
        """Adds the digest; true if it was not there before."""
        digest = digest or 1
        slot = self._slot(digest)
        if self._slots[slot]:
            return False
        self._slots[slot] = digest
        self._count += 1
        if 3 * self._count > 2 * len(self._slots):
            old, self._slots = self._slots, array("Q", bytes(16 * len(self._slots)))
            for digest in old:
                if digest:
                    self._slots[self._slot(digest)] = digest
        return True


def digest_of(text: str) -> int:
    """A 64-bit digest of the text: two of a billion lines share one with a probability of about 3%."""
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def overlap_key(text: str) -> str:
    """The form in which a training source is compared with dev and test sources: NFC, single spaces, case folded."""
    return " ".join(unicodedata.normalize("NFC", text).split()).casefold()


def words(text: str) -> int:
    """Number of words between spaces, where every character of a script without spaces is a word."""
    # Splitting takes a fifth of the time, and most corpora are of scripts with spaces.
    return len(WORD.findall(text) if HAS_UNSPACED.search(text) else text.split())


def hold_out(source: str | None, held_out: DigestSet) -> None:
    """Notes a dev or test source for the overlap check; a blank one is no sentence."""
    if source and (key := overlap_key(source)):
        held_out.add(digest_of(key))


def clean(
    pairs: Iterable[Pair], rules: Rules, held_out: DigestSet, counters: dict[str, int]
) -> Iterator[tuple[str, str]]:
    """The pairs that pass every rule, in their order and unchanged.

    `counters` is filled while reading: read, kept and every name in DROPPED.
    """
    counters.update(dict.fromkeys(("read", "kept", *DROPPED), 0))
    seen = DigestSet()
    for source, target in pairs:
        counters["read"] += 1
        reason = reason_to_drop(source, target, rules, held_out)
        # no text holds a NUL, so the joined form is unambiguous
        if reason is None and rules.drop_duplicates and not seen.add(digest_of(f"{source}\0{target}")):
            reason = "duplicate"
        if reason is None and rules.limit is not None and counters["kept"] >= rules.limit:
            reason = "limit"
        if reason is None and source is not None and target is not None:
            counters["kept"] += 1
            yield source, target
        elif reason is not None:
            counters[reason] += 1


def reason_to_drop(source: str | None, target: str | None, rules: Rules, held_out: DigestSet) -> str | None:
    """The first check that a pair fails, or None; the checks that need no memory of other pairs."""
    if source is None or target is None:
        return "missing_language"
    if not source.strip() or not target.strip():
        return "empty"
    if len(source) > rules.max_characters or len(target) > rules.max_characters:
        return "over_long"
    if rules.max_ratio is not None:
        few, many = sorted((words(source), words(target)))
        if many > rules.max_ratio * few:
            return "ratio"
    if rules.drop_test_overlap and len(held_out) and digest_of(overlap_key(source)) in held_out:
        return "test_overlap"
    return None

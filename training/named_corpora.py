"""Corpora that go by a name and need no Hub: `reverse`, generated, and `home-assistant`, real."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from vanilla_transformer.training.home_assistant import DEV_SHARE, TEST_SHARE, WHEEL, WHEEL_SHA256, read_home_assistant

NAMES = ("reverse", "home-assistant")

# reverse: pairs per split and the longest sequence. Dev and test go beyond the training lengths on purpose.
REVERSE_SIZES = {"train": (50_000, 10), "dev": (500, 15), "test": (1_000, 15)}
REVERSE_SEED = 1
# Shorter sequences are too few to be kept apart: there are ten of length 1.
REVERSE_UNSEEN_FROM = 5


@dataclass
class NamedCorpus:
    """Pairs per split, ready to use."""

    splits: dict[str, list[tuple[str, str]]]
    description: str  # names the content for the manifest and, together with the languages, for the cache
    counters: dict[str, dict[str, int]] = field(default_factory=dict)  # what was left out when it was built
    drop_repetitions: bool = True  # whether duplicates and test overlap may be dropped from training


def load_named_corpus(name: str, source_lang: str, target_lang: str) -> NamedCorpus:
    """The corpus in NAMES of that name; raises CorpusError if it can't be fetched or lacks a language."""
    if name == "reverse":
        # Repetitions stay: dropping them would leave ten training sequences of length 1, or none.
        return NamedCorpus(
            {split: list(reverse_pairs(split)) for split in REVERSE_SIZES},
            f"reverse, seed {REVERSE_SEED}",
            drop_repetitions=False,
        )
    splits, counters = read_home_assistant(source_lang, target_lang)
    return NamedCorpus(splits, f"{WHEEL}, sha256 {WHEEL_SHA256}, split {TEST_SHARE}+{DEV_SHARE}/1000", counters)


def reverse_pairs(split: str, seed: int = REVERSE_SEED) -> Iterator[tuple[str, str]]:
    """Sequences of digits and their reversal, e.g. ("3 1 4", "4 1 3"): a pure function of split and seed.

    Lengths are uniform from 1 to 10 (train) or 15 (dev, test). No dev or test source of REVERSE_UNSEEN_FROM digits or
    more is in training.
    """
    # random() is the one method whose sequence Python promises to keep for a seed
    held_out = (
        {source for other in ("dev", "test") for source, _ in reverse_pairs(other, seed)} if split == "train" else ()
    )
    count, longest = REVERSE_SIZES[split]
    draw = random.Random(f"reverse {seed} {split}").random
    while count:
        digits = [str(int(10 * draw())) for _ in range(1 + int(longest * draw()))]
        source = " ".join(digits)
        if len(digits) >= REVERSE_UNSEEN_FROM and source in held_out:
            continue
        count -= 1
        yield source, " ".join(reversed(digits))

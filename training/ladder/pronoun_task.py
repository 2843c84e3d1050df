"""Pronouns: two people are introduced, the talk turns to other things, and then: who is "he", who is "她"?"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from vanilla_transformer.training.ladder.distance_task import END, SPLITS, Examples, Split, padded

SENTENCES = Path(__file__).with_name("pronoun_sentences.yaml")
LANGUAGES = ("en", "zh")
# A pair of people belongs to one split, by the sum of their places in the lists modulo this. Each name comes up in
# training, with most others.
FOLDS = 5
_SPLIT_OF_FOLD: dict[int, Split] = {0: "test", 1: "validation"}
_GENDERS = ("he", "she")
# English words; of Chinese, as of punctuation, every character.
_TOKEN = re.compile(r"[A-Za-z']+|\S")


class Story(NamedTuple):
    """What a source tells, sentence by sentence, and whom the pronoun in the last one means."""

    sentences: list[str]
    answer: str


@dataclass(frozen=True)
class PronounTask:
    """Stories in one language; `distances` counts the sentences between those that name people and that mean one.

    The answer needs both ends: the pronoun says which of the two people is meant, and only the opening names them. Who
    mixes up the two is right half of the time. English is read by words, Chinese by characters; both languages share
    one vocabulary.
    """

    language: str
    distances: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        return END + 1 + len(_vocabulary())

    def source_tokens(self, distance: int) -> int:
        """No source of this distance is longer."""
        data = _data(self.language)
        names = [name for of_gender in data["people"].values() for name in of_gender]
        name = max(names, key=lambda name: len(_ids(name)))

        def longest(texts: Sequence[str]) -> int:
            filled = [text.format(first=name, second=name, pronoun=data["pronouns"]["he"]) for text in texts]
            return max(len(_ids(text)) for text in filled)

        return longest(data["openings"]) + distance * longest(_between(self.language)) + longest(data["closings"])

    def stories(self, split: Split, distance: int, count: int, rng: np.random.Generator) -> list[Story]:
        """`count` stories about pairs of people of this split, first named in either order."""
        data, between, pairs = _data(self.language), _between(self.language), _pairs(self.language)[split]
        told = []
        for _ in range(count):
            people = _one_of(pairs, rng)
            who, first = int(rng.integers(2)), int(rng.integers(2))
            pronoun = data["pronouns"][_GENDERS[who]]
            told.append(
                Story(
                    [
                        _one_of(data["openings"], rng).format(first=people[first], second=people[1 - first]),
                        *(between[number] for number in rng.integers(len(between), size=distance)),
                        _one_of(data["closings"], rng).format(pronoun=pronoun),
                    ],
                    people[who],
                )
            )
        return told

    def examples(self, split: Split, distance: int, rows: int, rng: np.random.Generator) -> Examples:
        """Sources (B, S) and the names (B, T) that answer them, with the end behind."""
        told = self.stories(split, distance, rows, rng)
        sources = [[token for sentence in story.sentences for token in _ids(sentence)] for story in told]
        return padded(sources, [[*_ids(story.answer), END] for story in told])


@cache
def _data(language: str) -> dict[str, Any]:
    """The language's part of pronoun_sentences.yaml."""
    return yaml.safe_load(SENTENCES.read_text(encoding="utf-8"))[language]


@cache
def _between(language: str) -> list[str]:
    """Every sentence about other things."""
    data = _data(language)
    made = [
        text.format(subject=subject, predicate=predicate, time=time)
        for scene in data["scenes"]
        for subject, predicate, time, text in product(
            scene["subjects"], scene["predicates"], data["times"], data["between"]
        )
    ]
    return [sentence[0].upper() + sentence[1:] for sentence in made]


@cache
def _pairs(language: str) -> dict[Split, list[tuple[str, str]]]:
    """By split, who can be in a story together: he and she."""
    people = _data(language)["people"]
    pairs: dict[Split, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for (i, he), (j, she) in product(*(enumerate(people[gender]) for gender in _GENDERS)):
        pairs[_SPLIT_OF_FOLD.get((i + j) % FOLDS, "train")].append((he, she))
    return pairs


@cache
def _vocabulary() -> dict[str, int]:
    """Every token of every language's sentences, numbered in alphabetical order behind the special tokens."""
    found: set[str] = set()
    for language in LANGUAGES:
        data = _data(language)
        texts = [*_between(language), *data["openings"], *data["closings"]]
        texts = [re.sub(r"\{\w+\}", " ", text) for text in texts]
        for names in data["people"].values():
            texts += names
        found.update(token for text in (*texts, *data["pronouns"].values()) for token in _TOKEN.findall(text))
    return {token: END + 1 + number for number, token in enumerate(sorted(found))}


@cache
def _ids(text: str) -> tuple[int, ...]:
    return tuple(_vocabulary()[token] for token in _TOKEN.findall(text))


def _one_of(choices: Sequence[Any], rng: np.random.Generator) -> Any:
    return choices[int(rng.integers(len(choices)))]

"""Stories of the pronoun task, read again from their tokens with the sentences' file at hand."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from vanilla_transformer.training.ladder import pronoun_task
from vanilla_transformer.training.ladder.distance_task import SPLITS
from vanilla_transformer.training.ladder.pronoun_task import LANGUAGES, PronounTask

DATA = yaml.safe_load(Path(pronoun_task.__file__).with_name("pronoun_sentences.yaml").read_text(encoding="utf-8"))


def named(sentence: str, language: str) -> set[str]:
    words = sentence.replace(".", " ").replace(",", " ").split() if language == "en" else None
    people = [name for names in DATA[language]["people"].values() for name in names]
    return {name for name in people if name in (sentence if words is None else words)}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("distance", [1, 3, 32])
def test_a_story_names_two_people_at_its_start_alone_and_means_one_at_its_end(language, distance):
    data = DATA[language]
    stories = PronounTask(language, (distance,)).stories("train", distance, 200, np.random.default_rng(5))
    first_named = 0
    for sentences, answer in stories:
        opening, *between, closing = sentences
        assert len(between) == distance
        pair = named(opening, language)
        assert answer in pair and {name in data["people"]["he"] for name in pair} == {True, False}
        gender = "he" if answer in data["people"]["he"] else "she"
        pronoun, other = data["pronouns"][gender], data["pronouns"]["she" if gender == "he" else "he"]
        assert closing in [text.format(pronoun=pronoun) for text in data["closings"]]
        for sentence in between:
            assert not named(sentence, language)
            words = sentence.rstrip(".").lower().split() if language == "en" else sentence
            assert pronoun not in words and other not in words
        first_named += opening.index(answer) < opening.index(next(iter(pair - {answer})))
    assert 70 < first_named < 130  # either is named first, and either is asked for


@pytest.mark.parametrize("language", LANGUAGES)
def test_pairs_of_people_belong_to_one_split_and_every_name_is_trained(language):
    task, seen = PronounTask(language, (1,)), {}
    for split in SPLITS:
        stories = task.stories(split, 1, 4000, np.random.default_rng(1))
        seen[split] = {frozenset(named(sentences[0], language)) for sentences, _ in stories}
    assert [len(seen[split]) for split in SPLITS] == [85, 30, 29]
    assert len(set.union(*seen.values())) == 144
    names = {name for people in DATA[language]["people"].values() for name in people}
    assert set().union(*seen["train"]) == set().union(*seen["test"]) == names


def test_tokens_are_words_in_english_and_characters_in_chinese():
    english, chinese = (PronounTask(language, (1,)) for language in LANGUAGES)
    assert english.vocab_size == chinese.vocab_size
    for task, count in ((english, lambda s: len(s[:-1].replace(",", " ,").split()) + 1), (chinese, len)):
        rng = np.random.default_rng(2)
        stories = task.stories("test", 2, 50, np.random.default_rng(2))
        source_BS, answer_BT = task.examples("test", 2, 50, rng)
        assert source_BS.ne(1).sum(1).tolist() == [sum(map(count, story.sentences)) for story in stories]
        assert 3 <= source_BS[source_BS.ne(1)].min() and source_BS.max() < task.vocab_size
        # the name's own tokens, found again in the source, then the end
        for source_S, answer_T in zip(source_BS.tolist(), answer_BT.tolist(), strict=True):
            *name, end = [token for token in answer_T if token != -100]
            assert end == 2 and len(name) == (1 if task is english else 2)
            assert any(source_S[i : i + len(name)] == name for i in range(9))


@pytest.mark.parametrize("language", LANGUAGES)
def test_source_tokens_is_a_bound_that_is_nearly_reached(language):
    task = PronounTask(language, (4,))
    longest = task.examples("train", 4, 2000, np.random.default_rng(0)).source_BS.shape[1]
    assert 0.85 * task.source_tokens(4) < longest <= task.source_tokens(4)


def test_the_same_generator_gives_the_same_stories():
    task = PronounTask("zh", (2,))
    one, again, other = (task.stories("train", 2, 5, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one == again != other

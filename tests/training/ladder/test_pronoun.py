"""The pronoun study from settings to tables, small."""

import json

import pytest

from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.pronoun import PronounStudy, plots, run, tables
from vanilla_transformer.training.ladder.short_training import ShortTraining
from vanilla_transformer.training.ladder.systems import SYSTEMS

TINY = ShortTraining(parameters=40_000, seeds=[3], learning_rates=[1e-3], updates=3, examples=4)
SETTINGS = PronounStudy(training=TINY, distances=[2, 0], questions=10)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pronoun")
    run(SETTINGS, [SYSTEMS["gru"], SYSTEMS["transformer"]], folder)
    assert list(json.loads((folder / "pronoun.json").read_text(encoding="utf-8"))["rows"]) == [
        "lengths",
        "gru/seed 3/rate 0.001",
        "transformer/seed 3/rate 0.001",
    ]
    return Cells(folder / "pronoun.json").rows()


def test_each_language_has_a_table_and_a_plot(rows):
    english, known, chinese, _, trainings = tables(rows)
    assert english.title.endswith("new pairs") and known.title.endswith("known pairs")
    assert list(english.columns) == list(chinese.columns) == ["system", "seeds", "k = 0", "k = 2"]
    right = rows[1]["zh"][1]["right"]
    shares = {row[0]: row[3] for row in known.rows}
    assert shares["gru"].startswith(f"{rows[1]['en_known'][1]['right'] / 10:.3f} (")
    assert chinese.rows[0][3].startswith(f"{right / 10:.3f} (") and len(trainings.rows) == 2
    # the shortest story has an opening and a closing sentence, each of at least four tokens
    assert all(8 < rows[0]["lengths"][language][0] < 20 for language in ("en", "zh"))
    made = plots(rows)
    assert [plot.name for plot in made] == ["en", "en-known", "zh", "zh-known"]
    for plot, language in zip(made, ("en", "en", "zh", "zh"), strict=True):
        assert [one.label for one in plot.series] == ["gru", "transformer", "chance"]
        assert list(plot.series[0].x) == rows[0]["lengths"][language]


def test_a_study_that_was_stopped_is_shown_as_far_as_it_is(rows):
    for count in range(len(rows) + 1):
        tables(rows[:count]), plots(rows[:count])
    assert tables(rows[:1]) == [] == plots(rows[:1])


def test_problems_name_key_and_value():
    assert PronounStudy().problems() == []
    assert PronounStudy(questions=0, distances=[-1]).problems() == [
        "questions = 0: must be at least 1",
        "distances = [-1]: name at least one, none twice, each at least 0",
    ]

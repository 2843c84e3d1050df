"""The recall study from settings to tables, small."""

import json

import pytest

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.ladder import recall
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.recall import RecallStudy, plots, run, tables
from vanilla_transformer.training.ladder.short_training import ShortTraining
from vanilla_transformer.training.ladder.systems import SYSTEMS

TINY = ShortTraining(parameters=20_000, seeds=[1, 2], learning_rates=[1e-3, 1e-2], updates=4, examples=4)
SETTINGS = RecallStudy(training=TINY, distances=[16, 4], questions=20, gradient_examples=2)
RUNGS = [SYSTEMS["rnn"], SYSTEMS["transformer"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recall")
    run(SETTINGS, RUNGS, folder)
    return folder


def test_a_row_a_training_and_one_of_ways_a_system(folder):
    cells = json.loads((folder / "recall.json").read_text(encoding="utf-8"))["rows"]
    for system in ("rnn", "transformer"):
        mine = [key for key in cells if key.startswith(f"{system}/")]
        assert mine[0] == f"{system}/shortest ways" and len(mine) == 4  # two rates, and one more seed
        for row in (cells[key] for key in mine[1:]):
            for column in ("accuracy", "gradient_before", "gradient_after"):
                assert [one["distance"] for one in row[column]] == [4, 16]
            assert row["updates"] == 4 and row["chance"] == 1 / 16
    ways = cells["rnn/shortest ways"]["ways"]
    products = {one["distance"]: one["length"] for one in ways if (one["unit"], one["end"]) == ("products", "encoded")}
    assert products == {4: 5, 16: 17}  # W, then U a step


def test_tables_say_what_the_rows_say(folder):
    rows = Cells(folder / "recall.json").rows()
    accuracy, gradient, ways, trainings = tables(rows)
    assert list(accuracy.columns) == ["system", "seeds", "k = 4", "k = 16"]
    assert [row[:2] for row in accuracy.rows] == [["rnn", 2], ["transformer", 2]]
    # what the first seed's lower validation loss chose, worked out again
    tried = [row for row in rows if row["system"] == "rnn" and row.get("seed") == 1]
    rate = min(tried, key=lambda row: row["validation_loss"])["learning_rate"]
    mine = [row for row in rows if row["system"] == "rnn" and row.get("learning_rate") == rate]
    shares = [row["accuracy"][0]["right"] / 20 for row in mine]
    assert accuracy.rows[0][2].startswith(f"{sum(shares) / 2:.3f} (") and len(shares) == 2
    assert [row[:2] for row in gradient.rows] == [
        [when, system] for when in ("before", "after") for system in ("rnn", "transformer")
    ]
    assert ["matrix products to the encoder's output at the last token", "rnn", 5, 17] in [
        list(row) for row in ways.rows
    ]
    assert len(trainings.rows) == 6 and sum(row[5] == "yes" for row in trainings.rows) == 4


def test_plots_have_a_line_a_system_and_chance(folder):
    made = {plot.name: plot for plot in plots(Cells(folder / "recall.json").rows())}
    assert list(made) == ["accuracy", "gradient-before", "gradient-after", "way-to-encoded", "way-to-answer"]
    assert [one.label for one in made["accuracy"].series] == ["rnn", "transformer", "chance"]
    assert all(list(one.x) == [4, 16] for plot in made.values() for one in plot.series)


def test_a_study_that_was_stopped_is_shown_as_far_as_it_is(folder):
    rows = Cells(folder / "recall.json").rows()
    for count in range(len(rows) + 1):
        tables(rows[:count]), plots(rows[:count])
    assert tables([]) == [] == plots([])


def test_a_rerun_makes_only_the_missing_cell(folder, tmp_path, monkeypatch):
    content = json.loads((folder / "recall.json").read_text(encoding="utf-8"))
    lost = next(key for key in content["rows"] if key.startswith("transformer/seed 2"))
    before = content["rows"].pop(lost)
    (tmp_path / "recall.json").write_text(json.dumps(content), encoding="utf-8")
    made, train = [], recall.train
    monkeypatch.setattr(recall, "train", lambda *args: made.append(args[3:]) or train(*args))
    run(SETTINGS, RUNGS, tmp_path)
    assert made == [(2, before["learning_rate"])]
    again = json.loads((tmp_path / "recall.json").read_text(encoding="utf-8"))["rows"][lost]
    assert again["accuracy"] == before["accuracy"] and again["validation_loss"] == before["validation_loss"]


def test_other_settings_are_refused(folder):
    with pytest.raises(UsageError, match="questions = 21"):
        run(RecallStudy(training=TINY, distances=[16, 4], questions=21, gradient_examples=2), RUNGS, folder)


def test_problems_name_key_and_value():
    assert RecallStudy().problems() == []
    assert RecallStudy(values=0, most_before=-1, distances=[4, 4]).problems() == [
        "values = 0: must be at least 1",
        "most_before = -1: must be at least 0",
        "distances = [4, 4]: name at least one, none twice, each at least 1",
    ]
    # one value and two kinds of noise: sums of 4 tokens take 5 values, and there are 8 folds
    (problem,) = RecallStudy(values=1, noise=2).problems()
    assert problem.startswith("noise = 2: too few")


def test_a_size_that_a_system_cannot_have_is_known_before_the_first_training():
    # 35 tokens with embeddings of two numbers, the least, are 70 parameters without anything else
    problems = RecallStudy(training=ShortTraining(parameters=50)).problems()
    assert [problem.split(": no width")[0] for problem in problems] == [
        f"training.parameters = 50: {system}" for system in SYSTEMS
    ]

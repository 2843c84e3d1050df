"""Power laws against ones that are known, the grid of runs, and a whole small study."""

import json
import math

import pytest
from small_corpus import recipe, reversed_letters

from vanilla_transformer.training.ladder import scaling
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.scaling import ScalingStudy, fitted
from vanilla_transformer.training.ladder.systems import SYSTEMS


def test_an_exact_power_law_is_found():
    law = fitted([(x, 3 * x**-0.25) for x in (1e3, 1e4, 1e6)])
    assert law.factor == pytest.approx(3) and law.exponent == pytest.approx(-0.25)
    assert law.standard_error == pytest.approx(0, abs=1e-9)
    assert law.at(16) == pytest.approx(1.5)


def test_the_standard_error_is_the_slope_s():
    # On logarithms: x = 0, 1, 2 and y = 0, 1, 0. Slope 0, mean 1/3, residuals 1/3^2 + (2/3)^2 + 1/3^2 = 2/3;
    # sqrt(2/3 / 1 / 2) = 0.577
    law = fitted([(1, 1), (math.e, math.e), (math.e**2, 1)])
    assert law.exponent == pytest.approx(0, abs=1e-12)
    assert law.standard_error == pytest.approx(math.sqrt(1 / 3))
    assert fitted([(1, 2), (10, 1)]).standard_error is None
    assert fitted([(5, 2), (5, 1)]) is None


def row(system, asked, share, loss, seed=1):
    found = {"system": system, "asked": asked, "parameters": asked + 1, "embedding_parameters": 10, "d_model": 8}
    return {
        **found,
        "share": share,
        "pairs": int(1000 * share),
        "seed": seed,
        "updates": 5,
        "validation_loss": loss,
        "last_validation_loss": loss + 1,
        "training_seconds": 2.0,
    }


ROWS = [
    *(row("transformer", n, 1.0, loss) for n, loss in ((100, 4.0), (400, 2.0), (1600, 1.0))),
    row("transformer", 400, 0.1, 5.0),
]


def test_tables_separate_sizes_from_amounts_of_data():
    sizes, data, laws = scaling.tables(ROWS)
    assert [line[1] for line in sizes.rows] == [101, 401, 1601]
    assert [line[1] for line in data.rows] == [100, 1000]  # the whole data's run serves both
    assert [line[6] for line in data.rows] == [5.0, 2.0]
    by_size, by_data = laws.rows
    assert by_size[:3] == ["transformer", "parameters", 3]
    assert by_size[3] == pytest.approx(-0.5, abs=0.01)  # each fourfold halves the loss
    assert by_data[3] == pytest.approx(math.log(2 / 5) / math.log(10))
    assert by_data[4] is None


def test_plots_show_points_and_fits():
    sizes, data = scaling.plots(ROWS)
    points, line = sizes.series
    assert (points.x, points.y) == ([101, 401, 1601], [4.0, 2.0, 1.0])
    assert line.is_reference and line.label.startswith("transformer: b = -0.5")
    two_seeds = scaling.plots([*ROWS, row("transformer", 100, 1.0, 2.0, seed=2)])[0]
    assert two_seeds.series[0].y[0] == 3.0
    assert scaling.tables([]) == [] == scaling.plots([])
    assert len(scaling.tables(ROWS[:1])) == 1  # one point has no slope


def test_the_grid_has_no_run_twice(tmp_path):
    sections = recipe(reversed_letters(tmp_path / "pairs"))
    study = ScalingStudy(**sections, parameters=[10, 20], data_fractions=[0.5, 1.0], data_parameters=20)
    assert study.cells() == [(10, 1.0), (20, 1.0), (20, 0.5)]
    assert ScalingStudy(**sections).problems() == []
    wrong = ScalingStudy(**sections, systems=["lstm-atention"], data_fractions=[2.0], parameters=[0]).problems()
    assert [line.split(":")[0] for line in wrong] == [
        *("systems = lstm-atention", "parameters = 0", "data_fractions = 2.0"),
    ]


@pytest.mark.integration
def test_a_small_study_trains_each_size_and_share(tmp_path):
    sections = recipe(reversed_letters(tmp_path / "pairs"))
    sizes = {"parameters": [3000, 6000], "data_fractions": [0.25], "data_parameters": 3000}
    study = ScalingStudy(**sections, **sizes)
    systems = [SYSTEMS["gru"], SYSTEMS["transformer"]]  # the first is not named by the study
    scaling.run(study, systems, tmp_path)
    rows = Cells(tmp_path / "scaling.json", study.decided()).rows()
    assert [(found["system"], found["asked"], found["share"]) for found in rows] == [
        *(("transformer", 3000, 1.0), ("transformer", 6000, 1.0), ("transformer", 3000, 0.25)),
    ]
    assert [found["pairs"] for found in rows] == [160, 160, 40]
    for found in rows:
        assert found["parameters"] == pytest.approx(found["asked"], rel=0.05)
        assert found["updates"] == 12 and 0 < found["validation_loss"] <= found["last_validation_loss"] < 4
    run = tmp_path / "runs/scaling/transformer-3000-0.25-seed1"
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert not any("validation_bleu" in line for line in log)
    before = (tmp_path / "scaling.json").read_bytes()
    scaling.run(study, systems, tmp_path)
    assert (tmp_path / "scaling.json").read_bytes() == before

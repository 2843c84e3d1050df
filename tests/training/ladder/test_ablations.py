"""Ablations from recipe to table: what a row says, that a stopped study goes on, that divergence is a result."""

import json

import pytest
from small_corpus import recipe, reversed_letters

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.ladder import ablations
from vanilla_transformer.training.ladder.ablations import AblationsStudy
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.run_folder import RunFolder


def row(ablation, seed, loss, bleu):
    found = {"ablation": ablation, "seed": seed, "parameters": 100, "updates": 5, "diverged": loss is None}
    return {**found, "validation_loss": loss, "bleu": bleu, "signature": "sig"}


ROWS = [row("one head", 1, 1.0, 10.0), row("whole", 1, 0.0, 20.0), row("whole", 2, 2.0, 30.0)]


def test_the_table_holds_means_over_seeds_in_the_order_of_the_parts():
    (table,) = ablations.tables([*ROWS, row("without layer norm", 1, None, None)])
    assert [line[0] for line in table.rows] == ["whole", "without layer norm", "one head"]
    # losses 0 and 2: the mean 1, whose perplexity is e; BLEU 20 and 30
    assert table.rows[0] == ["whole", 100, 1.0, pytest.approx(2.718282), 25.0, 10.0, 2, 0]
    assert table.rows[1] == ["without layer norm", 100, None, None, None, None, 1, 1]
    assert table.note.endswith(" sig")


def test_plots_leave_out_what_diverged_and_keep_its_place():
    bleu, loss = ablations.plots([*ROWS, row("without layer norm", 1, None, None)])
    assert bleu.categories == ["whole", "layer\nnorm", "one\nhead"]
    assert (bleu.series[0].x, bleu.series[0].y) == ([0, 2], [25.0, 10.0])
    assert loss.name == "validation-loss"
    assert ablations.tables([]) == [] == ablations.plots([])


def test_a_run_has_diverged_when_its_last_update_was_no_number(tmp_path):
    run = RunFolder(tmp_path)
    assert ablations._diverged_at(run) is None
    run.metrics.write_text('{"step": 1, "loss": 2.0}\n{"step": 7, "loss": null, "lines": [3]}\n')
    assert ablations._diverged_at(run) == 7
    run.metrics.write_text('{"step": 7, "loss": null}\n{"step": 8, "loss": 2.0}\n')
    assert ablations._diverged_at(run) is None


def test_problems_name_key_and_value(tmp_path):
    sections = recipe(reversed_letters(tmp_path / "pairs"))
    assert AblationsStudy(**sections).problems() == []
    wrong = {**sections, "ablations": ["one heads"], "seeds": [1, 1]}
    wrong["transformer"] = {**sections["transformer"], "num_heads": 3}
    found = AblationsStudy(**wrong).problems()
    assert any(line.startswith("transformer.num_heads = 3:") for line in found)
    assert "seeds = [1, 1]: name at least one, and none twice" in found
    assert any(line.startswith("ablations = one heads: unknown; did you mean one head?") for line in found)


@pytest.mark.integration
def test_a_small_study_trains_and_scores_each(tmp_path):
    sections = recipe(reversed_letters(tmp_path / "pairs"))
    names = ["whole", "without feed-forward", "without decoder mask"]
    study = AblationsStudy(**sections, ablations=names[:2])
    ablations.run(study, [], tmp_path)
    first = json.loads((tmp_path / "ablations.json").read_text())["rows"]
    ablations.run(AblationsStudy(**sections, ablations=names), [], tmp_path)
    found = json.loads((tmp_path / "ablations.json").read_text())["rows"]
    assert {key: found[key] for key in first} == first  # none was made again
    assert list(found) == [f"{name}/seed 1" for name in names]
    whole, no_ffn, no_mask = found.values()
    assert whole["updates"] == no_mask["updates"] == 12
    assert whole["parameters"] - no_ffn["parameters"] == 2 * (2 * 16 * 32 + 32 + 16 + 2 * 16)
    assert 0 < whole["validation_loss"] < 4 and 0 <= whole["bleu"] <= 100
    log = (tmp_path / "runs/ablations/without-decoder-mask-seed1/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line).get("validation_loss") for line in log]
    assert no_mask["validation_loss"] == min(loss for loss in losses if loss is not None)
    assert len(ablations.tables(Cells(tmp_path / "ablations.json").rows())[0].rows) == 3


@pytest.mark.integration
def test_a_training_without_finite_numbers_is_a_result_and_another_failure_is_not(tmp_path):
    sections = recipe(reversed_letters(tmp_path / "pairs"))
    sections["training"] |= {"learning_rate": 1e38, "warmup_steps": 1, "max_skipped_in_a_row": 2}
    ablations.run(AblationsStudy(**sections, ablations=["without layer norm"]), [], tmp_path / "study")
    (found,) = Cells(tmp_path / "study" / "ablations.json").rows()
    assert found["diverged"] and found["validation_loss"] is None and found["updates"] >= 2

    sections["data"] |= {"train": "none.tsv"}
    with pytest.raises(UserError, match="none.tsv"):
        ablations.run(AblationsStudy(**sections, ablations=["whole"]), [], tmp_path / "other")

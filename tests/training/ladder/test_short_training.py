"""Short trainings: what they learn, which rate they take, and that a rerun makes only what is missing."""

import pytest
import torch

from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.distance_task import accuracy_by_distance
from vanilla_transformer.training.ladder.recall_task import RecallTask
from vanilla_transformer.training.ladder.short_training import (
    ShortTraining,
    best_rates,
    counted,
    new_model,
    run_trainings,
    train,
    validation_loss,
)
from vanilla_transformer.training.ladder.systems import SYSTEMS

TASK = RecallTask((4,), values=4, noise=4, most_before=2)
QUICK = ShortTraining(parameters=20_000, updates=400, examples=32, warmup_steps=20, learning_rates=[1e-2])


@pytest.mark.parametrize("system", ["gru", "transformer"])
def test_a_small_model_learns_what_stands_four_tokens_back(system):
    model = new_model(SYSTEMS[system], QUICK, TASK.vocab_size, seed=1)
    before = accuracy_by_distance(model, TASK, "test", 200)[0]
    row = train(model, [TASK], QUICK, seed=1, learning_rate=1e-2)
    after = accuracy_by_distance(model, TASK, "test", 200)[0]
    assert before["right"] < 120 and after["right"] > 180
    # and so well that it ended before the most updates
    assert row["learnt"] and row["updates"] < 400
    assert row["parameters"] == model.num_parameters() and 19_000 <= row["parameters"] <= 21_000


def test_a_seed_decides_the_whole_training():
    def trained(seed, examples_of):
        model = new_model(SYSTEMS["rnn"], QUICK, TASK.vocab_size, seed)
        train(model, [TASK], ShortTraining(updates=3), examples_of, 1e-3)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(trained(1, 1), trained(1, 1))
    assert not torch.equal(trained(1, 1), trained(1, 2))
    assert not torch.equal(trained(1, 1), trained(2, 1))


def test_an_update_holds_no_more_tokens_than_it_may(monkeypatch):
    asked = []
    examples = RecallTask.examples

    def seen(task, split, distance, rows, rng):
        asked.append((split, distance, rows))
        return examples(task, split, distance, rows, rng)

    monkeypatch.setattr(RecallTask, "examples", seen)
    task = RecallTask((7, 97), values=4, noise=4, most_before=2)  # at most 10 and 100 tokens
    settings = ShortTraining(updates=30, examples=32, source_tokens=250)
    train(new_model(SYSTEMS["lstm"], settings, task.vocab_size, 1), [task], settings, 1, 1e-3)
    rows = {distance: rows for split, distance, rows in asked if split == "train"}
    assert rows == {7: 25, 97: 2}
    # in proportion to k^-1/2: of 30 updates 23.6 on the mean
    assert 16 <= sum(distance == 7 for split, distance, _ in asked if split == "train") <= 29


def test_validation_loss_is_the_mean_over_distances():
    model = new_model(SYSTEMS["lstm"], QUICK, TASK.vocab_size, 1)
    task = RecallTask((4, 9), values=4, noise=4, most_before=0)
    with torch.no_grad():
        model.lm_head.weight.zero_()  # every token as probable as any other
    assert validation_loss(model, [task]) == pytest.approx(torch.tensor(11.0).log().item())


def test_the_better_rate_on_the_first_seed_is_that_of_all_seeds_and_a_rerun_makes_what_is_missing(tmp_path):
    losses = {("rnn", 1e-3): 0.5, ("rnn", 3e-3): 0.4, ("gru", 1e-3): 0.1, ("gru", 3e-3): 0.2}
    made = []

    def training(system, seed, rate):
        if len(made) == stop_after:
            raise KeyboardInterrupt
        made.append((system.name, seed, rate))
        # a worse rate may be lucky on another seed: that is not looked at
        return {"validation_loss": losses[system.name, rate] - 0.05 * seed, "updates": 7}

    settings, systems = ShortTraining(seeds=[5, 6, 7], learning_rates=[1e-3, 3e-3]), [SYSTEMS["rnn"], SYSTEMS["gru"]]
    stop_after = 6
    with pytest.raises(KeyboardInterrupt):
        run_trainings(settings, systems, Cells(tmp_path / "study.json"), training)
    stop_after = None
    cells = Cells(tmp_path / "study.json")
    cells.put("another cell", {"system": "rnn", "ways": []})
    run_trainings(settings, systems, cells, training)
    rnn = [("rnn", 5, 1e-3), ("rnn", 5, 3e-3), ("rnn", 6, 3e-3), ("rnn", 7, 3e-3)]
    gru = [("gru", 5, 1e-3), ("gru", 5, 3e-3), ("gru", 6, 1e-3), ("gru", 7, 1e-3)]
    assert made == rnn + gru
    assert best_rates(cells.rows()) == {"rnn": 3e-3, "gru": 1e-3}
    kept = counted(cells.rows())
    assert [row["seed"] for row in kept["rnn"]] == [row["seed"] for row in kept["gru"]] == [5, 6, 7]
    run_trainings(settings, systems, cells, training)
    assert len(made) == 8


def test_problems_name_key_value_and_remedy():
    assert ShortTraining().problems() == []
    wrong = ShortTraining(updates=0, seeds=[1, 1], learning_rates=[], max_grad_norm=-1.0)
    assert wrong.problems() == [
        "updates = 0: must be above 0",
        "max_grad_norm = -1.0: must be above 0",
        "seeds = [1, 1]: name at least one, and none twice",
        "learning_rates = []: name at least one, and none twice",
    ]

import dataclasses

import pytest
import torch

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training import acceleration
from vanilla_transformer.training.acceleration import make_accelerator
from vanilla_transformer.training.recipe import DataConfig, Recipe, TrackingConfig, TrainingConfig

RECIPE = Recipe(data=DataConfig(corpus="reverse", source_lang="fwd", target_lang="rev"))


def test_precision_and_threads_are_the_recipes_in_each_run_of_one_process():
    before = torch.get_num_threads()
    for precision, name in (("bfloat16", "bf16"), ("float32", "no")):
        recipe = dataclasses.replace(RECIPE, training=TrainingConfig(precision=precision, threads=1))
        assert make_accelerator(recipe).mixed_precision == name
        assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(acceleration.importlib.util, "find_spec", lambda name: None)
    recipe = dataclasses.replace(RECIPE, tracking=TrackingConfig(trackers=["trackio"]))
    with pytest.raises(UsageError, match=r"pip install 'vanilla-transformer\[trackio\]'"):
        make_accelerator(recipe)


def test_processes_that_do_not_see_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # launched as two, but nothing says how to meet
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(acceleration, "Accelerator", lambda **options: type("Alone", (), {"num_processes": 1}))
    with pytest.raises(UserError, match="2 processes were launched but each sees 1"):
        make_accelerator(RECIPE)

"""training.deterministic: what it asks torch for, and that on a CPU the model and the loss obey it."""

import dataclasses
import os
from unittest import mock

import pytest
import torch
from toy_training import toy_loop

from vanilla_transformer.training.acceleration import make_accelerator
from vanilla_transformer.training.recipe import DataConfig, Recipe, TrainingConfig

RECIPE = Recipe(data=DataConfig(corpus="reverse", source_lang="fwd", target_lang="rev"))


@pytest.fixture(autouse=True)
def as_before():
    with mock.patch.dict(os.environ):
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
        yield
    torch.use_deterministic_algorithms(False)


def asked(**training):
    make_accelerator(dataclasses.replace(RECIPE, training=TrainingConfig(**training)))
    return torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")


def test_it_is_asked_for_before_a_gpu_is_touched():
    assert asked() == (False, None)
    assert asked(deterministic=True) == (True, ":4096:8")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"  # the other value that cuBLAS takes
    assert asked(deterministic=True) == (True, ":16:8")
    # With warn_only, torch would keep the memory-efficient attention whose backward pass adds in any order.
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_on_a_cpu_it_changes_nothing(tmp_path):
    for name, deterministic in (("as it is", False), ("deterministic", True)):
        torch.use_deterministic_algorithms(deterministic)
        toy_loop(tmp_path / name, max_steps=3, gradient_accumulation_steps=2, deterministic=deterministic).train()
    one, two = (tmp_path / name / "checkpoints" / "step-3" for name in ("as it is", "deterministic"))
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()

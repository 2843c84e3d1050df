"""The plain side of the comparison is the same model without what is there for speed; the curves' means by hand."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from vanilla_transformer.training.recipe import DataConfig, ModelConfig, Recipe, TokenizerConfig
from vanilla_transformer.training.tokenizer import train_tokenizer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def convergence(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import convergence

    yield convergence
    del sys.modules["convergence"]


def built(convergence, build, dropout):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
    recipe = Recipe(
        data=DataConfig(corpus="none", source_lang="a", target_lang="b"),
        model=ModelConfig(preset=None, fields={**sizes, "dropout": dropout}),
    )
    tokenizer = train_tokenizer([f"word{number}" for number in range(30)], TokenizerConfig(type="words", vocab_size=30))
    return build(recipe, tokenizer).train()


def batch():
    ids = torch.arange(4, 16).view(2, 6)
    return {"input_ids": ids, "labels": ids.flip(1).masked_fill(ids.eq(9), -100)}


def test_the_plain_model_has_the_same_loss_and_gradients(convergence):
    plain = built(convergence, convergence.plain_model, 0.0)
    quick = built(convergence, convergence.build_model, 0.0)
    losses = [model(**batch()).loss for model in (plain, quick)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    for ours, theirs in zip(plain.parameters(), quick.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_nothing_in_the_plain_model_is_there_for_speed(convergence):
    plain = built(convergence, convergence.plain_model, 0.3)
    assert plain.config._attn_implementation == "eager"
    dropouts = [module for module in plain.modules() if isinstance(module, nn.Dropout)]
    assert {type(module) for module in dropouts} == {nn.Dropout} and dropouts[0].p == 0.3
    assert plain(**batch()).logits is not None  # which the quick model never has
    assert built(convergence, convergence.build_model, 0.3)(**batch()).logits is None


def test_means_of_twenty_updates_by_hand(convergence):
    losses = [*range(1, 22), None]
    means = convergence.smoothed(losses)
    assert means[:2].tolist() == [10.5, 11.5]
    assert means[2] == pytest.approx(sum(range(3, 22)) / 19)  # 3 to 21 and the skipped update
    assert not math.isnan(means[2]) and len(means) == 3

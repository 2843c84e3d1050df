"""Each model lacks its part and nothing else, in training, in decoding and after a round over the disk."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.modeling_vanilla_transformer import (
    FeedForward,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.training.ladder.ablated_models import (
    ABLATIONS,
    WithoutDecoderMask,
    WithoutFeedForward,
    WithoutLayerNorm,
    WithoutPositions,
    WithoutResiduals,
    WithoutScaling,
    as_the_transformer,
)

SIZES = {"vocab_size": 40, "d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 2, "num_decoder_layers": 2}
SOURCE = torch.tensor([[5, 6, 7, 8, 2]])
TARGET = torch.tensor([[0, 11, 12, 13, 14]])


def make(kind=VanillaTransformerForConditionalGeneration, **fields):
    torch.manual_seed(3)
    return kind(VanillaTransformerConfig(**{**SIZES, **fields})).eval()


@torch.no_grad()
def logits(model, source=SOURCE, target=TARGET):
    return model(input_ids=source, decoder_input_ids=target, use_cache=False).logits


@pytest.mark.parametrize("name", ABLATIONS)
def test_what_is_left_starts_from_the_same_weights_and_computes_something_else(name):
    kind, fields = ABLATIONS[name]
    whole, ablated = make().state_dict(), make(kind, **fields).state_dict()
    assert ablated.keys() <= whole.keys()
    for key, weight in ablated.items():
        torch.testing.assert_close(weight, whole[key])
    if name != "whole":
        assert (logits(make()) - logits(make(kind, **fields))).abs().max() > 1e-3


def test_parameters_are_those_of_the_parts_that_are_left():
    count = make().num_parameters()
    d, f, layers = 16, 24, 4
    assert make(WithoutPositions).num_parameters() == make(WithoutScaling).num_parameters() == count
    assert make(WithoutResiduals).num_parameters() == make(num_heads=1).num_parameters() == count
    norms = 2 * 2 + 2 * 3  # sub-layers of two layers a side
    assert make(WithoutLayerNorm).num_parameters() == count - norms * 2 * d
    assert make(WithoutFeedForward).num_parameters() == count - layers * (2 * d * f + f + d + 2 * d)
    assert not any(isinstance(module, FeedForward) for module in make(WithoutFeedForward).modules())
    assert not any(isinstance(module, nn.LayerNorm) for module in make(WithoutLayerNorm).modules())


def test_without_positions_the_order_of_the_source_does_not_count():
    shuffled = SOURCE[:, [3, 1, 0, 2, 4]]
    torch.testing.assert_close(logits(make(WithoutPositions)), logits(make(WithoutPositions), shuffled))
    assert (logits(make()) - logits(make(), shuffled)).abs().max() > 1e-3


def test_without_residuals_a_dead_sublayer_stops_everything():
    # All attention outputs are zero: then nothing of the source or the target is left after the first LayerNorm.
    model = make(WithoutResiduals)
    for name, weight in model.named_parameters():
        if "out_proj" in name:
            nn.init.zeros_(weight)
    other = torch.tensor([[9, 10, 9, 10, 2]])
    torch.testing.assert_close(logits(model), logits(model, other))


def test_without_scaling_scores_are_larger_by_the_root_of_d_k():
    whole, ablated = make(), make(WithoutScaling)
    for module in whole.modules():
        if hasattr(module, "scaling"):
            assert module.scaling == pytest.approx(8**-0.5)
            module.scaling *= 8**0.5
    torch.testing.assert_close(logits(whole), logits(ablated))


def test_without_the_mask_a_position_sees_what_comes_after_it():
    later = TARGET.clone()
    later[0, -1] = 20
    with_mask, without = make(), make(WithoutDecoderMask)
    torch.testing.assert_close(logits(with_mask)[:, :-1], logits(with_mask, target=later)[:, :-1])
    assert (logits(without)[:, 0] - logits(without, target=later)[:, 0]).abs().max() > 1e-4
    # but no pad, which other sentences of a batch bring along
    padded = torch.cat([TARGET, torch.full((1, 3), 1)], 1)
    torch.testing.assert_close(logits(without), logits(without, target=padded)[:, :5])


def test_only_without_the_mask_is_chance_predicted():
    # What follows is drawn at random: nobody can know it, and who predicts it has looked.
    losses = []
    for kind in (VanillaTransformerForConditionalGeneration, WithoutDecoderMask):
        model = make(kind, dropout=0.0, label_smoothing=0.0, d_model=32).train()
        adam = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(150):
            labels = torch.randint(4, 40, (32, 6))
            loss = model(input_ids=torch.full((32, 3), 5), labels=labels).loss
            adam.zero_grad()
            loss.backward()
            adam.step()
        losses.append(loss.item())
    assert losses[0] > 3.4  # log 36 = 3.58, the best without looking
    assert losses[1] < 2.5


@pytest.mark.parametrize("name", ABLATIONS)
def test_saved_and_loaded_it_is_the_same_model(name, tmp_path):
    kind, fields = ABLATIONS[name]
    model = make(kind, **fields)
    model.save_pretrained(tmp_path)
    with as_the_transformer(kind):
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
        assert type(loaded) is kind
        torch.testing.assert_close(logits(loaded.eval()), logits(model))
        assert type(AutoModelForSeq2SeqLM.from_config(model.config)) is kind
    assert type(AutoModelForSeq2SeqLM.from_config(model.config)) is VanillaTransformerForConditionalGeneration


@pytest.mark.parametrize("name", ABLATIONS)
def test_decoding_is_the_ablated_model_s_own(name):
    # Greedy words, against the model's own logits of the words so far
    kind, fields = ABLATIONS[name]
    model = make(kind, **fields)
    written = model.generate(input_ids=SOURCE, num_beams=1, early_stopping=None, max_new_tokens=5, min_new_tokens=5)
    for end in range(1, 6):
        last = logits(model, target=written[:, :end])[0, -1]
        last[[0, 1, 2]] = -torch.inf  # never written: <s>, <pad>; nor, so early, </s>
        assert last.argmax() == written[0, end]

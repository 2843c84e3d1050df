"""The arithmetic of a run before it starts, against the paper's sizes worked out by hand."""

from pathlib import Path

import pytest

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.dry_run import dry_run, told
from vanilla_transformer.training.recipe import load_recipe, recipe_from_mapping

WMT = {"data": {"corpus": "wmt/wmt14", "name": "de-en", "source_lang": "en", "target_lang": "de"}}


def base(**training):
    return recipe_from_mapping({**WMT, "training": {"precision": "bfloat16", **training}})


def test_the_paper_s_base_model():
    plan = dry_run(base(), processes=8)
    assert (plan.updates, plan.micro_batches) == (100_000, 8)
    assert plan.tokens_per_update == (25_000, 25_000)
    assert plan.tokens_per_micro_batch == (3125, 3125)
    assert plan.parameters == 63_045_632
    # Per source token: 6 x (4 d^2 + 2 d d_ff) and the decoder's 6 x 2 d^2 of keys and values, two FLOPs a weight.
    source = 2 * (6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * 2 * 512**2)
    # Per target token: 6 x (4 + 2) d^2 and 6 x 2 d d_ff, and the softmax.
    target = 2 * (6 * (6 * 512**2 + 2 * 512 * 2048) + 512 * 37_000)
    assert (source, target) == (pytest.approx(44e6, rel=0.01), pytest.approx(82e6, rel=0.01))
    assert (plan.flops_per_source_token, plan.flops_per_target_token) == (3 * source, 3 * target)
    assert plan.flops == 100_000 * 25_000 * 3 * (source + target)
    assert plan.hours["H100"] == pytest.approx(plan.flops / (0.4 * 989e12) / 3600)


def test_memory_and_disk_follow_the_parameters():
    plan = dry_run(base(keep_last=5))
    assert plan.model_bytes == 16 * 63_045_632
    assert plan.checkpoint_bytes == 12 * 63_045_632
    assert plan.kept_bytes == 6 * 12 * 63_045_632 + 2 * 4 * 63_045_632


def test_activations_grow_with_the_micro_batch_and_shrink_with_its_number():
    whole, quarters = dry_run(base()), dry_run(base(gradient_accumulation_steps=4))
    assert whole.activation_bytes == pytest.approx(4 * quarters.activation_bytes, rel=0.02)
    # Each of 18 sub-layers keeps at least its input and its output of 512 numbers in two bytes, for 25,000 tokens.
    assert whole.activation_bytes > 18 * 2 * 512 * 2 * 25_000
    # and not more than twenty times as much
    assert whole.activation_bytes < 20 * 18 * 2 * 512 * 2 * 25_000
    assert dry_run(base(precision="float32")).activation_bytes == pytest.approx(2 * whole.activation_bytes, rel=0.1)


def test_embeddings_that_are_not_shared_count_thrice():
    mapping = {**WMT, "model": {"embedding_sharing": "none"}}
    assert dry_run(recipe_from_mapping(mapping)).parameters == 63_045_632 + 2 * 37_000 * 512


def test_learned_positions_are_parameters_and_weigh_nothing_else():
    learned = dry_run(recipe_from_mapping({**WMT, "model": {"preset": "E-learned"}}))
    config = recipe_from_mapping({**WMT, "model": {"preset": "E-learned"}}).model.to_config(37_000)
    tables = (config.max_source_positions + config.max_target_positions) * 512
    assert learned.parameters == 63_045_632 + tables
    assert learned.activation_bytes == dry_run(recipe_from_mapping(WMT)).activation_bytes


@pytest.mark.parametrize(
    "name, parameters, updates, average, dropout",
    [
        ("wmt14-en-de-base", 63_045_632, 100_000, 5, 0.1),
        ("wmt14-en-de-big", 214_171_648, 300_000, 20, 0.3),
        # 5,000 entries less in the vocabulary
        ("wmt14-en-fr-base", 63_045_632 - 5000 * 512, 100_000, 5, 0.1),
        ("wmt14-en-fr-big", 214_171_648 - 5000 * 1024, 300_000, 20, 0.1),
    ],
)
def test_the_wmt_recipes_are_the_paper_s(name, parameters, updates, average, dropout):
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / f"{name}.yaml")
    plan = dry_run(recipe, processes=8)
    assert (plan.parameters, plan.updates) == (parameters, updates)
    assert plan.tokens_per_update == (25_000, 25_000)
    training, config = recipe.training, recipe.model.to_config(recipe.tokenizer.vocab_size)
    assert (training.average_last, config.dropout, config.label_smoothing) == (average, dropout, 0.1)
    assert (training.learning_rate, training.warmup_steps, training.max_grad_norm) == (None, 4000, None)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (recipe.generation.num_beams, recipe.generation.length_penalty) == (4, 0.6)
    text = told(plan)
    assert f"updates: {updates:,}, each of up to 25,000 source and 25,000 target tokens" in text
    assert f"parameters: {parameters:,}" in text


def test_a_recurrent_model_is_refused():
    mapping = {**WMT, "model": {"architecture": "recurrent_seq2seq"}}
    with pytest.raises(UsageError, match="model.architecture = recurrent_seq2seq"):
        dry_run(recipe_from_mapping(mapping))

import dataclasses

import datasets
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from toy_training import toy_model

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.recipe import (
    DataConfig,
    DecodingConfig,
    EvaluationConfig,
    ModelConfig,
    Recipe,
    TokenizerConfig,
)
from vanilla_transformer.training.tokenizer import train_tokenizer
from vanilla_transformer.training.validation import Validator, decoding_options, require_lengths

PAIRS = [("a b c d e", "e d c b a"), ("b", "b"), ("c c a", "a c c"), ("", "d"), ("e a d b c a b", "b a")]
RECIPE = Recipe(
    data=DataConfig(corpus="reverse", source_lang="fwd", target_lang="rev"),
    generation=DecodingConfig(num_beams=1, batch_tokens=12),  # several batches
    evaluation=EvaluationConfig(decode=False),
)


@pytest.fixture
def tokenizer():
    return train_tokenizer([line for pair in PAIRS for line in pair], TokenizerConfig(type="words"))


@pytest.fixture
def dev():
    return datasets.Dataset.from_list([{"translation": {"fwd": source, "rev": target}} for source, target in PAIRS])


@pytest.fixture
def accelerator():
    AcceleratorState._reset_state()
    return Accelerator(cpu=True)


def test_the_loss_is_cross_entropy_per_token_over_all_pairs(tokenizer, dev, accelerator):
    model = toy_model(vocab_size=len(tokenizer)).train()
    scores = Validator(RECIPE, accelerator, tokenizer, dev)(model)
    total, tokens = 0.0, 0
    model.eval()  # one pair at a time, without padding, from the logits, without smoothing
    for source, target in PAIRS:
        source_ids, target_ids = (torch.tensor([tokenizer(side)["input_ids"]]) for side in (source, target))
        start = torch.full((1, 1), model.config.decoder_start_token_id)
        logits = model(input_ids=source_ids, decoder_input_ids=torch.cat([start, target_ids[:, :-1]], 1)).logits
        total -= logits[0].log_softmax(-1).gather(1, target_ids[0, :, None]).sum().item()
        tokens += target_ids.shape[1]
    assert set(scores) == {"validation_loss", "validation_perplexity"}
    assert scores["validation_loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert scores["validation_perplexity"] == pytest.approx(torch.tensor(total / tokens).exp().item(), rel=1e-5)


def test_bleu_of_the_first_pairs_is_that_of_the_models_translations(tokenizer, dev, accelerator, monkeypatch):
    # The model is replaced by one that knows the answers to the first two pairs and says "a" to all others.
    answers = dict(PAIRS[:2])
    monkeypatch.setattr(
        "vanilla_transformer.training.validation.translate_sharded",
        lambda model, tokenizer, sentences, **options: [answers.get(sentence, "a") for sentence in sentences],
    )
    model = toy_model(vocab_size=len(tokenizer))
    for limit, perfect in ((2, True), (None, False)):
        recipe = dataclasses.replace(RECIPE, evaluation=EvaluationConfig(dev_limit=limit, tokenize="none"))
        scores = Validator(recipe, accelerator, tokenizer, dev)(model)
        assert (scores["validation_bleu"] == pytest.approx(100)) == perfect


def test_a_score_that_cannot_be_computed_is_refused_before_training(tokenizer, dev, accelerator):
    recipe = dataclasses.replace(RECIPE, evaluation=EvaluationConfig(tokenize="klingon"))
    with pytest.raises(UsageError, match="klingon"):
        Validator(recipe, accelerator, tokenizer, dev)


def test_greedy_decoding_has_no_length_penalty():
    assert decoding_options(DecodingConfig())["length_penalty"] == 0.6
    assert decoding_options(DecodingConfig(num_beams=1))["length_penalty"] is None


@pytest.mark.parametrize(("limits", "said"), [((6, 9), "Sentence 5 of test has 8 tokens"), ((9, 5), "1 of test has 6")])
def test_a_held_out_pair_past_learned_positions_is_found_before_training(tokenizer, dev, limits, said):
    fields = {"positional_encoding": "learned", "max_source_positions": limits[0], "max_target_positions": limits[1]}
    recipe = dataclasses.replace(RECIPE, model=ModelConfig(fields=fields))
    require_lengths(recipe, tokenizer, {"dev": None, "test": dev.select([1, 2])})
    with pytest.raises(UserError, match=said):
        require_lengths(recipe, tokenizer, {"dev": None, "test": dev})
    require_lengths(RECIPE, tokenizer, {"dev": dev, "test": None})  # sinusoidal positions

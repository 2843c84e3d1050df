import dataclasses

import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training import model_folder
from vanilla_transformer.training.model_folder import build_model
from vanilla_transformer.training.recipe import DataConfig, ModelConfig, Recipe

FIELDS = {"d_model": 8, "d_ff": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
RECIPE = Recipe(DataConfig("reverse", "en", "de"), model=ModelConfig(preset=None, fields=FIELDS))


@pytest.fixture
def tokenizer():
    """A tokenizer of somebody else's, whose special tokens have numbers of their own."""
    words = {"a": 0, "b": 1, "[END]": 2, "[PAD]": 3, "[START]": 4, "[UNK]": 5}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.post_processor = processors.TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 2)])
    names = {"bos_token": "[START]", "pad_token": "[PAD]", "eos_token": "[END]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def test_the_models_special_tokens_are_the_tokenizers(tokenizer):
    model = build_model(RECIPE, tokenizer)
    for config in (model.config, model.generation_config):
        found = [getattr(config, f"{kind}_token_id") for kind in ("bos", "decoder_start", "pad", "eos")]
        assert found == [4, 4, 3, 2]
    assert model.config.vocab_size == 6
    padded = model(input_ids=torch.tensor([[0, 1, 2, 3, 3]]), labels=torch.tensor([[1, 0, 2]])).logits
    alone = model(input_ids=torch.tensor([[0, 1, 2]]), labels=torch.tensor([[1, 0, 2]])).logits
    torch.testing.assert_close(padded, alone)  # pads are found by their number


def test_a_model_that_the_memory_does_not_hold(tokenizer, monkeypatch):
    def full(config):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(model_folder.AutoModelForSeq2SeqLM, "from_config", full)
    with pytest.raises(UserError, match="memory does not hold a model of the recipe's sizes; make model.d_model"):
        build_model(dataclasses.replace(RECIPE), tokenizer)

"""Tokens added to a tokenizer, and to the model: what stays, what is shared, what is saved, what can be learned."""

import copy
import json

import pytest
import torch
from small_models import EOS, PAD, random_tokens, small_model, taught
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import vanilla_transformer as vt

SHARINGS = ["all", "decoder", "none"]


def shared(model) -> tuple[bool, bool]:
    """Whether source is target, and the softmax target, in storage."""
    source, target = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    return source.data_ptr() == target.data_ptr(), model.lm_head.weight.data_ptr() == target.data_ptr()


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("output_bias", [False, True], ids=["", "bias"])
def test_generation_and_special_tokens_are_as_they_were_after_saving_too(tmp_path, sharing, output_bias):
    model = taught(small_model(seed=1, noise=0.0, embedding_sharing=sharing, output_bias=output_bias))
    source = torch.cat([random_tokens(4, 5), torch.full((4, 1), EOS)], 1)
    source[1, 3:] = torch.tensor([EOS, PAD, PAD])
    before = model.generate(source, num_beams=1)
    special = {f"{kind}_token_id": getattr(model.config, f"{kind}_token_id") for kind in ("bos", "pad", "eos")}
    sharing_before = shared(model)

    model.resize_token_embeddings(40)
    assert torch.equal(model.generate(source, num_beams=1), before)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(source, num_beams=1), before)
    for one in (model, loaded):
        assert shared(one) == sharing_before
        assert one.config.vocab_size == 40 and one.config.embedding_sharing == sharing
        for name, number in special.items():
            assert getattr(one.config, name) == getattr(one.generation_config, name) == number
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 40
    # Beam search knows the new size as well: its candidates are counted in vocabularies.
    assert torch.equal(loaded.generate(source, num_beams=3), model.generate(source, num_beams=3))


def test_growing_twice_is_growing_once():
    """Old rows stay to the bit; only what is new differs."""
    model = small_model(output_bias=True)
    once, twice = copy.deepcopy(model), copy.deepcopy(model)
    once.resize_token_embeddings(31)
    twice.resize_token_embeddings(27)
    twice.resize_token_embeddings(31)
    assert once.num_parameters() == twice.num_parameters() == model.num_parameters() + 8 * 16 + 8
    for grown in (once, twice):
        assert torch.equal(grown.lm_head.weight[:23], model.lm_head.weight)
        assert torch.equal(grown.lm_head.bias[:23], model.lm_head.bias)
        assert shared(grown) == (True, True)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_the_bare_model_grows_on_both_sides(sharing, tmp_path):
    model = vt.VanillaTransformerModel(small_model(embedding_sharing=sharing).config)
    model.resize_token_embeddings(29)
    assert model.config.vocab_size == 29
    assert model.encoder.embed_tokens.weight.shape == model.decoder.embed_tokens.weight.shape == (29, 16)
    same = model.encoder.embed_tokens.weight.data_ptr() == model.decoder.embed_tokens.weight.data_ptr()
    assert same == (sharing == "all")
    model.save_pretrained(tmp_path)
    assert vt.VanillaTransformerModel.from_pretrained(tmp_path).decoder.embed_tokens.num_embeddings == 29


def test_a_vocabulary_without_the_special_tokens_is_refused():
    model = small_model()
    with pytest.raises(ValueError, match="resize_token_embeddings.2.: .*special tokens.* at least 3"):
        model.resize_token_embeddings(2)
    assert model.config.vocab_size == model.lm_head.out_features == 23


def test_an_added_token_is_learned_saved_and_generated(memorised, tmp_path):
    """A word that the vocabulary spells in pieces becomes one token, on both sides, and is translated."""
    model, tokenizer = copy.deepcopy(memorised.model), copy.deepcopy(memorised.tokenizer)
    known, pad = len(tokenizer), tokenizer.pad_token_id
    assert len(tokenizer("Zigbee")["input_ids"]) > 2
    assert tokenizer.add_tokens(["Zigbee"]) == 1
    model.resize_token_embeddings(len(tokenizer))
    assert len(tokenizer) == model.config.vocab_size == known + 1
    assert tokenizer.convert_tokens_to_ids("Zigbee") == known
    assert tokenizer.pad_token_id == model.config.pad_token_id == pad

    pairs = memorised.pairs | {"Zigbee": "Zigbee"}
    batch = tokenizer(list(pairs), text_target=list(pairs.values()), padding=True, return_tensors="pt")
    assert (batch["input_ids"][-1] == known).sum() == (batch["labels"][-1] == known).sum() == 1
    batch["labels"][batch["labels"] == pad] = -100
    optimizer = torch.optim.Adam(model.train().parameters(), lr=5e-3, betas=(0.9, 0.98))
    for _ in range(60):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    model.eval().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, loaded_tokenizer = (kind.from_pretrained(tmp_path) for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    for one, its_tokenizer in ((model, tokenizer), (loaded, loaded_tokenizer)):
        output = one.generate(**its_tokenizer(list(pairs), padding=True, return_tensors="pt"))
        texts = its_tokenizer.batch_decode(output, skip_special_tokens=True)
        assert texts == list(pairs.values())
        assert known in output[-1]

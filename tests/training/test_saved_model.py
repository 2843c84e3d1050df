"""Loading what the table of bad inputs (tests/package) does not reach by the command line."""

import json

import pytest
import torch
from toy_training import VOCABULARY, toy_model

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training import saved_model
from vanilla_transformer.training.recipe import TokenizerConfig
from vanilla_transformer.training.saved_model import MOST_UNUSED_TOKENS, load_model, tokenizer_problems, weight_problems
from vanilla_transformer.training.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    words = " ".join(str(number) for number in range(VOCABULARY - 4))
    return train_tokenizer([words], TokenizerConfig(vocab_size=VOCABULARY, type="words"))


@pytest.fixture
def folder(tmp_path, tokenizer):
    toy_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_saved_model_comes_back_in_evaluation_mode(folder):
    model, tokenizer = load_model(folder, device="cpu")
    assert not model.training and model.dtype == torch.float32
    for loaded, saved in zip(model.parameters(), toy_model().parameters(), strict=True):
        assert torch.equal(loaded, saved)
    assert tokenizer("3 </s>")["input_ids"][-1] == model.config.eos_token_id
    assert load_model(folder, precision="bfloat16")[0].dtype == torch.bfloat16


def test_int8_quantises_every_linear_layer_and_the_text_is_nearly_the_same(folder, recwarn):
    exact, tokenizer = load_model(folder, device="cpu")
    model, _ = load_model(folder, precision="int8")
    assert not [module for module in model.modules() if type(module) is torch.nn.Linear]
    assert not recwarn.list
    ids = torch.tensor([[5, 6, 7, 2]])
    with torch.no_grad():
        wanted, found = (each(ids, decoder_input_ids=ids).logits for each in (exact, model))
    assert not torch.equal(found, wanted)
    assert (found - wanted).abs().mean() < 0.05 * wanted.std()
    # Search by search: the steps of decoding call the quantised layers.
    steps = model.generate(ids, num_beams=2, max_new_tokens=5, min_new_tokens=5)
    whole = model.generate(ids, num_beams=2, max_new_tokens=5, min_new_tokens=5, return_dict_in_generate=True)
    assert torch.equal(steps, whole.sequences)


def test_int8_is_for_the_cpu(folder):
    with pytest.raises(UsageError, match="device = cuda: int8 is for the CPU"):
        load_model(folder, device="cuda", precision="int8")


def test_a_padded_vocabulary_is_the_models_own(tokenizer):
    for padding, problems in ((0, 0), (MOST_UNUSED_TOKENS - 1, 0), (MOST_UNUSED_TOKENS, 1), (-1, 1)):
        model = toy_model(vocab_size=VOCABULARY + padding)
        assert len(tokenizer_problems(tokenizer, model)) == problems


def test_a_model_that_cannot_begin_or_pad_is_refused(tokenizer):
    model = toy_model()
    model.generation_config.decoder_start_token_id = model.generation_config.pad_token_id = None
    assert [line.split(":")[1] for line in tokenizer_problems(tokenizer, model)] == [
        " has no pad_token_id, which translating needs",
        " has no decoder_start_token_id, which translating needs",
    ]


def test_at_most_five_weights_are_named():
    report = {"missing_keys": {f"w{n}" for n in range(9)}, "unexpected_keys": set(), "mismatched_keys": set()}
    assert weight_problems(toy_model(), report) == [f"weight w{n}: missing in the file" for n in range(5)] + [
        "and 4 weights more"
    ]


def test_an_adapter_is_sent_to_the_model_it_was_merged_into(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="holds an adapter alone; give the RUN/final beside it"):
        load_model(tmp_path)


def test_a_model_that_the_memory_does_not_hold(folder, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(saved_model.AutoModelForSeq2SeqLM, "from_pretrained", full)
    with pytest.raises(UserError, match="does not fit into the memory; try --precision bfloat16"):
        load_model(folder)


def test_every_problem_of_a_model_is_told_at_once(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"d_ff": 48, "eos_token_id": 3}))
    with pytest.raises(UserError) as caught:
        load_model(folder)
    head, *lines = str(caught.value).splitlines()
    assert head == f"model {folder}: {len(lines)} problems"
    assert any("(32,) in the file, (48,) in the model" in line for line in lines)
    assert lines[-1] == "  tokenizer: its eos token has number 2, the model's 3"

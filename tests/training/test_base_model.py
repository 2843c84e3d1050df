"""Which folders a fine-tuning starts from, and which it refuses, by name and before anything else."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import AutoTokenizer, MarianConfig, T5Config

import vanilla_transformer as vt
from vanilla_transformer.configuration.config_common import ConfigError
from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.base_model import load_base, read_config


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of a trained model folder, to be spoiled."""
    return shutil.copytree(trained.run / "final", tmp_path / "model")


def load(folder):
    return load_base(str(folder))


def edit(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_model_of_ours_comes_whole_and_by_our_own_classes(folder):
    model, tokenizer = load(folder)
    assert type(model) is vt.VanillaTransformerForConditionalGeneration
    weights = load_file(folder / "model.safetensors")
    assert all(model.state_dict()[name].equal(weight) for name, weight in weights.items())
    assert tokenizer.pad_token_id == model.config.pad_token_id


def test_code_in_the_folder_is_never_run(folder, tmp_path, monkeypatch):
    mark = tmp_path / "ran"
    for path in folder.glob("*.py"):
        path.write_text(f"open({str(mark)!r}, 'w')\n")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["presets.Evil", None]})
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked the user"))
    load(folder)
    assert not mark.exists()


def test_an_unknown_model_with_code_of_its_own_is_refused(folder):
    edit(folder / "config.json", model_type="something_else")
    with pytest.raises(UserError, match="is a something_else model; finetune takes models of this package"):
        read_config(str(folder))


def test_a_marian_folder_is_to_be_converted(tmp_path):
    MarianConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="is a Marian model .*Convert it first .vanilla-transformer convert"):
        read_config(str(tmp_path))


def test_another_model_of_transformers_is_refused(tmp_path):
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="is a t5 model; finetune takes models of this package"):
        read_config(str(tmp_path))


def test_a_run_is_not_its_model(trained):
    with pytest.raises(UserError, match="no config.json; did you mean .*final"):
        read_config(str(trained.run))


def test_a_name_that_is_no_folder_is_looked_for_on_the_hub():
    with pytest.raises(UserError, match="Hub model no/such: .* No local folder is called no/such either"):
        read_config("no/such")


def test_a_config_out_of_range_says_what_is_wrong(folder):
    edit(folder / "config.json", num_heads=5, d_k=None, d_v=None, dropout=2)
    with pytest.raises(ConfigError, match="2 problems"):
        read_config(str(folder))


def test_what_is_not_whole_is_refused(folder):
    """As everywhere where a model is loaded: see test_saved_model.py."""
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.encoder.layers.0.feed_forward.fc1.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="model.encoder.layers.0.feed_forward.fc1.weight: missing"):
        load(folder)


def test_a_tokenizer_that_makes_no_labels_is_refused(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match="tokenizer: does not append the end token; add a TemplateProcessing"):
        load(folder)

import importlib.util

import pytest
from toy_training import toy_model

from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.training.lora import merged, require_peft, save_adapter, with_adapter


def test_without_peft_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'vanilla-transformer\[peft\]'"):
        require_peft()


def test_the_adapter_alone_learns_and_begins_at_nothing(tmp_path):
    model = toy_model(dropout=0.0)
    adapted = with_adapter(model, rank=3)
    learning = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    # One layer a side: 4 + 2 and 8 + 2 matrices, two factors each; r (in + out) numbers for each matrix of in x out.
    assert len(learning) == 2 * 16
    assert sum(p.numel() for p in learning.values()) == 3 * (12 * (16 + 16) + 4 * (16 + 32))
    assert all(p.eq(0).all() for name, p in learning.items() if "lora_B" in name)


@pytest.mark.parametrize("sharing", ["all", "decoder", "none"])
def test_merging_leaves_a_plain_model_that_is_tied_as_before(sharing, recwarn):
    model = toy_model(dropout=0.0, embedding_sharing=sharing)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    plain = merged(with_adapter(model, rank=3))
    assert not [warning for warning in recwarn if "tied" in str(warning.message)]
    after = dict(plain.named_parameters())
    assert after.keys() == before.keys()
    assert all(parameter.equal(before[name]) for name, parameter in after.items())  # an adapter begins at nothing
    assert plain.config.tie_word_embeddings == (sharing != "none")


def test_a_saved_adapter_replaces_an_earlier_one(tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "old").touch()
    save_adapter(with_adapter(toy_model(), rank=2), folder)
    assert not (folder / "old").exists()
    assert (folder / "adapter_model.safetensors").exists() and (folder / "adapter_config.json").exists()

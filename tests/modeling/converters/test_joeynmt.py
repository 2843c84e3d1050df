"""What a JoeyNMT folder says, what it must hold, and what of it is refused.

That the numbers are JoeyNMT's is in test_against_joeynmt.py, with a checkpoint that JoeyNMT trained.
"""

import copy
import pickle
from pathlib import Path

import pytest
import torch
import yaml

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.modeling.converters import joeynmt

SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]
SIDE = {
    "type": "transformer",
    "num_layers": 1,
    "num_heads": 2,
    "embeddings": {"embedding_dim": 8, "scale": True},
    "hidden_size": 8,
    "ff_size": 12,
    "dropout": 0.3,
    "layer_norm": "pre",
}
SETTINGS = {
    "model": {"tied_embeddings": False, "tied_softmax": True, "encoder": SIDE, "decoder": SIDE},
    "data": {"src": {"lang": "en", "level": "word", "lowercase": True}, "trg": {"lang": "de", "level": "word"}},
    "training": {"label_smoothing": 0.1},
    "testing": {"beam_size": 5, "beam_alpha": 1.5, "max_output_length": -1},
}


def linear(rows: int, columns: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(rows, columns), "bias": torch.randn(rows)}


def weights(source: int, target: int) -> dict[str, torch.Tensor]:
    """Random ones under JoeyNMT 2.3's names, of a pre-norm model of SIDE's sizes."""
    torch.manual_seed(0)
    attentions = {"encoder": ["src_src_att"], "decoder": ["trg_trg_att", "src_trg_att"]}
    norms = {"encoder": ["layer_norm"], "decoder": ["x_layer_norm", "dec_layer_norm"]}
    parts = {}
    for side in ("encoder", "decoder"):
        layer = f"{side}.layers.0"
        for attention in attentions[side]:
            for name in ("k_layer", "v_layer", "q_layer", "output_layer"):
                parts[f"{layer}.{attention}.{name}"] = linear(8, 8)
        for norm in (*norms[side], "feed_forward.layer_norm"):
            parts[f"{layer}.{norm}"] = {"weight": torch.randn(8), "bias": torch.randn(8)}
        parts[f"{layer}.feed_forward.pwff_layer.0"] = linear(12, 8)
        parts[f"{layer}.feed_forward.pwff_layer.3"] = linear(8, 12)
        parts[f"{side}.layer_norm"] = {"weight": torch.randn(8), "bias": torch.randn(8)}
    state = {f"{name}.{kind}": value for name, part in parts.items() for kind, value in part.items()}
    embedding = torch.randn(target, 8)
    return state | {
        "src_embed.lut.weight": torch.randn(source, 8),
        "trg_embed.lut.weight": embedding,
        "decoder.output_layer.weight": embedding,
        "encoder.pe.pe": torch.zeros(1, 10, 8),
        "decoder.pe.pe": torch.zeros(1, 10, 8),
    }


@pytest.fixture
def settings():
    return copy.deepcopy(SETTINGS)


@pytest.fixture
def folder(tmp_path, settings) -> Path:
    """A JoeyNMT folder whose source and target have vocabularies of their own."""
    words = {"src": [*SPECIAL, "cat", "dog", "hand"], "trg": [*SPECIAL, "hand", "katze"]}
    for side, tokens in words.items():
        (tmp_path / f"{side}_vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    torch.save({"model_state": weights(7, 6), "steps": 3}, tmp_path / "3.ckpt")
    return describe(tmp_path, settings)


def describe(folder: Path, settings: dict) -> Path:
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return folder


def test_settings_vocabulary_and_search(folder):
    converted = joeynmt.read(folder)
    config, generation = converted.model.config, converted.model.generation_config
    assert (config.norm_position, config.attention_bias, config.embedding_sharing) == ("pre", True, "decoder")
    assert (config.dropout, config.attention_dropout, config.relu_dropout) == (0.3, 0.3, 0.3)
    assert (config.label_smoothing, config.label_smoothing_over) == (0.1, "others")
    assert (config.source_lang, config.target_lang) == ("en", "de")
    assert (generation.num_beams, generation.length_penalty, generation.length_penalty_type) == (5, 1.5, "gnmt")
    assert converted.tokenizer("Cat katze mouse").input_ids == [4, 7, 0, 3]
    assert converted.notes == [
        "Vocabulary: source (7 tokens) and target (6) are one of 8 here; the model never writes a token that only the "
        "source has."
    ]


def test_tokens_that_only_the_source_has_are_never_written(folder):
    model = joeynmt.read(folder).model
    logits = model(input_ids=torch.tensor([[4, 5, 3]]), decoder_input_ids=torch.tensor([[2, 7, 6]])).logits
    probabilities = logits.softmax(-1)
    assert probabilities[..., [4, 5]].max() < 1e-30  # cat, dog
    assert probabilities[..., [6, 7]].min() > 1e-6  # hand, katze


def test_each_weight_is_taken_from_its_place(folder):
    state, theirs = joeynmt.read(folder).model.state_dict(), weights(7, 6)
    for ours, wanted in {
        "model.decoder.layers.0.cross_attention.k_proj.weight": "decoder.layers.0.src_trg_att.k_layer.weight",
        "model.decoder.layers.0.self_attention_residual.norm.bias": "decoder.layers.0.x_layer_norm.bias",
        "model.decoder.layers.0.cross_attention_residual.norm.bias": "decoder.layers.0.dec_layer_norm.bias",
        "model.encoder.layers.0.self_attention.out_proj.bias": "encoder.layers.0.src_src_att.output_layer.bias",
        "model.encoder.layers.0.feed_forward.fc2.weight": "encoder.layers.0.feed_forward.pwff_layer.3.weight",
        "model.encoder.norm.weight": "encoder.layer_norm.weight",
    }.items():
        assert torch.equal(state[ours], theirs[wanted]), ours


def test_everything_that_cannot_be_expressed_is_said_at_once(folder, settings):
    encoder = settings["model"]["encoder"] | {"activation": "tanh", "alpha": 0.8, "ff_size": 16}
    encoder["embeddings"] = {"embedding_dim": 8}
    settings["model"] |= {"encoder": encoder, "decoder": {**SIDE, "type": "recurrent"}}
    settings["data"]["src"] |= {"level": "bpe", "normalize": True, "tokenizer_cfg": {"pretokenizer": "moses"}}
    describe(folder, settings)
    with pytest.raises(UserError) as refused:
        joeynmt.read(folder)
    assert [line.split(":")[0].strip() for line in str(refused.value).split("\n")[1:]] == [
        "model.encoder.embeddings.scale = False",
        "model.encoder.activation = tanh",
        "model.encoder.alpha = 0.8",
        "model.decoder.type = recurrent",
        "model.encoder.ff_size = 16 and model.decoder.ff_size = 12",
        "model.encoder.activation = tanh and model.decoder.activation = relu",
        "data.src.level = bpe",
        "data.src.normalize = True",
        "data.src.tokenizer_cfg.pretokenizer = moses",
    ]


def test_layer_norms_that_the_weights_contradict(folder, settings):
    for side in ("encoder", "decoder"):
        settings["model"][side] = SIDE | {"layer_norm": "post"}
    describe(folder, settings)
    with pytest.raises(UserError, match="layer_norm = post: the checkpoint's weights are of another model"):
        joeynmt.read(folder)


def test_layer_norms_that_nobody_places(folder, settings):
    """JoeyNMT 2.3 without the setting: an encoder of pre-norm layers, but without the last norm."""
    for side in ("encoder", "decoder"):
        settings["model"][side] = {name: value for name, value in SIDE.items() if name != "layer_norm"}
    describe(folder, settings)
    assert joeynmt.read(folder).model.config.norm_position == "pre"  # as in version 1, whose last norms are there
    state = {name: value for name, value in weights(7, 6).items() if not name.startswith("encoder.layer_norm")}
    torch.save({"model_state": state}, folder / "3.ckpt")
    with pytest.raises(UserError, match="model.encoder.layer_norm: not said; say pre or post"):
        joeynmt.read(folder)


class Intruder:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_a_checkpoint_is_not_run(folder, tmp_path):
    mark = tmp_path / "was-run"
    torch.save({"model_state": weights(7, 6), "extra": Intruder(mark)}, folder / "3.ckpt")
    assert pickle.loads(pickle.dumps(Intruder(mark))) is None and mark.exists()  # plain unpickling would
    mark.unlink()
    with pytest.raises(UserError, match="cannot be read as a checkpoint of JoeyNMT"):
        joeynmt.read(folder)
    assert not mark.exists()


def test_a_checkpoint_of_another_size_or_a_foreign_folder(folder, settings):
    settings["model"]["encoder"] |= {"num_layers": 2}
    describe(folder, settings)
    with pytest.raises(UserError, match="not of the model that config.yaml describes"):
        joeynmt.read(folder)
    (folder / "config.yaml").write_text("model: 3", encoding="utf-8")
    with pytest.raises(UserError, match="is not a configuration of JoeyNMT"):
        joeynmt.read(folder)


def test_files_that_are_missing_or_too_many(folder):
    (folder / "4.ckpt").write_bytes(b"")
    with pytest.raises(UsageError, match=r"exactly one \*.ckpt file is needed \(3.ckpt, 4.ckpt\)"):
        joeynmt.read(folder)
    assert joeynmt.read(folder / "3.ckpt").model.config.vocab_size == 8
    (folder / "4.ckpt").rename(folder / "best.ckpt")
    with pytest.raises(UserError, match="best.ckpt cannot be read"):  # best.ckpt comes first
        joeynmt.read(folder)
    (folder / "trg_vocab.txt").unlink()
    with pytest.raises(UsageError, match="lacks trg_vocab.txt"):
        joeynmt.read(folder / "3.ckpt")

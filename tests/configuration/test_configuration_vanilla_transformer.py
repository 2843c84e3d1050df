"""The config against the paper's Table 3, its error messages, and its way through JSON and the Hub."""

import json

import pytest
import torch

import vanilla_transformer as vt
from vanilla_transformer.configuration.config_common import ConfigError

# Table 3 of arXiv 1706.03762 v7, typed from the paper: N, d_model, d_ff, h, d_k, d_v, P_drop, eps_ls.
TABLE_3 = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 0.1),
    "A-h1": (6, 512, 2048, 1, 512, 512, 0.1, 0.1),
    "A-h4": (6, 512, 2048, 4, 128, 128, 0.1, 0.1),
    "A-h16": (6, 512, 2048, 16, 32, 32, 0.1, 0.1),
    "A-h32": (6, 512, 2048, 32, 16, 16, 0.1, 0.1),
    "B-dk16": (6, 512, 2048, 8, 16, 64, 0.1, 0.1),
    "B-dk32": (6, 512, 2048, 8, 32, 64, 0.1, 0.1),
    "C-n2": (2, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C-n4": (4, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C-n8": (8, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C-d256": (6, 256, 2048, 8, 32, 32, 0.1, 0.1),
    "C-d1024": (6, 1024, 2048, 8, 128, 128, 0.1, 0.1),
    "C-ff1024": (6, 512, 1024, 8, 64, 64, 0.1, 0.1),
    "C-ff4096": (6, 512, 4096, 8, 64, 64, 0.1, 0.1),
    "D-drop0": (6, 512, 2048, 8, 64, 64, 0.0, 0.1),
    "D-drop0.2": (6, 512, 2048, 8, 64, 64, 0.2, 0.1),
    "D-ls0": (6, 512, 2048, 8, 64, 64, 0.1, 0.0),
    "D-ls0.2": (6, 512, 2048, 8, 64, 64, 0.1, 0.2),
    "E-learned": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
}


def parameters_by_hand(N, d, ff, h, d_k, d_v, vocabulary, learned_positions=0):
    """Sizes of the paper's matrices: no attention bias, FFN and LayerNorm with biases, one embedding."""
    attention = 2 * d * h * d_k + 2 * d * h * d_v  # W^Q, W^K; W^V, W^O
    feed_forward = (d * ff + ff) + (ff * d + d)
    norm = 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return vocabulary * d + N * (encoder_layer + decoder_layer) + 2 * learned_positions * d


def count_parameters(config) -> int:
    with torch.device("meta"):
        return vt.VanillaTransformerForConditionalGeneration(config).num_parameters()


def test_presets_are_the_rows_of_table_3_in_the_order_of_the_contract():
    assert vt.presets() == list(TABLE_3)


@pytest.mark.parametrize("name", TABLE_3)
def test_preset_has_the_fields_of_its_row(name):
    config = vt.VanillaTransformerConfig.from_preset(name, vocab_size=37000)
    N, d_model, d_ff, h, d_k, d_v, p_drop, epsilon = TABLE_3[name]
    assert (config.num_encoder_layers, config.num_decoder_layers) == (N, N)
    assert (config.d_model, config.d_ff, config.num_heads) == (d_model, d_ff, h)
    assert (config.d_k, config.d_v) == (d_k, d_v)
    assert (config.dropout, config.label_smoothing) == (p_drop, epsilon)
    assert config.positional_encoding == ("learned" if name == "E-learned" else "sinusoidal")
    # What every row shares: section 5.4 has no other dropout, 3.1 post-norm, 3.3 ReLU, 3.4 one shared matrix.
    assert (config.attention_dropout, config.relu_dropout) == (0, 0)
    assert (config.norm_position, config.activation, config.embedding_sharing) == ("post", "relu", "all")
    assert (config.attention_bias, config.output_bias) == (False, False)
    assert (config.sinusoid_layout, config.label_smoothing_over) == ("interleaved", "vocabulary")


@pytest.mark.parametrize("name", TABLE_3)
def test_preset_has_the_parameters_that_its_matrices_hold(name):
    N, d, ff, h, d_k, d_v, *_ = TABLE_3[name]
    expected = parameters_by_hand(N, d, ff, h, d_k, d_v, 37000, learned_positions=512 if name == "E-learned" else 0)
    assert count_parameters(vt.VanillaTransformerConfig.from_preset(name, vocab_size=37000)) == expected


def test_base_and_big_have_the_published_integers():
    # 18,944,000 embeddings + 18,902,016 encoder + 25,199,616 decoder, worked out apart from this code.
    assert count_parameters(vt.VanillaTransformerConfig()) == 63_045_632
    assert count_parameters(vt.VanillaTransformerConfig.from_preset("big", vocab_size=37000)) == 214_171_648


def test_defaults_are_the_base_model():
    base = vt.VanillaTransformerConfig.from_preset("base", vocab_size=37000)
    assert vt.VanillaTransformerConfig().to_dict() == base.to_dict()


def test_head_sizes_follow_when_a_preset_is_made_smaller():
    config = vt.VanillaTransformerConfig.from_preset("base", d_model=128, num_heads=4)
    assert (config.d_k, config.d_v) == (32, 32)
    assert vt.VanillaTransformerConfig.from_preset("B-dk16", num_heads=4).d_k == 16


def test_every_problem_is_reported_at_once_with_field_value_and_remedy():
    with pytest.raises(ConfigError) as error:
        vt.VanillaTransformerConfig(
            d_model=100,
            num_heads=6,
            dropout=1.5,
            label_smoothing=-0.1,
            positional_encoding="learned",
            activation="rellu",
            norm_position="pree",
            embedding_sharing="encoder",
            output_bias="yes",
            d_ff=0,
            num_encoder_layers=2.0,
            layer_norm_eps=0.0,
            pad_token_id=2,
            eos_token_id=2,
        )
    lines = str(error.value).splitlines()
    assert lines[0] == "VanillaTransformerConfig: 13 problems"
    report = {line.split(" = ")[0].strip(): line for line in lines[1:]}
    assert set(report) == {
        "num_heads",
        "dropout",
        "label_smoothing",
        "max_source_positions",
        "max_target_positions",
        "activation",
        "norm_position",
        "embedding_sharing",
        "output_bias",
        "d_ff",
        "num_encoder_layers",
        "layer_norm_eps",
        "pad_token_id",
    }
    assert len(lines) == 1 + 13
    assert "num_heads = 6: does not divide d_model = 100" in report["num_heads"]
    assert "1, 2, 4, 5" in report["num_heads"] and "set d_k and d_v" in report["num_heads"]
    assert "dropout = 1.5" in report["dropout"]
    assert "did you mean relu?" in report["activation"]
    assert "did you mean pre?" in report["norm_position"]
    assert "all or decoder or none" in report["embedding_sharing"]
    assert "for example 512" in report["max_source_positions"]
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"d_model": 100, "num_heads": 6, "d_k": 16}, "num_heads = 6"),  # d_v still has to be derived
        ({"d_model": 33, "num_heads": 3}, "d_model = 33"),
        ({"max_source_positions": 512}, "max_source_positions = 512"),
        ({"num_heads": True}, "num_heads = True"),
        ({"num_heads": "8"}, "num_heads = '8'"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"dropout": float("nan")}, "dropout = nan"),
        ({"label_smoothing": None}, "label_smoothing = None"),
        ({"vocab_size": 2}, "eos_token_id = 2"),
        ({"pad_token_id": None}, "pad_token_id = None"),
        ({"hidden_size": 100, "num_attention_heads": 6}, "num_heads = 6"),
    ],
)
def test_problem_names_field_and_value(fields, named):
    with pytest.raises(ConfigError, match="1 problem\n") as error:
        vt.VanillaTransformerConfig(**fields)
    assert f"\n  {named}: " in str(error.value)


def test_odd_sizes_are_allowed_where_they_mean_something():
    config = vt.VanillaTransformerConfig(d_model=100, num_heads=6, d_k=16, d_v=24)
    assert (config.d_k, config.d_v) == (16, 24)
    learned = {"positional_encoding": "learned", "max_source_positions": 8, "max_target_positions": 8}
    assert vt.VanillaTransformerConfig(d_model=33, num_heads=3, **learned).d_k == 11
    assert vt.VanillaTransformerConfig(bos_token_id=None).bos_token_id is None


def test_unknown_preset_names_the_nearest_and_lists_all():
    with pytest.raises(ConfigError, match="did you mean A-h16") as error:
        vt.VanillaTransformerConfig.from_preset("A-h-16")
    assert all(name in str(error.value) for name in TABLE_3)


def test_hugging_face_names_read_and_write_the_papers():
    config = vt.VanillaTransformerConfig(
        d_model=64, d_ff=96, num_heads=4, num_encoder_layers=2, num_decoder_layers=3, activation="gelu"
    )
    assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (64, 96, 4)
    assert (config.num_hidden_layers, config.encoder_layers, config.decoder_layers) == (2, 2, 3)
    assert (config.encoder_attention_heads, config.decoder_attention_heads, config.head_dim) == (4, 4, 16)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim, config.hidden_act) == (96, 96, "gelu")
    assert config.get_text_config(decoder=True).num_hidden_layers == 3

    by_alias = vt.VanillaTransformerConfig(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        encoder_layers=2,
        decoder_layers=3,
        hidden_act="gelu",
    )
    assert by_alias.to_dict() == config.to_dict()


def test_json_round_trip_keeps_every_field(tmp_path):
    config = vt.VanillaTransformerConfig(
        vocab_size=99,
        d_model=20,
        d_ff=12,
        num_encoder_layers=1,
        num_decoder_layers=3,
        num_heads=3,
        d_k=5,
        d_v=7,
        dropout=0.25,
        attention_dropout=0.125,
        relu_dropout=0.5,
        label_smoothing=0.0,
        label_smoothing_over="others",
        norm_position="pre",
        positional_encoding="learned",
        max_source_positions=11,
        max_target_positions=12,
        attention_bias=True,
        activation="swish",
        output_bias=True,
        embedding_sharing="decoder",
        layer_norm_eps=1e-5,
        bos_token_id=None,
        pad_token_id=98,
        eos_token_id=4,
        decoder_start_token_id=98,
        source_lang="en",
        target_lang="zh",
    )
    config.save_pretrained(tmp_path / "a")
    again = vt.VanillaTransformerConfig.from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    first, second = ((tmp_path / name / "config.json").read_bytes() for name in "ab")
    assert first == second
    # Nothing went missing on the way out: the file holds what was asked for.
    assert json.loads(first).items() >= {"d_v": 7, "relu_dropout": 0.5, "embedding_sharing": "decoder"}.items()
    assert (again.d_k, again.bos_token_id, again.target_lang, again.layer_norm_eps) == (5, None, "zh", 1e-5)


def test_overrides_on_loading_are_checked_like_fields(tmp_path):
    vt.VanillaTransformerConfig().save_pretrained(tmp_path)
    assert vt.VanillaTransformerConfig.from_pretrained(tmp_path, dropout=0.3).dropout == 0.3
    with pytest.raises(ConfigError, match="dropout = 1.5"):
        vt.VanillaTransformerConfig.from_pretrained(tmp_path, dropout=1.5)


def test_prefixes_of_a_hub_repo_are_gone_after_saving_again(tmp_path):
    vt.VanillaTransformerConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    plain = json.loads(path.read_text())
    # As transformers rewrites them when it loads a Hub repo with trust_remote_code.
    prefixed = json.loads(path.read_text())
    prefixed["auto_map"] = {name: f"user/repo--{code}" for name, code in plain["auto_map"].items()}
    task = prefixed["custom_pipelines"]["translation"]
    task["impl"] = f"user/repo--{task['impl']}"
    path.write_text(json.dumps(prefixed))

    vt.VanillaTransformerConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert json.loads(path.read_text()) == plain
    assert set(plain["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    assert not any("--" in code for code in plain["auto_map"].values())
    assert plain["custom_pipelines"]["translation"]["impl"] == "pipeline_vanilla_transformer.TranslationPipeline"


def test_unknown_keys_stay_attributes_through_a_save(tmp_path):
    vt.VanillaTransformerConfig(trained_on="multi30k").save_pretrained(tmp_path)
    assert vt.VanillaTransformerConfig.from_pretrained(tmp_path).trained_on == "multi30k"

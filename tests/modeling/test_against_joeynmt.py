"""The model with a trained JoeyNMT 2.3.0 checkpoint's weights against what JoeyNMT itself decoded with them."""

import gzip
import io

import pytest
import torch

import vanilla_transformer as vt

# JoeyNMT's tokens by number, as the checkpoint's configuration sets them.
UNK, PAD, BOS, EOS = range(4)
ATTENTION = {"q_proj": "q_layer", "k_proj": "k_layer", "v_proj": "v_layer", "out_proj": "output_layer"}
FEED_FORWARD = {
    "feed_forward.fc1": "feed_forward.pwff_layer.0",
    "feed_forward.fc2": "feed_forward.pwff_layer.3",
    "feed_forward_residual.norm": "feed_forward.layer_norm",
}
# Our name of a layer's part -> JoeyNMT's.
ENCODER_LAYER = FEED_FORWARD | {
    "self_attention_residual.norm": "layer_norm",
    **{f"self_attention.{ours}": f"src_src_att.{theirs}" for ours, theirs in ATTENTION.items()},
}
DECODER_LAYER = FEED_FORWARD | {
    "self_attention_residual.norm": "x_layer_norm",
    "cross_attention_residual.norm": "dec_layer_norm",
    **{f"self_attention.{ours}": f"trg_trg_att.{theirs}" for ours, theirs in ATTENTION.items()},
    **{f"cross_attention.{ours}": f"src_trg_att.{theirs}" for ours, theirs in ATTENTION.items()},
}


@pytest.fixture(scope="module")
def folder(shared_data):
    return shared_data("pretrained/joeynmt_reverse")


@pytest.fixture(scope="module")
def joeynmt_weights(folder):
    checkpoint = gzip.decompress((folder / "300.ckpt.gz").read_bytes())
    return torch.load(io.BytesIO(checkpoint), weights_only=True)["model_state"]


@pytest.fixture(scope="module")
def model(joeynmt_weights):
    config = vt.VanillaTransformerConfig(  # config.yaml of the checkpoint; biases and epsilon are JoeyNMT's code's
        vocab_size=24,
        d_model=64,
        d_ff=256,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        attention_bias=True,
        layer_norm_eps=1e-6,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    names = {
        "model.encoder.embed_tokens.weight": "src_embed.lut.weight",
        "model.decoder.embed_tokens.weight": "trg_embed.lut.weight",
        "lm_head.weight": "decoder.output_layer.weight",
    }
    for side, layer in (("encoder", ENCODER_LAYER), ("decoder", DECODER_LAYER)):
        for number in range(2):
            for ours, theirs in layer.items():
                for kind in ("weight", "bias"):
                    names[f"model.{side}.layers.{number}.{ours}.{kind}"] = f"{side}.layers.{number}.{theirs}.{kind}"
    # JoeyNMT also saves its sinusoids; ours are computed.
    assert set(names.values()) == set(joeynmt_weights) - {"encoder.pe.pe", "decoder.pe.pe"}
    model = vt.VanillaTransformerForConditionalGeneration(config).eval()
    model.load_state_dict({ours: joeynmt_weights[theirs] for ours, theirs in names.items()})
    return model


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_sinusoids_equal_the_ones_in_the_checkpoint(model, joeynmt_weights):
    for side in ("encoder", "decoder"):
        positions = getattr(model.model, side).positions(torch.arange(200)).float()
        # JoeyNMT's angles are float32: near position 200 they are off by 1e-5.
        torch.testing.assert_close(positions, joeynmt_weights[f"{side}.pe.pe"][0, :200], atol=5e-5, rtol=0)


@pytest.mark.parametrize("batch_size", [1, 20])
def test_greedy_outputs_are_joeynmt_s(model, folder, batch_size):
    words = lines(folder / "src_vocab.txt")
    number = {word: index for index, word in enumerate(words)}
    sources = [[number[word] for word in line.split(" ")] + [EOS] for line in lines(folder / "dev.src")]
    expected = lines(folder / "300.greedy.hyps")
    assert len(sources) == len(expected) == 20
    hypotheses = []
    for start in range(0, len(sources), batch_size):
        batch = sources[start : start + batch_size]
        longest = max(map(len, batch))
        input_ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in batch])
        # At most 30 tokens, as in config.yaml, and at least one, as in JoeyNMT's search.
        outputs = model.generate(
            input_ids=input_ids,
            attention_mask=input_ids.ne(PAD).long(),
            num_beams=1,
            max_new_tokens=30,
            min_new_tokens=1,
        )
        for row in outputs[:, 1:].tolist():
            row = row[: row.index(EOS)] if EOS in row else row
            hypotheses.append(" ".join(words[token] for token in row))
    assert hypotheses == expected

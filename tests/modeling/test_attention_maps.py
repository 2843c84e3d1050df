"""What the maps hold: rows that sum to one, nothing of the future, the model's own weights, readable tokens."""

import math

import pytest
import torch

import vanilla_transformer as vt
from vanilla_transformer.modeling.attention_maps import attention_maps, readable

KINDS = ["encoder self-attention", "decoder self-attention", "cross-attention"]


@pytest.fixture(scope="module")
def attention(memorised):
    return attention_maps(memorised.model, memorised.tokenizer, "The battery is low.")


def test_every_layer_and_head_of_every_kind_is_there(memorised, attention):
    read = memorised.tokenizer("The battery is low.")["input_ids"]
    told = memorised.tokenizer(text_target="电池电量低。")["input_ids"]
    assert attention.target == "电池电量低。"
    assert [one.kind for one in attention.maps] == KINDS
    sizes = [(len(read), len(read)), (len(told), len(told)), (len(told), len(read))]
    for one, size in zip(attention.maps, sizes, strict=True):
        assert torch.tensor(one.weights).shape == (2, 4, *size)
        assert (len(one.queries), len(one.keys)) == size


def test_rows_sum_to_one_and_the_future_has_no_weight(attention):
    for one in attention.maps:
        weights = torch.tensor(one.weights, dtype=torch.float64)
        assert weights.min() >= 0
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-6)
    decoder = torch.tensor(attention.maps[1].weights)
    size = decoder.shape[-1]
    future = torch.ones(size, size, dtype=torch.bool).triu(1)
    assert (decoder[..., future] == 0).all()
    assert (decoder[..., ~future] > 0).all()


@torch.no_grad()
def test_weights_are_softmax_of_the_scaled_products(memorised, attention):
    # Layer 0 of the encoder by hand: embeddings times sqrt(d) plus sinusoids, then queries and keys of each head.
    model, ids = memorised.model, torch.tensor(memorised.tokenizer("The battery is low.")["input_ids"])
    d, heads = 32, 4
    x = model.model.encoder.embed_tokens.weight[ids] * math.sqrt(d)
    for position in range(len(ids)):
        for i in range(0, d, 2):
            angle = position / 10000 ** (i / d)
            x[position, i] += math.sin(angle)
            x[position, i + 1] += math.cos(angle)
    layer = model.model.encoder.layers[0].self_attention
    q, k = x @ layer.q_proj.weight.T, x @ layer.k_proj.weight.T
    for head in range(heads):
        part = slice(head * 8, head * 8 + 8)
        expected = torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(8), -1)
        torch.testing.assert_close(torch.tensor(attention.maps[0].weights[0][head]), expected, rtol=1e-3, atol=1e-5)


def test_a_given_target_is_shown_instead_of_the_model_s_own(memorised):
    attention = attention_maps(memorised.model, memorised.tokenizer, "No.", "未知")
    assert attention.target == "未知"
    assert attention.maps[1].queries[0] == "<s>"
    assert attention.written[-1] == "</s>"
    assert attention.maps[1].queries[1:] == attention.written[:-1]


def test_padding_has_no_weight(memorised):
    batch = memorised.tokenizer(["No.", "The battery is low."], padding=True, return_tensors="pt")
    pads = batch["attention_mask"].eq(0)
    assert pads.any()
    with torch.no_grad():
        out = memorised.model(**batch, decoder_input_ids=torch.zeros(2, 3, dtype=torch.long), output_attentions=True)
    for layer in out.encoder_attentions + out.cross_attentions:
        assert (layer.masked_select(pads[:, None, None, :]) == 0).all()


def test_the_mean_over_heads_is_their_mean(attention):
    one = attention.maps[2]
    by_hand = [[sum(head[q][k] for head in one.weights[1]) / 4 for k in range(len(one.keys))] for q in range(2)]
    assert one.mean_over_heads(1)[:2] == [pytest.approx(row) for row in by_hand]


def test_pieces_are_shown_with_their_space(memorised):
    shown = "".join(readable(memorised.tokenizer, memorised.tokenizer("No. Unknown")["input_ids"]))
    assert shown.startswith("␣No.") and "␣Unknown" in shown and shown.endswith("</s>") and "▁" not in shown


def test_a_recurrent_model_has_a_cross_attention_of_one_head_or_none(memorised):
    fields = {"vocab_size": len(memorised.tokenizer), "d_model": 16}
    model = vt.RecurrentSeq2SeqForConditionalGeneration(vt.RecurrentSeq2SeqConfig(**fields)).eval()
    (one,) = attention_maps(model, memorised.tokenizer, "No.", "否。").maps
    assert one.kind == "cross-attention" and len(one.weights) == len(one.weights[0]) == 1
    config = vt.RecurrentSeq2SeqConfig(attention="none", **fields)
    with pytest.raises(ValueError, match="has no attention"):
        attention_maps(vt.RecurrentSeq2SeqForConditionalGeneration(config).eval(), memorised.tokenizer, "No.", "否。")

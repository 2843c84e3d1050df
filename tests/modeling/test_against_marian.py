"""The model with Marian's switches against transformers' MarianMTModel with the same weights."""

import re

import pytest
import torch
from small_models import small_model, taught
from transformers import MarianConfig, MarianMTModel

V, PAD, EOS = 23, 22, 0
RENAMED = [
    (r"self_attention_residual\.norm", "self_attn_layer_norm"),
    (r"cross_attention_residual\.norm", "encoder_attn_layer_norm"),
    (r"feed_forward_residual\.norm", "final_layer_norm"),
    (r"self_attention\.", "self_attn."),
    (r"cross_attention\.", "encoder_attn."),
    (r"feed_forward\.", ""),
]


@pytest.fixture(scope="module", params=["swish", "relu"])
def pair(request):
    """Ours and Marian's, in float32 and eval mode."""
    torch.manual_seed(0)
    marian_config = MarianConfig(
        vocab_size=V,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        activation_function=request.param,
        scale_embedding=True,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=PAD,  # Marian's decoder starts with the pad token
    )
    marian = MarianMTModel(marian_config).eval()
    ours = small_model(
        seed=3,
        noise=0.1,
        vocab_size=V,
        sinusoid_layout="concatenated",
        attention_bias=True,
        output_bias=True,
        activation=request.param,
        layer_norm_eps=1e-5,  # torch's default, which Marian's layers have
        bos_token_id=None,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
    )
    taught(ours)
    state = {}
    for name, weight in ours.state_dict().items():
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)
        state[name] = weight
    state["final_logits_bias"] = state.pop("lm_head.bias").unsqueeze(0)
    state["model.shared.weight"] = state["model.decoder.embed_tokens.weight"]
    absent, left_over = marian.load_state_dict(state, strict=False)
    assert not left_over and all("embed_positions" in name for name in absent)
    return ours, marian


@pytest.fixture(scope="module")
def source():
    ids = torch.randint(1, PAD, (6, 9), generator=torch.Generator().manual_seed(1))
    for row, length in enumerate((9, 7, 5, 3, 1, 8)):
        ids[row, length - 1] = EOS
        ids[row, length:] = PAD
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long()}


def test_logits_equal(pair, source):
    target = torch.randint(1, PAD, (6, 8), generator=torch.Generator().manual_seed(2))
    target[:, 0] = PAD
    with torch.no_grad():
        ours, theirs = (model(**source, decoder_input_ids=target).logits for model in pair)
    assert theirs.std() > 1
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gradients_equal(pair, source):
    target = torch.randint(1, PAD, (6, 8), generator=torch.Generator().manual_seed(2))
    target[:, 0] = PAD
    weighting = torch.randn(6, 8, V, generator=torch.Generator().manual_seed(3))
    for model in pair:
        model.zero_grad()
        (model(**source, decoder_input_ids=target).logits * weighting).sum().backward()
    ours, marian = pair
    for name, parameter in ours.named_parameters():
        if name == "lm_head.bias":  # a buffer in Marian; d(sum of w * logits) / d bias is the sum of w
            torch.testing.assert_close(parameter.grad, weighting.sum((0, 1)), rtol=1e-4, atol=1e-4)
            continue
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)
        name = name.replace("decoder.embed_tokens", "shared").replace("encoder.embed_tokens", "shared")
        theirs = marian.get_parameter(name).grad
        if name == "model.shared.weight":  # torch's padding_idx: Marian's start token, the pad, does not learn
            parameter.grad[PAD], theirs[PAD] = 0, 0
        torch.testing.assert_close(parameter.grad, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "search",
    [
        {"num_beams": 1},
        {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False},
        {"num_beams": 6, "length_penalty": 0.6, "early_stopping": True, "num_return_sequences": 3},
    ],
    ids=["greedy", "beam", "n-best"],
)
def test_generated_tokens_and_scores_equal(pair, source, search):
    ours, marian = pair
    # Ours never writes a pad; Marian's models are published with bad_words_ids = [[pad]].
    common = search | {"max_new_tokens": 12, "return_dict_in_generate": True, "output_scores": True}
    theirs = marian.generate(**source, bad_words_ids=[[PAD]], **common)
    mine = ours.generate(**source, length_penalty_type="power", **common)
    assert len({tuple(row) for row in theirs.sequences.tolist()}) > 3  # they differ from sentence to sentence
    assert mine.sequences.tolist() == theirs.sequences.tolist()
    if search["num_beams"] > 1:
        torch.testing.assert_close(mine.sequences_scores, theirs.sequences_scores, rtol=1e-4, atol=1e-4)

"""The model against torch.nn.Transformer with the same weights: outputs and gradients, in float64."""

import math

import pytest
import torch
from small_models import PAD, random_tokens, small_model
from torch import nn

D, F, H = 16, 24, 4


def torch_transformer(model, pre: bool) -> nn.Transformer:
    """torch.nn.Transformer with copies of the model's weights."""
    twin = nn.Transformer(
        D, H, 2, 2, F, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=pre, dtype=torch.float64
    )
    if not pre:  # torch adds a LayerNorm after each stack, which post-norm (and the paper) does not have
        twin.encoder.norm = twin.decoder.norm = None
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            weight.copy_(torch.cat([model.get_parameter(source) for source in names_here(name)]))
    return twin


def names_here(name: str) -> list[str]:
    """Our parameters that make up torch's `name`, in its order."""
    parts = name.split(".")
    if len(parts) == 3:  # encoder.norm.weight
        return [f"model.{name}"]
    side, _, n, module, *rest = parts
    layer = f"model.{side}.layers.{n}"
    if module in ("linear1", "linear2"):
        return [f"{layer}.feed_forward.fc{module[-1]}.{rest[-1]}"]
    if module.startswith("norm"):
        order = ["self_attention", "feed_forward"]
        if side == "decoder":
            order.insert(1, "cross_attention")
        return [f"{layer}.{order[int(module[-1]) - 1]}_residual.norm.{rest[-1]}"]
    attention = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}[module]
    if rest[0] == "out_proj":
        return [f"{layer}.{attention}.out_proj.{rest[1]}"]
    kind = rest[0].removeprefix("in_proj_")
    return [f"{layer}.{attention}.{which}_proj.{kind}" for which in "qkv"]


def embedded(matrix: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """sqrt(d_model) times the embedding plus PE(pos, 2i) = sin, PE(pos, 2i + 1) = cos."""
    table = torch.zeros(tokens.shape[1], D, dtype=torch.float64)
    for pos in range(tokens.shape[1]):
        for i in range(D // 2):
            table[pos, 2 * i] = math.sin(pos / 10000 ** (2 * i / D))
            table[pos, 2 * i + 1] = math.cos(pos / 10000 ** (2 * i / D))
    return matrix[tokens] * math.sqrt(D) + table


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch's fast path for inference, not used here
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_outputs_and_gradients_equal(norm_position):
    model = small_model(seed=2, norm_position=norm_position, attention_bias=True).double()
    twin = torch_transformer(model, pre=norm_position == "pre")

    source, target = random_tokens(3, 7, seed=1), random_tokens(3, 5, seed=2)
    source[1, 4:] = PAD
    target[2, 3:] = PAD
    real = target.ne(PAD)
    weighting = torch.randn(3, 5, D, dtype=torch.float64) * real.unsqueeze(-1)

    ours = model.model(input_ids=source, decoder_input_ids=target).last_hidden_state
    matrix = model.model.decoder.embed_tokens.weight.detach()
    theirs = twin(
        embedded(matrix, source),
        embedded(matrix, target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64),
        src_key_padding_mask=source.eq(PAD),
        tgt_key_padding_mask=None,  # pads stand after every real token
        memory_key_padding_mask=source.eq(PAD),
        tgt_is_causal=True,
    )
    torch.testing.assert_close(ours[real], theirs[real], rtol=1e-10, atol=1e-10)

    (ours * weighting).sum().backward()
    (theirs * weighting).sum().backward()
    compared = set()
    for name, weight in twin.named_parameters():
        gradient = torch.cat([model.get_parameter(source).grad for source in names_here(name)])
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-9, atol=1e-10)
        compared.update(names_here(name))
    assert compared == {name for name, _ in model.named_parameters() if "embed_tokens" not in name}

"""The model against the paper's equations, written out again here with plain tensor operations, in float64.

Here every sentence is computed alone, every head apart, positions by Python's math; the model gets one padded batch.
"""

import math

import pytest
import torch
from small_models import EOS, PAD, random_tokens, small_model
from torch import nn

LEARNED = {"positional_encoding": "learned", "max_source_positions": 9, "max_target_positions": 8}
VARIANTS = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "concatenated": {"sinusoid_layout": "concatenated"},
    "learned": LEARNED,
    "learned-odd-width": {"d_model": 15, "num_heads": 3, **LEARNED},
    "biases": {"attention_bias": True, "output_bias": True},
    "d_k-not-d_v": {"d_k": 3, "d_v": 5},
    "one-head": {"num_heads": 1},
    "gelu": {"activation": "gelu"},
    "swish": {"activation": "swish"},
    "shared-decoder": {"embedding_sharing": "decoder", "output_bias": True},
    "shared-none": {"embedding_sharing": "none"},
    "smoothing-others": {"label_smoothing_over": "others"},
    "no-smoothing": {"label_smoothing": 0.0},
    "depths-differ": {"num_encoder_layers": 1, "num_decoder_layers": 3},
    "large-epsilon": {"layer_norm_eps": 1e-2},
    "all-but-the-paper": {
        "norm_position": "pre",
        "sinusoid_layout": "concatenated",
        "attention_bias": True,
        "output_bias": True,
        "activation": "gelu",
        "embedding_sharing": "none",
        "label_smoothing_over": "others",
        "label_smoothing": 0.2,
    },
}


class PaperTransformer:
    """Sections 3.1 to 3.5 and 5.4 for one sentence pair; `w` holds the model's weights by name."""

    def __init__(self, w: dict[str, torch.Tensor], config):
        self.w, self.c = w, config
        target = w["model.decoder.embed_tokens.weight"]
        self.source_embedding = target if config.embedding_sharing == "all" else w["model.encoder.embed_tokens.weight"]
        self.target_embedding = target
        self.softmax_matrix = w["lm_head.weight"] if config.embedding_sharing == "none" else target

    def position(self, pos: int, side: str) -> torch.Tensor:
        d = self.c.d_model
        if self.c.positional_encoding == "learned":
            return self.w[f"model.{side}.positions.table.weight"][pos]
        sines = [math.sin(pos / 10000 ** (2 * i / d)) for i in range(d // 2)]
        cosines = [math.cos(pos / 10000 ** (2 * i / d)) for i in range(d // 2)]
        if self.c.sinusoid_layout == "concatenated":
            return torch.tensor(sines + cosines, dtype=torch.float64)
        return torch.tensor([wave for pair in zip(sines, cosines, strict=True) for wave in pair], dtype=torch.float64)

    def embed(self, matrix: torch.Tensor, tokens: list[int], side: str) -> torch.Tensor:
        d = self.c.d_model
        return torch.stack([matrix[t] * math.sqrt(d) + self.position(pos, side) for pos, t in enumerate(tokens)])

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.sum(1, keepdim=True) / self.c.d_model
        variance = (centred**2).sum(1, keepdim=True) / self.c.d_model
        return centred / (variance + self.c.layer_norm_eps) ** 0.5 * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def project(self, x: torch.Tensor, name: str, start: int, stop: int) -> torch.Tensor:
        y = x @ self.w[f"{name}.weight"][start:stop].T
        return y + self.w[f"{name}.bias"][start:stop] if self.c.attention_bias else y

    def multi_head(self, x: torch.Tensor, memory: torch.Tensor, name: str, causal: bool) -> torch.Tensor:
        c, heads = self.c, []
        for i in range(c.num_heads):
            q = self.project(x, f"{name}.q_proj", i * c.d_k, (i + 1) * c.d_k)
            k = self.project(memory, f"{name}.k_proj", i * c.d_k, (i + 1) * c.d_k)
            v = self.project(memory, f"{name}.v_proj", i * c.d_v, (i + 1) * c.d_v)
            energy = torch.exp(torch.einsum("tk,sk->ts", q, k) / math.sqrt(c.d_k))
            if causal:
                energy = energy * torch.tensor([[float(s <= t) for s in range(len(k))] for t in range(len(q))])
            heads.append(energy / energy.sum(1, keepdim=True) @ v)
        return self.project(torch.cat(heads, 1), f"{name}.out_proj", 0, c.d_model)

    def feed_forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        h = x @ self.w[f"{name}.fc1.weight"].T + self.w[f"{name}.fc1.bias"]
        if self.c.activation == "relu":
            h = h * (h > 0)
        elif self.c.activation == "gelu":
            h = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
        else:
            h = h / (1 + torch.exp(-h))
        return h @ self.w[f"{name}.fc2.weight"].T + self.w[f"{name}.fc2.bias"]

    def around(self, x: torch.Tensor, name: str, sublayer) -> torch.Tensor:
        if self.c.norm_position == "post":
            return self.norm(x + sublayer(x), f"{name}_residual.norm")
        return x + sublayer(self.norm(x, f"{name}_residual.norm"))

    def stack(self, x: torch.Tensor, side: str, depth: int, memory: torch.Tensor | None) -> torch.Tensor:
        for n in range(depth):
            layer = f"model.{side}.layers.{n}"
            x = self.around(
                x,
                f"{layer}.self_attention",
                lambda y, layer=layer: self.multi_head(y, y, f"{layer}.self_attention", causal=memory is not None),
            )
            if memory is not None:
                x = self.around(
                    x,
                    f"{layer}.cross_attention",
                    lambda y, layer=layer: self.multi_head(y, memory, f"{layer}.cross_attention", causal=False),
                )
            x = self.around(
                x,
                f"{layer}.feed_forward",
                lambda y, layer=layer: self.feed_forward(y, f"{layer}.feed_forward"),
            )
        return self.norm(x, f"model.{side}.norm") if self.c.norm_position == "pre" else x

    def logits(self, source: list[int], target_in: list[int]) -> torch.Tensor:
        memory = self.stack(
            self.embed(self.source_embedding, source, "encoder"), "encoder", self.c.num_encoder_layers, None
        )
        x = self.embed(self.target_embedding, target_in, "decoder")
        x = self.stack(x, "decoder", self.c.num_decoder_layers, memory)
        y = x @ self.softmax_matrix.T
        return y + self.w["lm_head.bias"] if self.c.output_bias else y

    def token_losses(self, source: list[int], target: list[int]) -> torch.Tensor:
        """Cross-entropy of the smoothed target distribution at each token of `target`."""
        y = self.logits(source, [self.c.decoder_start_token_id, *target[:-1]])
        V, epsilon = self.c.vocab_size, self.c.label_smoothing
        log_p = y - torch.log(torch.exp(y).sum(1, keepdim=True))
        q = torch.zeros_like(y)
        for t, label in enumerate(target):
            if self.c.label_smoothing_over == "vocabulary":
                q[t] = epsilon / V
                q[t, label] += 1 - epsilon
            else:
                q[t] = epsilon / (V - 1)
                q[t, label] = 1 - epsilon
        return -(q * log_p).sum(1)


SOURCES = [random_tokens(1, n, seed=n)[0].tolist() + [EOS] for n in (8, 5, 1)]
TARGETS = [random_tokens(1, n, seed=10 + n)[0].tolist() + [EOS] for n in (3, 7, 4)]


def padded(rows: list[list[int]], fill: int) -> torch.Tensor:
    length = max(map(len, rows))
    return torch.tensor([row + [fill] * (length - len(row)) for row in rows])


@pytest.fixture(params=VARIANTS)
def pair(request):
    """The model in float64 and the equations with a copy of its weights."""
    model = small_model(seed=5, **VARIANTS[request.param]).double()
    weights = {
        name: parameter.detach().clone().requires_grad_()
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    return model, PaperTransformer(weights, model.config)


def test_logits_are_the_equations(pair):
    model, paper = pair
    target_in = [[0, *row[:-1]] for row in TARGETS]
    with torch.no_grad():
        logits = model(input_ids=padded(SOURCES, PAD), decoder_input_ids=padded(target_in, PAD)).logits
        for b, (source, target) in enumerate(zip(SOURCES, target_in, strict=True)):
            expected = paper.logits(source, target)
            assert expected.std() > 0.5  # not a comparison of zeros
            torch.testing.assert_close(logits[b, : len(target)], expected, rtol=1e-10, atol=1e-10)


def test_loss_and_every_gradient_are_the_equations(pair):
    model, paper = pair
    model.train()  # label smoothing on; all dropout is 0
    outputs = model(input_ids=padded(SOURCES, PAD), labels=padded(TARGETS, -100))
    outputs.loss.backward()
    losses = torch.cat([paper.token_losses(s, t) for s, t in zip(SOURCES, TARGETS, strict=True)])
    expected = losses.sum() / len(losses)
    expected.backward()

    torch.testing.assert_close(outputs.loss, expected, rtol=1e-11, atol=0)
    used = 0
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if paper.w[name].grad is None:  # another name of the matrix that is compared as the decoder's embedding
            assert parameter is model.model.decoder.embed_tokens.weight
            continue
        torch.testing.assert_close(
            parameter.grad, paper.w[name].grad, rtol=1e-9, atol=1e-10, msg=lambda m, n=name: n + m
        )
        used += 1
    assert used == len(list(model.parameters()))  # nothing in the model that the equations do not have


def test_evaluation_loss_has_no_smoothing(pair):
    model, paper = pair
    model.eval()
    loss = model(input_ids=padded(SOURCES, PAD), labels=padded(TARGETS, -100)).loss
    log_p = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        y = paper.logits(source, [0, *target[:-1]])
        log_p += [y[t, label] - torch.log(torch.exp(y[t]).sum()) for t, label in enumerate(target)]
    torch.testing.assert_close(loss, -sum(log_p) / len(log_p), rtol=1e-11, atol=0)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_dropout_stands_where_section_5_4_has_it(norm_position):
    """On the output of each sub-layer and on embedding + position, nowhere else by default."""
    model = small_model(dropout=0.5, num_encoder_layers=2, num_decoder_layers=3, norm_position=norm_position).train()
    widths = []
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p:
            assert module.p == 0.5
            module.register_forward_hook(lambda module, args, output: widths.append(output.shape[-1]))
    model(input_ids=padded(SOURCES, PAD), labels=padded(TARGETS, -100))
    assert widths == [16] * ((1 + 2 * 2) + (1 + 3 * 3))


def test_dropout_precedes_the_residual_sum():
    """With everything dropped, a post-norm layer is LayerNorm(x) and a pre-norm layer is x."""
    for norm_position in ("post", "pre"):
        model = small_model(noise=0.0, norm_position=norm_position)
        layer = model.model.encoder.layers[0].train()
        for residual in (layer.self_attention_residual, layer.feed_forward_residual):
            residual.dropout.p = 1.0
        x = torch.randn(2, 3, 16)
        expected = nn.functional.layer_norm(x, (16,)) if norm_position == "post" else x
        torch.testing.assert_close(layer(x, None), expected, rtol=1e-4, atol=1e-4)

"""torch.nn.Transformer between this model's embedding and softmax, with torch's own smoothed loss and fused Adam."""

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from worker import BETAS, EPSILON, LEARNING_RATE, PAD, Batch, Setup, Side, computing_in, serve

from vanilla_transformer.modeling.modeling_vanilla_transformer import sinusoids

LONGEST = 1024
ATTENTION = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}


class Translator(nn.Module):
    """One matrix for both embeddings and the softmax, sinusoids, and torch.nn.Transformer without its last norms."""

    def __init__(self, setup: Setup):
        super().__init__()
        sizes = {"num_encoder_layers": setup.layers, "num_decoder_layers": setup.layers, "nhead": setup.heads}
        self.stacks = nn.Transformer(
            setup.d_model,
            **sizes,
            dim_feedforward=setup.d_ff,
            dropout=setup.dropout,
            layer_norm_eps=1e-6,
            batch_first=True,
        )
        self.stacks.encoder.norm = self.stacks.decoder.norm = None  # post-norm needs none
        self.embedding = nn.Embedding(setup.vocabulary, setup.d_model)
        nn.init.normal_(self.embedding.weight, std=setup.d_model**-0.5)  # as every other side begins
        self.dropout = nn.Dropout(setup.dropout)
        table = sinusoids(torch.arange(LONGEST), setup.d_model, "interleaved").float()
        self.register_buffer("positions", table, persistent=False)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, (B, T, vocabulary)."""
        pads = batch.source.eq(PAD)
        causal = nn.Transformer.generate_square_subsequent_mask(batch.inputs.shape[1])
        hidden = self.stacks(
            self._embedded(batch.source),
            self._embedded(batch.inputs),
            tgt_mask=causal,
            src_key_padding_mask=pads,
            memory_key_padding_mask=pads,
            tgt_is_causal=True,
        )
        return hidden @ self.embedding.weight.T

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        scaled = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(scaled + self.positions[: tokens.shape[1]])


def our_names(name: str) -> list[str]:
    """This package's parameters that make up the Translator's `name`, in its order; attention's biases have none."""
    if name == "embedding.weight":
        return ["model.decoder.embed_tokens.weight"]
    _, side, _, number, part, *rest = name.split(".")
    layer = f"model.{side}.layers.{number}"
    if part.startswith("linear"):
        return [f"{layer}.feed_forward.fc{part[-1]}.{rest[-1]}"]
    if part.startswith("norm"):
        parts = ("self_attention", "feed_forward")
        if side == "decoder":
            parts = ("self_attention", "cross_attention", "feed_forward")
        return [f"{layer}.{parts[int(part[-1]) - 1]}_residual.norm.{rest[-1]}"]
    if name.endswith("bias"):
        return []
    kinds = ("out",) if rest[0] == "out_proj" else ("q", "k", "v")
    return [f"{layer}.{ATTENTION[part]}.{kind}_proj.weight" for kind in kinds]


class TorchTransformer(Side):
    """A variant is a precision."""

    def __init__(self, setup: Setup):
        self.model, self._smoothing = Translator(setup), setup.label_smoothing
        weights = load_file(Path(setup.weights) / "ours" / "model.safetensors")
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                sources = our_names(name)
                parameter.copy_(torch.cat([weights[source] for source in sources])) if sources else parameter.zero_()
        self._adam = torch.optim.Adam(self.model.parameters(), LEARNING_RATE, BETAS, EPSILON, fused=True)

    def loss(self, variant: str, batch: Batch) -> float:
        # With gradients, or torch takes its path for inference, which leaves pads out.
        self.model.eval()
        return float(self._loss(variant, batch).detach())

    def update(self, variant: str, prepared: Batch) -> None:
        self._adam.zero_grad(set_to_none=True)
        self._loss(variant, prepared).backward()
        self._adam.step()

    def _loss(self, variant: str, batch: Batch) -> torch.Tensor:
        with computing_in(variant):
            logits, labels = self.model(batch).flatten(0, 1), batch.labels.flatten()
            return nn.functional.cross_entropy(
                logits.float(), labels, ignore_index=PAD, label_smoothing=self._smoothing
            )


if __name__ == "__main__":
    serve(TorchTransformer)

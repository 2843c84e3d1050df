"""Transformers that lack one part, for finding out what the part is for; the shipped model has no switch for it.

Each is our model with a module exchanged after its weights were drawn: what is left starts from the same weights.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import Seq2SeqLMOutput

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.modeling_vanilla_transformer import (
    MultiHeadAttention,
    Positions,
    Residual,
    VanillaTransformerForConditionalGeneration,
)

# Shapes: B sentences, L positions, T target positions, D d_model.


class NoPositions(nn.Module):
    """Nothing is added to the embeddings: a sentence is a set of words."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """(L,) or (B, L) positions -> zeros that fit any width, (..., 1)."""
        return torch.zeros_like(positions).unsqueeze(-1)


class SublayerAndNorm(nn.Module):
    """LayerNorm(Dropout(Sublayer(x))): the connection around a sub-layer is cut."""

    def __init__(self, residual: Residual):
        super().__init__()
        self.norm, self.dropout = residual.norm, residual.dropout

    def forward(self, x_BLD: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return self.norm(self.dropout(sublayer(x_BLD)))


class SublayerAndInput(nn.Module):
    """x + Dropout(Sublayer(x)), and no LayerNorm."""

    def __init__(self, residual: Residual):
        super().__init__()
        self.dropout = residual.dropout

    def forward(self, x_BLD: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return x_BLD + self.dropout(sublayer(x_BLD))


class PassedBy(nn.Module):
    """The place of a sub-layer that is gone with its residual connection and its LayerNorm."""

    def forward(self, x_BLD: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return x_BLD


class _Ablated(VanillaTransformerForConditionalGeneration):
    # Never published: a saved folder holds no code, and only `as_the_transformer` loads it.
    _auto_class = None

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.ablate()

    def ablate(self) -> None:
        """Take the part away."""

    def exchange(self, kind: type[nn.Module], make: Callable[[Any], nn.Module]) -> None:
        """Put `make(module)` in the place of every module of this kind."""
        for parent in list(self.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, kind):
                    setattr(parent, name, make(child))


class WithoutPositions(_Ablated):
    def ablate(self) -> None:
        self.exchange(Positions, lambda _: NoPositions())


class WithoutResiduals(_Ablated):
    def ablate(self) -> None:
        self.exchange(Residual, SublayerAndNorm)


class WithoutLayerNorm(_Ablated):
    def ablate(self) -> None:
        self.exchange(Residual, SublayerAndInput)


class WithoutFeedForward(_Ablated):
    def ablate(self) -> None:
        for layer in (*self.model.encoder.layers, *self.model.decoder.layers):
            layer.feed_forward, layer.feed_forward_residual = nn.Identity(), PassedBy()


class WithoutScaling(_Ablated):
    """Softmax of Q K^T itself, not divided by sqrt(d_k)."""

    def ablate(self) -> None:
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                module.scaling = 1.0


class WithoutDecoderMask(_Ablated):
    """Every target position sees all the others, those to be predicted too.

    Decoding computes all positions again for each word, without a cache, so that each sees all that there is: the same
    function as in training.
    """

    def ablate(self) -> None:
        self.generation_config.use_cache = False

    def forward(
        self,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """As the whole model's; of the decoder's input only pads are hidden."""
        if decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        seen_BT = decoder_input_ids.ne(self.config.pad_token_id)
        T = seen_BT.shape[1]
        seen_B1TT = seen_BT[:, None, None, :].expand(-1, 1, T, T)
        return super().forward(
            decoder_input_ids=decoder_input_ids, decoder_attention_mask=seen_B1TT, labels=labels, **kwargs
        )


# What is trained, by the name that the table gives it: the class, and fields of the config that differ.
ABLATIONS: dict[str, tuple[type[VanillaTransformerForConditionalGeneration], Mapping[str, Any]]] = {
    "whole": (VanillaTransformerForConditionalGeneration, {}),
    "without positions": (WithoutPositions, {}),
    "without residual connections": (WithoutResiduals, {}),
    "without layer norm": (WithoutLayerNorm, {}),
    "one head": (VanillaTransformerForConditionalGeneration, {"num_heads": 1}),
    "without feed-forward": (WithoutFeedForward, {}),
    "without scaling by sqrt(d_k)": (WithoutScaling, {}),
    "without decoder mask": (WithoutDecoderMask, {}),
}


@contextmanager
def as_the_transformer(kind: type[VanillaTransformerForConditionalGeneration]) -> Iterator[None]:
    """Inside, whatever builds or loads a VanillaTransformer gets one of this class: training, averaging, evaluation."""
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, kind, exist_ok=True)
    try:
        yield
    finally:
        AutoModelForSeq2SeqLM.register(
            VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, exist_ok=True
        )

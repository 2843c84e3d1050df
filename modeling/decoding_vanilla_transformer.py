"""The decoder one token at a time for a search on a CPU: weights packed for products, keys and values kept in place.

The arithmetic is that of modeling_vanilla_transformer.Decoder. A search's hypotheses of one sentence share a row of
keys and values, in which a mask shows each its own ancestors: nothing is copied when hypotheses change places. Ships
to the Hub beside the weights; imports torch alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

# Shapes: B sentences, k hypotheses of each, R = B x k rows, S source positions, T target positions, D d_model, H heads,
# K d_k, V d_v, N vocabulary, C places in the cache: the prompt's tokens, then k a step.

# Steps by which the cache grows; its unwritten end is masked, so that products see whole tensors, which are faster.
STEPS_OF_ROOM = 8
# oneDNN packs for a number of rows; packed for so many it is as fast for one row as for hundreds.
ROWS_PACKED_FOR = 128

Function = Callable[[torch.Tensor], torch.Tensor]


def linear(modules: Sequence[nn.Module], pack: bool, relu: bool = False) -> Function:
    """What `modules` make of one input, side by side, and ReLU of it.

    Plain linear layers become one product, with `pack` of weights in the order in which oneDNN reads them; others, such
    as quantised ones or adapters, are called as they are.
    """
    plain = [module for module in modules if type(module) is nn.Linear]
    if len(plain) < len(modules):
        return lambda x: _relu(torch.cat([module(x) for module in modules], -1) if modules[1:] else modules[0](x), relu)
    weight, bias = plain[0].weight.detach(), plain[0].bias
    if plain[1:]:
        weight = torch.cat([layer.weight for layer in plain])
        bias = None if bias is None else torch.cat([layer.bias for layer in plain])
    if not (pack and _packable(weight)):
        return lambda x: _relu(nn.functional.linear(x, weight, bias), relu)
    packed, activation = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_PACKED_FOR), "relu" if relu else "none"
    # What torch.compile calls for linear layers whose weights are frozen.
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, activation, [], "")


def _relu(x: torch.Tensor, wanted: bool) -> torch.Tensor:
    return x.relu_() if wanted else x


def _packable(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return weight.dtype == torch.float32 or (
        weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def hooked(module: nn.Module) -> bool:
    """Whether somebody watches or changes the module's calls; transformers' hooks for `output_attentions` do not."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    foreign = any(getattr(hook, "__name__", "") != "output_capturing_hook" for hook in hooks)
    return foreign or "forward" in module.__dict__


class DecoderWeights:
    """What the steps of a search need of a model, as functions of rows; valid while the model's weights stay."""

    def __init__(self, model: Any, pack: bool):
        decoder, self.packed = model.model.decoder, pack
        self.embed, self.positions, self.norm = decoder.embed_tokens, decoder.positions, decoder.norm
        self.dtype, self.scale = model.dtype, math.sqrt(model.config.d_model)
        self.layers = [LayerWeights(layer, pack) for layer in decoder.layers]
        self.head = linear([model.lm_head], pack)


class LayerWeights:
    """One decoder layer's sub-layers, each with its residual connection."""

    def __init__(self, layer: Any, pack: bool):
        own, cross, ffn = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.heads, self.d_k, self.d_v, self.scaling = own.num_heads, own.d_k, own.d_v, own.scaling
        self.qkv = linear([own.q_proj, own.k_proj, own.v_proj], pack)
        self.out = linear([own.out_proj], pack)
        self.cross_q = linear([cross.q_proj], pack)
        self.cross_kv = linear([cross.k_proj, cross.v_proj], pack)
        self.cross_out = linear([cross.out_proj], pack)
        relu = ffn.activation is nn.functional.relu
        fc1, fc2 = linear([ffn.fc1], pack, relu), linear([ffn.fc2], pack)
        self.feed_forward = (lambda x: fc2(fc1(x))) if relu else (lambda x: fc2(ffn.activation(fc1(x))))
        self.residuals = [
            (residual.norm, residual.post)
            for residual in (layer.self_attention_residual, layer.cross_attention_residual, layer.feed_forward_residual)
        ]

    def residual(self, number: int, x_RD: torch.Tensor, sublayer: Function) -> torch.Tensor:
        norm, post = self.residuals[number]
        return norm(x_RD + sublayer(x_RD)) if post else x_RD + sublayer(norm(x_RD))

    def by_head(self, x: torch.Tensor, sentences: int, width: int) -> torch.Tensor:
        """(B x L, H x width) -> (B x H, L, width)."""
        return x.view(sentences, -1, self.heads, width).transpose(1, 2).flatten(0, 1)

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B x H, L, K) over (B x H, C, K) and (B x H, C, V), with an additive mask -> (B x L, H x V)."""
        weights = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=self.scaling).softmax(-1)
        return torch.bmm(weights, values).unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2).flatten(0, 1)


class DecoderSteps:
    """The decoder over the sentences of one search: the prompt once, then `hypotheses` tokens a sentence each step."""

    def __init__(
        self, weights: DecoderWeights, memory_BSD: torch.Tensor, source_mask_BS: torch.Tensor | None, hypotheses: int
    ):
        self.weights, self.hypotheses = weights, hypotheses
        self.sentences, S, _ = memory_BSD.shape
        self.lowest = torch.finfo(weights.dtype).min  # not -inf: a row whose keys are all masked must stay finite
        source_mask_BS = memory_BSD.new_ones(memory_BSD.shape[:2]) if source_mask_BS is None else source_mask_BS
        self.source_mask = self._additive(source_mask_BS.bool())
        self.cross: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in weights.layers:
            both = layer.cross_kv(memory_BSD.flatten(0, 1)).split([layer.heads * layer.d_k, layer.heads * layer.d_v], 1)
            keys, values = (
                layer.by_head(part, self.sentences, width)
                for part, width in zip(both, (layer.d_k, layer.d_v), strict=True)
            )
            self.cross.append((keys.contiguous(), values.contiguous()))
        self.own: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.written, self.steps = 0, 0  # places in the cache, and target positions

    def _additive(self, seen_BL: torch.Tensor) -> torch.Tensor:
        """A mask of a sentence's keys for each of its heads, (B x H, 1, L)."""
        mask_BL = torch.zeros(seen_BL.shape, dtype=self.weights.dtype, device=seen_BL.device)
        mask_BL = mask_BL.masked_fill_(~seen_BL, self.lowest)
        return mask_BL.repeat_interleave(self.weights.layers[0].heads, 0).unsqueeze(1)

    def prompt(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Tokens that all hypotheses of a sentence begin with -> logits of the next one, (B, N)."""
        T = ids_BT.shape[1]
        causal_1TT = torch.full((1, T, T), self.lowest, dtype=self.weights.dtype, device=ids_BT.device).triu_(1)
        room = STEPS_OF_ROOM * self.hypotheses
        for layer in self.weights.layers:
            shape = (self.sentences * layer.heads, T + room)
            keys, values = (self.source_mask.new_zeros(*shape, width) for width in (layer.d_k, layer.d_v))
            self.own.append((keys, values))
        # Here each attends to the prompt's places alone; the steps see the whole cache through this mask.
        self.mask = self.source_mask.new_full((self.sentences, self.hypotheses, T + room), self.lowest)
        self.mask[:, :, :T] = 0
        x_RD = self._stack(ids_BT, torch.arange(T, device=ids_BT.device), causal_1TT, whole=False)
        return self.weights.head(x_RD.view(self.sentences, T, -1)[:, -1])

    def next(self, tokens_Bk: torch.Tensor, parents_Bk: torch.Tensor) -> torch.Tensor:
        """The tokens last chosen, each after the hypothesis `parents_Bk` of the step before -> logits (R, N)."""
        if self.written + self.hypotheses > self.mask.shape[2]:
            self._grow()
        k = self.hypotheses
        if k > 1:
            self.mask = self.mask.gather(1, parents_Bk.unsqueeze(-1).expand_as(self.mask))
            apart = torch.full((k, k), self.lowest, dtype=self.mask.dtype, device=self.mask.device).fill_diagonal_(0)
            self.mask[:, :, self.written : self.written + k] = apart
        else:
            self.mask[:, :, self.written] = 0
        heads = self.weights.layers[0].heads
        position = torch.tensor([self.steps], device=tokens_Bk.device)
        x_RD = self._stack(tokens_Bk, position, self.mask.repeat_interleave(heads, 0), whole=True)
        return self.weights.head(x_RD)

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these sentences, in this order."""
        heads = self.weights.layers[0].heads
        by_head = (rows.unsqueeze(1) * heads + torch.arange(heads, device=rows.device)).flatten()
        self.sentences, self.source_mask, self.mask = len(rows), self.source_mask[by_head], self.mask[rows]
        self.cross = [(keys[by_head], values[by_head]) for keys, values in self.cross]
        self.own = [(keys[by_head], values[by_head]) for keys, values in self.own]

    def _grow(self) -> None:
        room = STEPS_OF_ROOM * self.hypotheses
        self.own = [
            (nn.functional.pad(keys, (0, 0, 0, room)), nn.functional.pad(values, (0, 0, 0, room)))
            for keys, values in self.own
        ]
        self.mask = nn.functional.pad(self.mask, (0, room), value=self.lowest)

    def _stack(self, ids_BL: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, whole: bool) -> torch.Tensor:
        """Through all layers, (B x L, D); L tokens are written to the cache, and `whole` attends to all of it."""
        weights, B, L = self.weights, self.sentences, ids_BL.shape[1]
        x_BLD = weights.embed(ids_BL) * weights.scale
        x_RD = (x_BLD + weights.positions(positions).to(x_BLD.dtype)).flatten(0, 1)
        new = slice(self.written, self.written + L)

        for layer, (keys, values), (cross_keys, cross_values) in zip(weights.layers, self.own, self.cross, strict=True):

            def attention(x_RD: torch.Tensor, layer=layer, keys=keys, values=values) -> torch.Tensor:
                widths = (layer.d_k, layer.d_k, layer.d_v)
                parts = layer.qkv(x_RD).split([layer.heads * width for width in widths], 1)
                q, k, v = (layer.by_head(part, B, width) for part, width in zip(parts, widths, strict=True))
                keys[:, new], values[:, new] = k, v
                seen = (keys, values) if whole else (k, v)
                return layer.out(layer.attend(q, *seen, mask))

            def cross_attention(x_RD: torch.Tensor, layer=layer, keys=cross_keys, values=cross_values) -> torch.Tensor:
                q = layer.by_head(layer.cross_q(x_RD), B, layer.d_k)
                return layer.cross_out(layer.attend(q, keys, values, self.source_mask))

            x_RD = layer.residual(0, x_RD, attention)
            x_RD = layer.residual(1, x_RD, cross_attention)
            x_RD = layer.residual(2, x_RD, layer.feed_forward)
        self.written += L
        self.steps += L if not whole else 1
        return weights.norm(x_RD)

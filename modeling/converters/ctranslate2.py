"""To CTranslate2 (Klein et al. 2020), an engine for fast translation on CPUs and GPUs; written in float32.

The engine quantises when it loads (`compute_type="int8"`). Its own sinusoids are tensor2tensor's, counted from 1, so a
model's positions are written out as a table.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ctranslate2.specs import TransformerSpec, common_spec
from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.modeling.converters.converted import search_notes
from vanilla_transformer.modeling.modeling_vanilla_transformer import (
    DecoderLayer,
    FeedForward,
    MultiHeadAttention,
    Positions,
    VanillaTransformerForConditionalGeneration,
)

# Positions of a model whose sinusoids have no end: 2,048 of width 512 are 4 MB.
MAX_POSITIONS = 2048
ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "swish": common_spec.Activation.SWISH,
}

USAGE = """\
import ctranslate2
from transformers import AutoTokenizer

folder = "."
translator = ctranslate2.Translator(folder, compute_type="float32")  # or int8: smaller and faster
tokenizer = AutoTokenizer.from_pretrained(folder)
sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(["A sentence.", "Another one."])["input_ids"]]
never = [[token] for token in (tokenizer.pad_token, tokenizer.bos_token) if token is not None]
results = translator.translate_batch(sources, beam_size=4, length_penalty=0.6, suppress_sequences=never)
for result in results:
    print(tokenizer.decode(tokenizer.convert_tokens_to_ids(result.hypotheses[0]), skip_special_tokens=True))
"""


def write(
    model: VanillaTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> list[str]:
    """Write a CTranslate2 model folder, and the tokenizer beside it; returns what differs nevertheless.

    Every setting of ours can be expressed.
    """
    config: Any = model.config  # whose d_k and d_v are numbers once it is made
    head_dim = max(config.d_k, config.d_v)
    common: dict[str, Any] = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm_position == "pre",
        "activation": ACTIVATIONS[config.activation],
        "head_dim": head_dim if head_dim * config.num_heads != config.d_model else None,
    }
    encoder = TransformerEncoderSpec(config.num_encoder_layers, **common)
    decoder = TransformerDecoderSpec(config.num_decoder_layers, **common)
    spec = TransformerSpec(encoder, decoder)
    ours = model.model
    for side, part, embeddings in (
        (encoder, ours.encoder, encoder.embeddings[0]),
        (decoder, ours.decoder, decoder.embeddings),
    ):
        embeddings.weight = _array(part.embed_tokens.weight)
        side.position_encodings.encodings = _table(part.positions)
        if common["pre_norm"]:
            _set_norm(side.layer_norm, part.norm)
        for theirs, layer in zip(side.layer, part.layers, strict=True):
            _set_layer(theirs, layer, head_dim)
    _set_linear(decoder.projection, [model.lm_head.weight], [model.lm_head.bias])

    tokens = _tokens(tokenizer, config.vocab_size)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.unk_token = tokenizer.unk_token
    spec.config.eos_token = tokens[config.eos_token_id]
    spec.config.bos_token = spec.config.decoder_start_token = tokens[config.decoder_start_token_id]
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize()  # a matrix that several places share is stored once
    spec.save(str(folder))
    # Beside the engine's config.json, which is no model of transformers.
    tokenizer.save_pretrained(folder)
    return _notes(model)


def _set_layer(theirs: Any, layer: Any, head_dim: int) -> None:
    _set_attention(theirs.self_attention, layer.self_attention, head_dim)
    _set_norm(theirs.self_attention.layer_norm, layer.self_attention_residual.norm)
    if isinstance(layer, DecoderLayer):
        _set_attention(theirs.attention, layer.cross_attention, head_dim, cross=True)
        _set_norm(theirs.attention.layer_norm, layer.cross_attention_residual.norm)
    _set_feed_forward(theirs.ffn, layer.feed_forward)
    _set_norm(theirs.ffn.layer_norm, layer.feed_forward_residual.norm)


def _set_attention(
    theirs: MultiHeadAttentionSpec, ours: MultiHeadAttention, head_dim: int, cross: bool = False
) -> None:
    """Self-attention has one matrix for q, k and v, cross-attention one for q and one for k and v.

    Keys or values narrower than `head_dim` are filled up with zeros: scores and sums stay the same.
    """
    inward = [ours.q_proj, ours.k_proj, ours.v_proj]
    weights = [_padded_rows(linear.weight, ours.num_heads, head_dim) for linear in inward]
    biases = [None if linear.bias is None else _padded_rows(linear.bias, ours.num_heads, head_dim) for linear in inward]
    if cross:
        _set_linear(theirs.linear[0], weights[:1], biases[:1])
        _set_linear(theirs.linear[1], weights[1:], biases[1:])
    else:
        _set_linear(theirs.linear[0], weights, biases)
    out_weight = _padded_rows(ours.out_proj.weight.T, ours.num_heads, head_dim).T
    _set_linear(theirs.linear[-1], [out_weight], [ours.out_proj.bias])
    theirs.queries_scale = float(ours.scaling)


def _padded_rows(weight: torch.Tensor, num_heads: int, head_dim: int) -> torch.Tensor:
    """(heads x size, ...) -> (heads x head_dim, ...), zeros after each head's own rows."""
    by_head = weight.unflatten(0, (num_heads, -1))
    missing = head_dim - by_head.shape[1]
    return torch.cat([by_head, by_head.new_zeros(num_heads, missing, *by_head.shape[2:])], 1).flatten(0, 1)


def _set_feed_forward(theirs: Any, ours: FeedForward) -> None:
    _set_linear(theirs.linear_0, [ours.fc1.weight], [ours.fc1.bias])
    _set_linear(theirs.linear_1, [ours.fc2.weight], [ours.fc2.bias])


def _set_linear(
    theirs: common_spec.LinearSpec, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
) -> None:
    theirs.weight = _array(torch.cat(list(weights)))
    if biases[0] is not None:
        theirs.bias = _array(torch.cat([bias for bias in biases if bias is not None]))


def _set_norm(theirs: common_spec.LayerNormSpec, ours: Any) -> None:
    theirs.gamma, theirs.beta = _array(ours.weight), _array(ours.bias)


def _table(positions: Positions) -> np.ndarray:
    last = positions.max_positions or MAX_POSITIONS
    with torch.no_grad():
        return _array(positions(torch.arange(last)))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().cpu().float().numpy())


def _tokens(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[str]:
    """The tokens by number; numbers of the model that the tokenizer has no token for get a name."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), vocab_size))))
    return [*tokens, *(f"<unused {number}>" for number in range(len(tokens), vocab_size))]


def _notes(model: VanillaTransformerForConditionalGeneration) -> list[str]:
    generation = model.generation_config
    notes = search_notes(
        generation,
        "CTranslate2",
        f"translate_batch(length_penalty={generation.length_penalty:g}) divides by length ^ "
        f"{generation.length_penalty:g}, the nearest in form",
        "translate_batch(max_decoding_length=256) is one limit for all sentences",
    )
    notes.append(
        "Tokens that are never written: this model's search leaves out <pad> and <s>; give translate_batch "
        "suppress_sequences, as below. The engine does so before the softmax and not after it: its scores are a little "
        "higher."
    )
    if model.config.positional_encoding == "sinusoidal":
        notes.append(f"Positions: the table ends at {MAX_POSITIONS}, the original has no limit.")
    return notes

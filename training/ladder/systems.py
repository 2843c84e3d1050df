"""The rungs of the ladder: from a plain recurrent network to the Transformer, at one number of parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from vanilla_transformer.configuration.config_common import ConfigError
from vanilla_transformer.configuration.configuration_recurrent_seq2seq import RecurrentSeq2SeqConfig
from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.modeling_recurrent_seq2seq import RecurrentSeq2SeqForConditionalGeneration
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

# How far a system's number of parameters may lie from the one asked for.
TOLERANCE = 0.05
# Recurrent layers a side. More of them need residual connections to learn better (Britz et al. 2017, section 4.3).
RECURRENT_LAYERS = 2
# What the two kinds of model have in common, and a recurrent one therefore takes from the Transformer.
_SHARED = ("dropout", "label_smoothing", "label_smoothing_over", "embedding_sharing")
_WIDEST = 1 << 14  # of the d_model that are tried


@dataclass(frozen=True)
class System:
    """One rung: an architecture and, of a recurrent one, its cell and its attention."""

    name: str
    architecture: str
    cell: str | None = None
    attention: str | None = None


# From one rung to the next one thing changes; both cells have the same attention, Luong's "general".
SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System("rnn", "recurrent_seq2seq", "rnn", "none"),
        System("lstm", "recurrent_seq2seq", "lstm", "none"),
        System("gru", "recurrent_seq2seq", "gru", "none"),
        System("lstm-attention", "recurrent_seq2seq", "lstm", "multiplicative"),
        System("gru-attention", "recurrent_seq2seq", "gru", "multiplicative"),
        System("transformer", "vanilla_transformer"),
    )
}


def matched_config(
    system: System,
    parameters: int,
    *,
    vocab_size: int,
    base: Mapping[str, Any],
    recurrent: Mapping[str, Any] | None = None,
    **fields: Any,
) -> PreTrainedConfig:
    """The config of a system whose d_model gives it `parameters` parameters, within 5%.

    `base` are the Transformer's fields: its d_ff keeps its proportion to d_model, and a recurrent system takes dropout,
    label smoothing and embedding sharing from it. `recurrent` are fields that all recurrent systems have
    (bidirectional, number of layers). `fields` are the same in every system: special tokens, languages. Where no
    d_model comes close enough, because the heads must divide it, the Transformer's d_ff takes up the rest.

    Raises ConfigError where no width comes within 5%, and for fields that are wrong.
    """
    if system.architecture == "vanilla_transformer":
        kind, own = VanillaTransformerConfig, dict(base)
        step = math.lcm(
            2, own.get("num_heads", kind.num_heads)
        )  # a width that the heads share, and positions need even
    else:
        kind, own = RecurrentSeq2SeqConfig, _recurrent_fields(system, base, recurrent or {})
        step = 2 if own.get("bidirectional", RecurrentSeq2SeqConfig.bidirectional) else 1  # two directions share it
    own |= {"vocab_size": vocab_size, **fields}
    d_ff_per_d_model = own.get("d_ff", 2048) / own.get("d_model", 512)

    def at(d_model: int) -> PreTrainedConfig:
        sized = {"d_ff": round(d_ff_per_d_model * d_model)} if kind is VanillaTransformerConfig else {}
        return kind(**{**own, **sized, "d_model": d_model})

    below, above = 0, step
    while above < _WIDEST and count_parameters(at(above)) < parameters:
        below, above = above, 2 * above
    while above - below > step:
        middle = (below + above) // (2 * step) * step
        below, above = (middle, above) if count_parameters(at(middle)) < parameters else (below, middle)
    candidates = [at(width) for width in (below, above) if width]
    nearest = min(candidates, key=lambda config: abs(count_parameters(config) - parameters))
    if kind is VanillaTransformerConfig and not _is_close(nearest, parameters):
        nearest = _with_fitting_d_ff(nearest, own, parameters)
    if not _is_close(nearest, parameters):
        raise ConfigError(
            f"{system.name}: no width gives {parameters:,} parameters within {TOLERANCE:.0%}; d_model = "
            f"{nearest.d_model} gives {count_parameters(nearest):,}. Choose another number or a smaller vocabulary"
        )
    return nearest


def build(config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a config, its first weights drawn from torch's global random state."""
    if config.model_type == VanillaTransformerConfig.model_type:
        return VanillaTransformerForConditionalGeneration(config)
    return RecurrentSeq2SeqForConditionalGeneration(config)


def count_parameters(config: PreTrainedConfig) -> int:
    """Trainable numbers in the config's model, shared ones counted once; none of them is allocated."""
    with torch.device("meta"):
        return build(config).num_parameters()


def _recurrent_fields(system: System, base: Mapping[str, Any], recurrent: Mapping[str, Any]) -> dict[str, Any]:
    layers = min(RECURRENT_LAYERS, base.get("num_encoder_layers", RECURRENT_LAYERS))
    return {
        **{name: base[name] for name in _SHARED if name in base},
        "num_encoder_layers": layers,
        "num_decoder_layers": layers,
        **recurrent,
        "cell": system.cell,
        "attention": system.attention,
    }


def _with_fitting_d_ff(config: PreTrainedConfig, own: Mapping[str, Any], parameters: int) -> PreTrainedConfig:
    """The Transformer of the same d_model whose feed-forward layers bring it nearest to `parameters`."""

    def at(d_ff: int) -> PreTrainedConfig:
        return VanillaTransformerConfig(**{**own, "d_model": config.d_model, "d_ff": d_ff})

    count = count_parameters(config)
    of_one = count_parameters(at(config.d_ff + 1)) - count
    return at(max(1, config.d_ff + round((parameters - count) / of_one)))


def _is_close(config: PreTrainedConfig, parameters: int) -> bool:
    return abs(count_parameters(config) - parameters) <= TOLERANCE * parameters

"""The encoder-decoder of "Attention Is All You Need" (Vaswani et al. 2017), in the order of its Figure 1.

Positions, attention, feed-forward, the two kinds of layer, encoder, decoder, model, head. Ships to the Hub beside the
weights: imports torch, transformers and, from its own folder, the other files that ship.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .decoding_vanilla_transformer import hooked
from .dropout_vanilla_transformer import Dropout
from .generation_vanilla_transformer import paper_generation_config, prompt_mask
from .loss_vanilla_transformer import SmoothedLoss, shifted_right
from .quick_search_vanilla_transformer import QuickGenerationMixin

if TYPE_CHECKING:  # never imported here; the line makes save_pretrained ship the pipeline's file
    from .pipeline_vanilla_transformer import TranslationPipeline  # noqa: F401

# Shapes: B sentences, S source positions, T target positions, L positions of either side, D d_model, F d_ff, H heads,
# K d_k, V d_v, N vocabulary. Masks are true (or zero, where additive) at positions that may be attended to.

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "swish": nn.functional.silu,
}


# Queries a row up to which training on a CPU attends by plain products: their memory grows with the length squared.
PLAIN_POSITIONS = 64

# Their name until transformers 5.24; unnoticed, it would vanish in **kwargs, and every step forget the ones before.
accepts_past_key_values = deprecate_kwarg("past_key_values", "6.0.0", new_name="cache")


class PositionLimitError(ValueError):
    """A sentence is longer than the learned positions of the model."""


def sinusoids(positions: torch.Tensor, d_model: int, layout: str) -> torch.Tensor:
    """Sinusoidal encodings of `positions` (section 3.5), (..., d_model) in float64, for any position.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) = cos(the same); layout "concatenated" has all
    the sines first.
    """
    # float32 angles are off by 1e-3 near position 10,000; Apple's GPUs have no float64.
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    dims = torch.arange(0, d_model, 2, dtype=exact, device=positions.device)  # (d_model / 2,)
    angles = positions.to(exact).unsqueeze(-1) * torch.exp(dims * (-math.log(10000.0) / d_model))
    waves = (angles.sin(), angles.cos())
    return torch.cat(waves, -1) if layout == "concatenated" else torch.stack(waves, -1).flatten(-2)


class Positions(nn.Module):
    """What is added to the embeddings so that order counts: sinusoids, or a learned table (Table 3, row E)."""

    def __init__(self, config: VanillaTransformerConfig, max_positions: int | None, field: str):
        super().__init__()
        self.d_model, self.layout = config.d_model, config.sinusoid_layout
        self.max_positions, self.field = max_positions, field
        if config.positional_encoding == "learned":
            self.table = nn.Embedding(max_positions, config.d_model)
        else:
            self.table = None

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """(L,) or (B, L) positions from 0 -> (..., L, D). Raises PositionLimitError past a learned table's end."""
        if self.table is None:
            # Each distinct position is computed once; rows of a batch share them.
            if positions.dim() == 1:
                return sinusoids(positions, self.d_model, self.layout)
            every = torch.arange(positions.max() + 1, device=positions.device)
            return sinusoids(every, self.d_model, self.layout)[positions]
        longest = int(positions.max()) + 1 if positions.numel() else 0
        if longest > self.max_positions:
            raise PositionLimitError(
                f"{self.field} = {self.max_positions}: the input has {longest} positions; shorten it, or train a model "
                "with a larger table or with sinusoidal positions"
            )
        return self.table(positions)


def plain_attention(
    module: nn.Module,
    q_BHTK: torch.Tensor,
    k_BHSK: torch.Tensor,
    v_BHSV: torch.Tensor,
    mask_B1TS: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention, softmax(Q K^T / sqrt(d_k)) V (section 3.2.1, equation 1).

    The mask is boolean, additive or None (then causal where the module is). Returns (B, T, H, V) and the weights
    (B, H, T, S), whose rows sum to one.
    """
    scores_BHTS = (q_BHTK * scaling) @ k_BHSK.transpose(-1, -2)
    if mask_B1TS is None and module.is_causal and q_BHTK.shape[2] > 1:
        T, S = scores_BHTS.shape[-2:]
        mask_B1TS = torch.ones(T, S, dtype=torch.bool, device=scores_BHTS.device).tril(S - T)
    if mask_B1TS is not None:
        if mask_B1TS.dtype == torch.bool:
            # Not -inf: a row whose keys are all masked must stay finite.
            mask_B1TS = torch.zeros_like(mask_B1TS, dtype=scores_BHTS.dtype).masked_fill_(
                ~mask_B1TS, torch.finfo(scores_BHTS.dtype).min
            )
        scores_BHTS = scores_BHTS + mask_B1TS
    weights_BHTS = scores_BHTS.softmax(-1)
    mixed_BHTV = nn.functional.dropout(weights_BHTS, dropout, module.training) @ v_BHSV
    return mixed_BHTV.transpose(1, 2), weights_BHTS


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (section 3.2.2)."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.num_heads, self.d_k, self.d_v = config.num_heads, config.d_k, config.d_v
        self.dropout = config.attention_dropout
        self.scaling = config.d_k**-0.5
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.d_model, config.num_heads * config.d_k, bias=bias)
        self.k_proj = nn.Linear(config.d_model, config.num_heads * config.d_k, bias=bias)
        self.v_proj = nn.Linear(config.d_model, config.num_heads * config.d_v, bias=bias)
        self.out_proj = nn.Linear(config.num_heads * config.d_v, config.d_model, bias=bias)

    def keys_and_values(self, x_BSD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Projected and split by head: (B, H, S, K) and (B, H, S, V)."""
        B, S, _ = x_BSD.shape
        k_BHSK = self.k_proj(x_BSD).view(B, S, self.num_heads, self.d_k).transpose(1, 2)
        v_BHSV = self.v_proj(x_BSD).view(B, S, self.num_heads, self.d_v).transpose(1, 2)
        return k_BHSK, v_BHSV

    def forward(
        self,
        x_BTD: torch.Tensor,
        mask: torch.Tensor | None,
        memory_BSD: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries from x, keys and values from `memory` (the encoder's output) or from x; (B, T, D) and the weights.

        With a cache, keys and values of earlier positions come from it; the encoder's are projected once a sentence.
        Where memory has fewer rows, each serves as many rows of x as a search has hypotheses of that sentence.
        """
        B, T, _ = x_BTD.shape
        q_BHTK = self.q_proj(x_BTD).view(B, T, self.num_heads, self.d_k).transpose(1, 2)
        cross = memory_BSD is not None
        if isinstance(cache, EncoderDecoderCache):
            states = cache.cross_attention_cache if cross else cache.self_attention_cache
        else:
            states = cache
        if cross and isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(self.layer_idx):
            k_BHSK, v_BHSV = states.layers[self.layer_idx].keys, states.layers[self.layer_idx].values
        else:
            k_BHSK, v_BHSV = self.keys_and_values(memory_BSD if cross else x_BTD)
            if states is not None:
                k_BHSK, v_BHSV = states.update(k_BHSK, v_BHSV, self.layer_idx)
                if cross and isinstance(cache, EncoderDecoderCache):
                    cache.is_updated[self.layer_idx] = True
        hypotheses = B // k_BHSK.shape[0]
        if hypotheses > 1:
            q_BHTK = _side_by_side(q_BHTK, hypotheses)
        attend = self._implementation(q_BHTK, kwargs.get("output_attentions"))
        dropout = self.dropout if self.training else 0.0
        mixed_BTHV, weights = attend(
            self, q_BHTK, k_BHSK, v_BHSV, mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        if hypotheses > 1 and weights is not None:
            weights = weights.unflatten(2, (hypotheses, T)).transpose(1, 2).flatten(0, 1)
        return self.out_proj(mixed_BTHV.reshape(B, T, self.num_heads * self.d_v)), weights

    def _implementation(self, q_BHTK: torch.Tensor, weights_wanted: bool | None) -> Callable:
        name = self.config._attn_implementation
        if name == "sdpa" and weights_wanted:  # torch's fused attention does not give them
            return plain_attention
        if name == "sdpa" and q_BHTK.device.type == "cpu" and torch.is_grad_enabled():
            # Forward and backward of torch's fused attention on two CPU cores, against plain products: in bfloat16 9.3
            # times as long at length 16, 3.7 at 128, 1.6 at 512; in float32 2.0 at 16, 1.3 at 64, 1.0 at 128.
            if q_BHTK.dtype == torch.bfloat16 or q_BHTK.shape[2] <= PLAIN_POSITIONS:
                return plain_attention
        return ALL_ATTENTION_FUNCTIONS.get_interface(name, plain_attention)


def _side_by_side(q_BHTK: torch.Tensor, hypotheses: int) -> torch.Tensor:
    """Queries of one sentence's hypotheses as further positions of one row, (B / hypotheses, H, hypotheses x T, K)."""
    return q_BHTK.unflatten(0, (-1, hypotheses)).transpose(1, 2).flatten(2, 3)


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (section 3.3, equation 2)."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.fc2 = nn.Linear(config.d_ff, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.relu_dropout)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.dropout(self.activation(self.fc1(x_BLD))))


class Residual(nn.Module):
    """The connection around each sub-layer: LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4), or pre-norm."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)
        self.post = config.norm_position == "post"

    def forward(self, x_BLD: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        if self.post:
            return self.norm(x_BLD + self.dropout(sublayer(x_BLD)))
        return x_BLD + self.dropout(sublayer(self.norm(x_BLD)))


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention, then feed-forward (Figure 1, left)."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer_idx)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x_BSD: torch.Tensor, mask: torch.Tensor | None, **kwargs: Any) -> torch.Tensor:
        x_BSD = self.self_attention_residual(x_BSD, lambda x: self.self_attention(x, mask, **kwargs)[0])
        return self.feed_forward_residual(x_BSD, self.feed_forward)


class DecoderLayer(GradientCheckpointingLayer):
    """Masked self-attention, cross-attention, then feed-forward (Figure 1, right)."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer_idx, is_causal=True)
        self.self_attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config, layer_idx)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x_BTD: torch.Tensor,
        self_mask: torch.Tensor | None,
        memory_BSD: torch.Tensor,
        cross_mask: torch.Tensor | None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        x_BTD = self.self_attention_residual(
            x_BTD, lambda x: self.self_attention(x, self_mask, cache=cache, **kwargs)[0]
        )
        x_BTD = self.cross_attention_residual(
            x_BTD, lambda x: self.cross_attention(x, cross_mask, memory_BSD, cache=cache, **kwargs)[0]
        )
        return self.feed_forward_residual(x_BTD, self.feed_forward)


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """What all models here share: initialisation and what the attention implementations may do."""

    config_class = VanillaTransformerConfig
    config: VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # tensor2tensor's: the paper gives none. Glorot uniform; embeddings N(0, 1 / d_model), so that times
        # sqrt(d_model) they have unit variance.
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


class Encoder(VanillaTransformerPreTrainedModel):
    """A stack of encoder layers over embedded, position-coded source tokens (section 3.1)."""

    main_input_name = "input_ids"
    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": MultiHeadAttention}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = Positions(config, config.max_source_positions, "max_source_positions")
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config, i) for i in range(config.num_encoder_layers))
        self.norm = _stack_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """input_ids (B, S) or unscaled inputs_embeds (B, S, D), mask (B, S) -> last_hidden_state (B, S, D)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        x_BSD = inputs_embeds * math.sqrt(self.config.d_model)
        if attention_mask is None or attention_mask.dim() != 2:
            positions = torch.arange(x_BSD.shape[1], device=x_BSD.device)
        else:
            positions = _positions(attention_mask)
        x_BSD = self.dropout(_in_product_type(x_BSD + self.positions(positions).to(x_BSD.dtype)))
        mask = _mask_for_queries(self.config, x_BSD, attention_mask, x_BSD)
        for layer in self.layers:
            x_BSD = layer(x_BSD, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(x_BSD))


class Decoder(VanillaTransformerPreTrainedModel):
    """A stack of decoder layers over embedded, position-coded target tokens and the encoder's output (section 3.1)."""

    main_input_name = "input_ids"
    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attention"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = Positions(config, config.max_target_positions, "max_target_positions")
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_decoder_layers))
        self.norm = _stack_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @accepts_past_key_values
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """input_ids (B, T) after what the cache holds; mask (B, cached + T) -> last_hidden_state (B, T, D)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of decoder_input_ids and decoder_inputs_embeds")
        if use_cache and cache is None:
            cache = EncoderDecoderCache(
                DynamicCache(config=self.config.get_text_config(decoder=True)),
                DynamicCache(config=self.config.get_text_config(decoder=True)),
            )
        cached = cache.get_seq_length() if cache is not None else 0
        if attention_mask is None and input_ids is not None and isinstance(cached, int) and cached == 0:
            attention_mask = prompt_mask(input_ids, self.config)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        x_BTD = inputs_embeds * math.sqrt(self.config.d_model)
        T = x_BTD.shape[1]
        if attention_mask is None or attention_mask.dim() != 2:
            positions = torch.arange(T, device=x_BTD.device) + cached
        else:
            positions = _positions(attention_mask)[:, -T:]
        x_BTD = self.dropout(_in_product_type(x_BTD + self.positions(positions).to(x_BTD.dtype)))
        self_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x_BTD,
            attention_mask=attention_mask,
            cache=cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache,
        )
        hypotheses = x_BTD.shape[0] // encoder_hidden_states.shape[0]
        queries = x_BTD if hypotheses == 1 else x_BTD.view(-1, hypotheses * T, self.config.d_model)
        cross_mask = _mask_for_queries(self.config, queries, encoder_attention_mask, encoder_hidden_states)
        for layer in self.layers:
            x_BTD = layer(x_BTD, self_mask, encoder_hidden_states, cross_mask, cache=cache, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.norm(x_BTD), cache=cache)


def _mask_for_queries(
    config: VanillaTransformerConfig,
    x_BTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    memory_BSD: torch.Tensor,
) -> Any:
    """Where any position of x may attend to memory, in the form that the attention implementation takes.

    Pads are the same to every query, so a tensor is (B, 1, 1, S): one of T rows would grow with T times S.
    """
    if config._attn_implementation != "flex_attention":  # whose mask knows its number of queries
        x_BTD = x_BTD[:, :1]
    return create_bidirectional_mask(
        config=config, inputs_embeds=x_BTD, attention_mask=attention_mask, encoder_hidden_states=memory_BSD
    )


def _in_product_type(x_BLD: torch.Tensor) -> torch.Tensor:
    """Under autocast on a CPU, x in the type of the matrix products, so that the residual stream keeps it.

    In float32 the stream would be cast before each product and back after it. Layer norms compute in float32 inside;
    on other devices autocast runs them, and with them the stream, in float32.
    """
    if x_BLD.device.type == "cpu" and x_BLD.dtype == torch.float32 and torch.is_autocast_enabled("cpu"):
        return x_BLD.to(torch.get_autocast_dtype("cpu"))
    return x_BLD


def _positions(mask_BL: torch.Tensor) -> torch.Tensor:
    """Positions of the real tokens counted from 0, whichever side the padding is on."""
    return (mask_BL.long().cumsum(1) - 1).clamp(min=0)


def _stack_norm(config: VanillaTransformerConfig) -> nn.Module:
    """Pre-norm stacks end with a LayerNorm of their own; the paper's post-norm layers have normalised already."""
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.norm_position == "pre" else nn.Identity()


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Encoder and decoder without the softmax; `embedding_sharing` says which embeddings are one matrix."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        if config.embedding_sharing == "all":
            self._tied_weights_keys = {"encoder.embed_tokens.weight": "decoder.embed_tokens.weight"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.embedding_sharing == "all":
            self.decoder.embed_tokens = value

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        special = (self.config.bos_token_id, self.config.pad_token_id, self.config.eos_token_id)
        needed = 1 + max(n for n in (*special, self.config.decoder_start_token_id) if n is not None)
        if new_num_tokens is not None and new_num_tokens < needed:
            raise ValueError(f"resize_token_embeddings({new_num_tokens}): the special tokens need at least {needed}")
        # Source and target share one vocabulary: both sides change size, be their matrices one or two.
        source, target = self.encoder.embed_tokens, self.decoder.embed_tokens
        for embedding in (source, target):
            self._get_resized_embeddings(embedding, new_num_tokens, pad_to_multiple_of, mean_resizing)
        return source

    @can_return_tuple
    @accepts_past_key_values
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Source (B, S) and target so far (B, T) -> last_hidden_state (B, T, D).

        Pads without an attention mask are found by pad_token_id, on either side. Raises PositionLimitError where
        learned positions end.
        """
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class VanillaTransformerForConditionalGeneration(VanillaTransformerPreTrainedModel, QuickGenerationMixin):
    """The translation model: the Transformer with its softmax over the vocabulary (section 3.4)."""

    # Trainer then passes num_items_in_batch, so that accumulation and several processes equal one large batch.
    accepts_loss_kwargs = True

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.loss = SmoothedLoss(config.label_smoothing, config.label_smoothing_over)
        if config.embedding_sharing != "none":
            self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        if config.embedding_sharing == "all":
            self._tied_weights_keys["model.encoder.embed_tokens.weight"] = "model.decoder.embed_tokens.weight"
        self.post_init()
        self.generation_config = paper_generation_config(config)

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        head = self.lm_head
        # Not what embedding_sharing says: somebody may have untied them by tie_word_embeddings.
        shared = head.weight is self.model.decoder.embed_tokens.weight
        embeddings = self.model._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        size = embeddings.num_embeddings
        if not shared:
            self.lm_head = self._get_resized_lm_head(head, size, mean_resizing=mean_resizing)
        elif size != head.out_features:
            # The weight is the decoder's embedding, which has its new size.
            head.out_features = size
            if head.bias is not None:
                old = head.bias.data
                head.bias.data = old.new_full((size,), old.mean().item() if mean_resizing else 0.0)
                head.bias.data[: len(old)] = old[:size]
        return embeddings

    @can_return_tuple
    @accepts_past_key_values
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        compute_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Source (B, S), target so far (B, T) or labels (B, T) -> logits (B, T, N) and, given labels, the loss.

        Args:
            labels: target tokens ending with </s>, -100 where there is nothing to predict; the decoder's input is
                derived from them (shifted right, starting with decoder_start_token_id).
            num_items_in_batch: divides the summed loss; None gives the mean over this batch's target tokens.
            compute_logits: None leaves logits out in training mode with labels, where the loss is computed in blocks
                and the full logits would cost more memory than the model.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_BTD = outputs.last_hidden_state
        if compute_logits is None:
            compute_logits = labels is None or not self.training
        logits_BTN = self.lm_head(hidden_BTD) if compute_logits else None
        loss = None
        if labels is not None:
            labels = labels.to(hidden_BTD.device)
            loss = self.loss(hidden_BTD, self.lm_head, labels, num_items_in_batch, logits_BTN)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits_BTN,
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def _decodes_by_steps(self) -> bool:
        # Not for what others have put in a module's place or around it, nor off a CPU, where nobody has measured it.
        ours = (DecoderLayer, MultiHeadAttention, FeedForward, Residual)
        parts = [part for layer in self.model.decoder.layers for part in (layer, *layer.children())]
        return (
            type(self).forward is VanillaTransformerForConditionalGeneration.forward
            and not self.training
            and self.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu")
            and self.config._attn_implementation in ("eager", "sdpa")
            and type(self.model) is VanillaTransformerModel
            and type(self.model.decoder) is Decoder
            and all(type(part) in ours for part in parts)
            and not any(hooked(module) for module in self.modules())
        )

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, **model_kwargs: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        # A row for each hypothesis, except of what belongs to the sentence: the hypotheses share it.
        names = [name for name in ("encoder_outputs", "attention_mask") if name in model_kwargs]
        shared = {name: model_kwargs.pop(name) for name in names}
        ids, expanded = super()._expand_inputs_for_generation(expand_size, False, **model_kwargs)
        return ids, expanded | shared

    def _reorder_cache(self, cache: EncoderDecoderCache, beam_idx: torch.Tensor) -> EncoderDecoderCache:
        # transformers would also copy the sentences' keys and values, to where they are already.
        cache.self_attention_cache.reorder_cache(beam_idx)
        return cache

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels shifted right: decoder_start_token_id stands at each row's first label, pads where labels are -100."""
        return shifted_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)


# In code loaded from the Hub these names register nothing but the classes' own kind, as transformers expects.
VanillaTransformerModel.register_for_auto_class("AutoModel")
VanillaTransformerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

"""What the Transformer replaced: recurrent encoder-decoders with a fixed vector between them, or with attention.

Sutskever et al. 2014 and Cho et al. 2014 hand the decoder the encoder's last state; Bahdanau et al. 2014 and Luong et
al. 2015 let it look back at every source position. Recurrence is torch's own. Ships to the Hub beside the weights.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple

from .configuration_recurrent_seq2seq import RecurrentSeq2SeqConfig
from .dropout_vanilla_transformer import Dropout
from .generation_vanilla_transformer import PaperGenerationMixin, paper_generation_config, prompt_mask
from .loss_vanilla_transformer import SmoothedLoss, shifted_right

if TYPE_CHECKING:  # never imported here; the line makes save_pretrained ship the pipeline's file
    from .pipeline_vanilla_transformer import TranslationPipeline  # noqa: F401

# Shapes: B sentences, S source positions, T target positions, L positions of either side, D d_model, N vocabulary,
# C stacked layers. A state is (hidden,) or, of an LSTM, (hidden, memory cell), each (B, C, D): batch first, as
# generate's beams need it.

CELLS: dict[str, type[nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
State = tuple[torch.Tensor, ...]


@dataclass
class RecurrentEncoderOutput(ModelOutput):
    """The encoder's output at every position (B, S, D) and its state after the sentence: hidden, an LSTM's cell."""

    last_hidden_state: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    cell: torch.Tensor | None = None


class RecurrentCache:
    """What the decoder carries from one target position to the next: its state, and a vector that is fed back."""

    # What generate asks of a cache before it makes masks for attention.
    is_compileable = False
    is_linear = (False,)

    def __init__(self) -> None:
        self.state: State | None = None
        self.fed_BD: torch.Tensor | None = None
        self.length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Row i continues hypothesis beam_idx[i]."""
        self.state = None if self.state is None else tuple(part.index_select(0, beam_idx) for part in self.state)
        self.fed_BD = None if self.fed_BD is None else self.fed_BD.index_select(0, beam_idx)


class Recurrence(nn.Module):
    """Stacked recurrent layers that pass over padding: a row's result is that of the row without its pads."""

    def __init__(self, config: RecurrentSeq2SeqConfig, input_size: int, bidirectional: bool, layers: int):
        super().__init__()
        self.bidirectional = bidirectional
        self.rnn = CELLS[config.cell](
            input_size,
            config.d_model // 2 if bidirectional else config.d_model,
            num_layers=layers,
            dropout=config.dropout if layers > 1 else 0.0,
            bidirectional=bidirectional,
            batch_first=True,
        )

    def forward(
        self, x_BLD: torch.Tensor, mask_BL: torch.Tensor | None, state: State | None, reverse: bool = False
    ) -> tuple[torch.Tensor, State]:
        """Outputs at every position (B, L, D), zero at pads, and the state after each row's last token."""
        if mask_BL is None and not reverse:
            out_BLD, last = self.rnn(x_BLD, self._layers_first(state))
            return out_BLD, self._batch_first(last)
        if mask_BL is None:
            mask_BL = torch.ones(x_BLD.shape[:2], dtype=torch.bool, device=x_BLD.device)
        # Real tokens to the front, in order or, reversed, from the last; pads behind them.
        mask_BL = mask_BL.bool()
        rank_BL = mask_BL.long().cumsum(1)
        if reverse:
            rank_BL = rank_BL[:, -1:] - rank_BL
        order_BL = rank_BL.masked_fill(~mask_BL, x_BLD.shape[1] + 1).argsort(dim=1, stable=True)
        front_BLD = x_BLD.gather(1, order_BL.unsqueeze(-1).expand_as(x_BLD))
        lengths_B = mask_BL.sum(1).clamp(min=1).cpu()  # a row of pads alone runs over one of them
        packed = pack_padded_sequence(front_BLD, lengths_B, batch_first=True, enforce_sorted=False)
        out, last = self.rnn(packed, self._layers_first(state))
        out_BLD, _ = pad_packed_sequence(out, batch_first=True, total_length=x_BLD.shape[1])
        back_BL = order_BL.argsort(1)
        out_BLD = out_BLD.gather(1, back_BL.unsqueeze(-1).expand_as(out_BLD))
        return out_BLD * mask_BL.unsqueeze(-1), self._batch_first(last)

    def _layers_first(self, state: State | None) -> Any:
        """(B, C, D) parts as torch's modules take them."""
        if state is None:
            return None
        parts = tuple(part.transpose(0, 1).contiguous() for part in state)
        return parts if len(parts) == 2 else parts[0]

    def _batch_first(self, last: Any) -> State:
        """torch's last states as (B, C, D) parts; those of two directions side by side."""
        parts = last if isinstance(last, tuple) else (last,)
        if self.bidirectional:
            parts = tuple(torch.cat([part[0::2], part[1::2]], -1) for part in parts)
        return tuple(part.transpose(0, 1) for part in parts)


class AdditiveAttention(nn.Module):
    """score(q, k) = v tanh(W q + U k) (Bahdanau et al. 2014, appendix A.1.2)."""

    def __init__(self, d_model: int):
        super().__init__()
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.score = nn.Linear(d_model, 1, bias=False)

    def keys(self, memory_BSD: torch.Tensor) -> torch.Tensor:
        return self.key(memory_BSD)

    def forward(self, query_BTD: torch.Tensor, keys_BSD: torch.Tensor) -> torch.Tensor:
        return self.score(torch.tanh(self.query(query_BTD).unsqueeze(2) + keys_BSD.unsqueeze(1))).squeeze(-1)


class MultiplicativeAttention(nn.Module):
    """score(q, k) = q W k, "general" (Luong et al. 2015, equation 8)."""

    def __init__(self, d_model: int):
        super().__init__()
        self.key = nn.Linear(d_model, d_model, bias=False)

    def keys(self, memory_BSD: torch.Tensor) -> torch.Tensor:
        return self.key(memory_BSD)

    def forward(self, query_BTD: torch.Tensor, keys_BSD: torch.Tensor) -> torch.Tensor:
        return query_BTD @ keys_BSD.transpose(1, 2)


ATTENTIONS: dict[str, Callable[[int], nn.Module]] = {
    "additive": AdditiveAttention,
    "multiplicative": MultiplicativeAttention,
}


class RecurrentEncoder(nn.Module):
    """Reads the source and leaves its output at every position and its last state."""

    main_input_name = "input_ids"

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.dropout = Dropout(config.dropout)
        self.recurrence = Recurrence(config, config.d_model, config.bidirectional, config.num_encoder_layers)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any
    ) -> RecurrentEncoderOutput:
        """input_ids and mask (B, S); pads without a mask are found by pad_token_id."""
        if attention_mask is None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        x_BSD = self.dropout(self.embed_tokens(input_ids))
        out_BSD, state = self.recurrence(x_BSD, attention_mask, None, reverse=self.config.reverse_source)
        return RecurrentEncoderOutput(out_BSD, *state)


class RecurrentDecoder(nn.Module):
    """Writes the target from the encoder's last state, looking back at the source where there is attention."""

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.embed_tokens = nn.Embedding(config.vocab_size, d_model)
        self.dropout = Dropout(config.dropout)
        input_size = 2 * d_model if config.input_feeding else d_model
        self.recurrence = Recurrence(config, input_size, False, config.num_decoder_layers)
        self.attention = ATTENTIONS[config.attention](d_model) if config.attention != "none" else None
        # The attentional vector tanh(W [context; state]) (Luong, equation 5); without attention, tanh(W state).
        self.output = nn.Linear(d_model if self.attention is None else 2 * d_model, d_model, bias=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        mask_BT: torch.Tensor | None,
        memory: RecurrentEncoderOutput,
        memory_mask_BS: torch.Tensor,
        cache: RecurrentCache,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, T) tokens after those that `cache` has seen -> (B, T, D) and the attention weights (B, T, S)."""
        if cache.state is None:
            cache.state = tuple(part for part in (memory.hidden, memory.cell) if part is not None)
        keys_BSD = None if self.attention is None else self.attention.keys(memory.last_hidden_state)
        x_BTD = self.dropout(self.embed_tokens(input_ids))
        cache.length += input_ids.shape[1]
        if not self.config.input_feeding:
            states_BTD, cache.state = self.recurrence(x_BTD, mask_BT, cache.state)
            return self._attend(states_BTD, memory.last_hidden_state, keys_BSD, memory_mask_BS)
        if cache.fed_BD is None:
            cache.fed_BD = torch.zeros_like(x_BTD[:, 0])
        vectors, weights = [], []
        for t in range(x_BTD.shape[1]):
            x_B1D = torch.cat([x_BTD[:, t : t + 1], cache.fed_BD.unsqueeze(1)], -1)
            state_B1D, state = self.recurrence(x_B1D, None, cache.state)
            vector_B1D, weight_B1S = self._attend(state_B1D, memory.last_hidden_state, keys_BSD, memory_mask_BS)
            cache.state, cache.fed_BD = self._where_real(mask_BT, t, cache, state, vector_B1D[:, 0])
            vectors.append(vector_B1D)
            weights.append(weight_B1S)
        return torch.cat(vectors, 1), torch.cat(weights, 1)

    def _attend(
        self, states_BTD: torch.Tensor, memory_BSD: torch.Tensor, keys_BSD: torch.Tensor | None, mask_BS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The attentional vectors of decoder states, and their weights, whose rows sum to one."""
        if self.attention is None:
            return self.dropout(torch.tanh(self.output(states_BTD))), None
        scores_BTS = self.attention(states_BTD, keys_BSD)
        # Not -inf: a row whose keys are all masked must stay finite.
        scores_BTS = scores_BTS.masked_fill(~mask_BS.bool().unsqueeze(1), torch.finfo(scores_BTS.dtype).min)
        weights_BTS = scores_BTS.softmax(-1)
        mixed_BTD = torch.cat([weights_BTS @ memory_BSD, states_BTD], -1)
        return self.dropout(torch.tanh(self.output(mixed_BTD))), weights_BTS

    @staticmethod
    def _where_real(
        mask_BT: torch.Tensor | None, t: int, cache: RecurrentCache, state: State, fed_BD: torch.Tensor
    ) -> tuple[State, torch.Tensor]:
        """The new state and vector in rows with a token at t, the former ones in rows with a pad."""
        if mask_BT is None:
            return state, fed_BD
        real_B1 = mask_BT[:, t].bool().unsqueeze(1)
        kept = tuple(torch.where(real_B1.unsqueeze(2), new, old) for new, old in zip(state, cache.state, strict=True))
        return kept, torch.where(real_B1, fed_BD, cache.fed_BD)


class RecurrentSeq2SeqForConditionalGeneration(PreTrainedModel, PaperGenerationMixin):
    """The recurrent translation model, with the Transformer's loss, decoding, pipeline and Hub folder."""

    config_class = RecurrentSeq2SeqConfig
    config: RecurrentSeq2SeqConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    # As the Transformer: Trainer then passes num_items_in_batch.
    accepts_loss_kwargs = True

    def __init__(self, config: RecurrentSeq2SeqConfig):
        super().__init__(config)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.loss = SmoothedLoss(config.label_smoothing, config.label_smoothing_over)
        if config.embedding_sharing != "none":
            self._tied_weights_keys = {"lm_head.weight": "decoder.embed_tokens.weight"}
        if config.embedding_sharing == "all":
            self._tied_weights_keys["encoder.embed_tokens.weight"] = "decoder.embed_tokens.weight"
        self.post_init()
        self.generation_config = paper_generation_config(config)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.embedding_sharing == "all":
            self.decoder.embed_tokens = value

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # torch's own for recurrent layers; Glorot for the rest, and embeddings of variance 1 / d_model, as the
        # Transformer's here.
        if isinstance(module, nn.RNNBase):
            bound = 1 / math.sqrt(module.hidden_size)
            for parameter in module.parameters():
                init.uniform_(parameter, -bound, bound)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: RecurrentEncoderOutput | tuple | None = None,
        cache: RecurrentCache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        compute_logits: bool | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Source (B, S), target so far (B, T) or labels (B, T) -> logits (B, T, N) and, given labels, the loss.

        The arguments are those of VanillaTransformerForConditionalGeneration.forward. cross_attentions holds one
        tensor (B, 1, T, S) where there is attention.
        """
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        elif not isinstance(encoder_outputs, RecurrentEncoderOutput):
            encoder_outputs = RecurrentEncoderOutput(*encoder_outputs)
        memory_BSD = encoder_outputs.last_hidden_state
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        elif attention_mask is None:
            attention_mask = torch.ones(memory_BSD.shape[:2], dtype=torch.bool, device=memory_BSD.device)
        cache = RecurrentCache() if cache is None else cache
        if decoder_attention_mask is None and cache.get_seq_length() == 0:
            decoder_attention_mask = prompt_mask(decoder_input_ids, self.config)
        if decoder_attention_mask is not None:
            decoder_attention_mask = decoder_attention_mask[:, -decoder_input_ids.shape[1] :]
        hidden_BTD, weights_BTS = self.decoder(
            decoder_input_ids, decoder_attention_mask, encoder_outputs, attention_mask, cache
        )
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
            cache=None if labels is not None or use_cache is False else cache,
            cross_attentions=None if weights_BTS is None else (weights_BTS.unsqueeze(1),),
            encoder_last_hidden_state=memory_BSD,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels shifted right: decoder_start_token_id stands at each row's first label, pads where labels are -100."""
        return shifted_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *_: Any) -> None:
        # transformers would make one of keys and values.
        if generation_config.use_cache is not False and model_kwargs.get("cache") is None:
            model_kwargs["cache"] = RecurrentCache()


RecurrentSeq2SeqForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

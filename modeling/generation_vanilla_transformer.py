"""Decoding as the paper does it, inside transformers' `generate`: length penalty, length cap, exact early stopping.

Section 6.1: beam size 4, length penalty alpha = 0.6 (Wu et al. 2016, equation 14), output at most input length + 50,
terminated early when possible. Ships to the Hub beside the weights; imports torch and transformers alone.
"""

import copy
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, StoppingCriteria, StoppingCriteriaList
from transformers.generation import GenerationMixin

# Shapes: B sentences, R rows of the search (sentences x beams), T target positions so far.

LENGTH_PENALTY_TYPES = ("gnmt", "power")
# What transformers takes a max_length that nobody has set for.
DEFAULT_MAX_LENGTH = 20


def paper_generation_config(config: PreTrainedConfig) -> GenerationConfig:
    """The generation config saved with a model: section 6.1's search, its special tokens, and never a pad."""
    suppressed = [config.pad_token_id] + ([config.bos_token_id] if config.bos_token_id is not None else [])
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        max_new_tokens_over_input=50,
        early_stopping="never",
        suppress_tokens=[token for token in suppressed if token != config.eos_token_id],
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def prompt_mask(ids_BT: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor | None:
    """Masks the pads of decoder input that holds a token after a pad, (B, T); None where no row does.

    Prompts of several lengths are padded on the left, or between <s> and the prompt; a pad on the right needs no mask,
    lying in every real token's future.
    """
    # Marian starts its decoder with the pad token: a pad then says nothing.
    if config.pad_token_id == config.decoder_start_token_id:
        return None
    real_BT = ids_BT.ne(config.pad_token_id)
    return real_BT.long() if bool((real_BT[:, 1:] & ~real_BT[:, :-1]).any()) else None


class GNMTPenalty(float):
    """alpha, such that `length ** alpha` is GNMT's ((5 + length) / 6) ** alpha.

    transformers' beam search divides log-probabilities by `length ** length_penalty`; length counts </s>.
    """

    def __rpow__(self, length: int | torch.Tensor) -> float | torch.Tensor:
        return ((5 + length) / 6) ** float(self)


class StopWhenSettled(str):
    """early_stopping = "never" with what makes it as quick as it can be and still exact.

    A sentence's search ends when its best open hypothesis, grown to the sentence's own cap at no further cost, could
    not enter the `returned` best finished ones (tensor2tensor's rule, for one or more returned).
    """

    returned: int
    caps: torch.Tensor | None

    def __new__(cls, returned: int, caps: torch.Tensor | None) -> "StopWhenSettled":
        rule = super().__new__(cls, "never")
        rule.returned, rule.caps = returned, caps
        return rule


class SentenceCap(StoppingCriteria):
    """Stops each sentence at its own number of new tokens, so that its output does not depend on the batch."""

    def __init__(self, caps: torch.Tensor):
        self.caps = caps  # (B,)
        self.prompt: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.prompt is None:  # the first call comes after the first new token
            self.prompt = input_ids.shape[1] - 1
        rows_per_sentence = input_ids.shape[0] // len(self.caps)
        caps_R = self.caps.to(input_ids.device).repeat_interleave(rows_per_sentence)
        return input_ids.shape[1] - self.prompt >= caps_R


class PaperGenerationMixin(GenerationMixin):
    """`generate` with three more settings, saved in generation_config.json:

    length_penalty_type: "gnmt", or "power" for transformers' own length ** length_penalty;
    max_new_tokens_over_input: a sentence's output holds at most its input's tokens plus this many; an explicit
    max_new_tokens or max_length takes its place (but not a saved max_length of 20, transformers' default);
    early_stopping = "never": searches until no better hypothesis can come, and no longer.
    """

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        **kwargs: Any,
    ) -> Any:
        """As transformers' `generate`. Raises ValueError for an unknown length_penalty_type."""
        setting = _Settings(kwargs, generation_config, self.generation_config)
        kind = setting.value("length_penalty_type", "power")
        if kind not in LENGTH_PENALTY_TYPES:
            raise ValueError(f"length_penalty_type = {kind!r}: choose {' or '.join(LENGTH_PENALTY_TYPES)}")
        ids = inputs if inputs is not None else kwargs.get("input_ids")
        if kwargs.get("attention_mask") is None and ids is not None and not ids.is_floating_point():
            # The encoder would find the pads by itself, the decoder's later steps no longer see the ids.
            kwargs["attention_mask"] = ids.ne(self.config.pad_token_id).long()
        resolved: dict[str, Any] = {}
        if kind == "gnmt" and setting.value("num_beams", 1) > 1:
            resolved["length_penalty"] = GNMTPenalty(setting.value("length_penalty", 1.0))
        over_input = setting.value("max_new_tokens_over_input")
        if over_input is not None and self.generation_config.max_length == DEFAULT_MAX_LENGTH:
            # Seq2SeqTrainer writes it there after its first batch of predictions; nobody asked for it.
            self.generation_config.max_length = None
        explicit = setting.value("max_new_tokens") is not None or setting.value("max_length") is not None
        if over_input is not None and not explicit:
            caps = self._caps(inputs, kwargs, over_input)
            resolved["max_new_tokens"] = int(caps.max())
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), SentenceCap(caps)])
        # transformers knows neither name as an argument, and warns where arguments meet a generation_config.
        for name in ("length_penalty_type", "max_new_tokens_over_input", *resolved):
            kwargs.pop(name, None)
        if generation_config is None:
            kwargs |= resolved
        else:
            generation_config = copy.deepcopy(generation_config)
            for name, value in resolved.items():
                setattr(generation_config, name, value)
        return super().generate(
            inputs, generation_config=generation_config, stopping_criteria=stopping_criteria, **kwargs
        )

    def _caps(self, inputs: torch.Tensor | None, kwargs: dict[str, Any], over_input: int) -> torch.Tensor:
        """The most new tokens of each sentence, (B,): what the input allows and, where learned, the positions."""
        caps = self._source_lengths(inputs, kwargs) + over_input
        positions = getattr(self.config, "max_target_positions", None)  # recurrent models have no positions
        if positions is not None:
            prompt = kwargs.get("decoder_input_ids")
            taken = 0 if prompt is None else prompt.shape[1]
            caps = caps.clamp(max=positions - taken)
        return caps.clamp(min=1)

    def _source_lengths(self, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor:
        """Tokens of each source sentence without padding, (B,)."""
        if kwargs.get("attention_mask") is not None:
            return kwargs["attention_mask"].long().sum(1)
        states = inputs if inputs is not None else kwargs.get("inputs_embeds")
        if states is None:
            states = kwargs["encoder_outputs"][0]
        return torch.full((states.shape[0],), states.shape[1], device=states.device)

    def _prepare_decoder_input_ids_for_generation(
        self, batch_size: int, model_input_name: str, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """As transformers', which puts <s> before prompts unless one starts with it: pads before all hide that."""
        prompts, pad = model_kwargs.get("decoder_input_ids"), self.config.pad_token_id
        if prompts is not None and pad != self.config.decoder_start_token_id:
            first = int(prompts.ne(pad).any(0).long().argmax())
            model_kwargs["decoder_input_ids"] = prompts[:, first:]
            if model_kwargs.get("decoder_attention_mask") is not None:
                model_kwargs["decoder_attention_mask"] = model_kwargs["decoder_attention_mask"][:, first:]
        return super()._prepare_decoder_input_ids_for_generation(
            batch_size, model_input_name, model_kwargs, *args, **kwargs
        )

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As transformers', with the mask of prompts padded on the left, which the sliced ids no longer show."""
        if kwargs.get("decoder_attention_mask") is None:
            kwargs["decoder_attention_mask"] = prompt_mask(input_ids, self.config)
        return super().prepare_inputs_for_generation(input_ids, *args, **kwargs)

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        # generation_config is generate's own copy.
        if generation_config.early_stopping == "never" and not generation_config.do_sample:
            caps = next((rule.caps for rule in stopping_criteria if isinstance(rule, SentenceCap)), None)
            generation_config.early_stopping = StopWhenSettled(generation_config.num_return_sequences, caps)
        return super()._beam_search(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)

    @staticmethod
    def _check_early_stop_heuristic(
        is_early_stop_heuristic_unsatisfied: torch.Tensor,
        running_beam_scores: torch.Tensor,
        beam_scores: torch.Tensor,
        is_sent_finished: torch.Tensor,
        cur_len: int,
        max_length: int,
        decoder_prompt_len: int,
        early_stopping: bool | str,
        length_penalty: float,
    ) -> torch.Tensor:
        # A penalty below 0 favours short outputs, and log-probabilities above 0 do not exist: transformers' rules hold.
        if not isinstance(early_stopping, StopWhenSettled) or length_penalty <= 0:
            return GenerationMixin._check_early_stop_heuristic(
                is_early_stop_heuristic_unsatisfied,
                running_beam_scores,
                beam_scores,
                is_sent_finished,
                cur_len,
                max_length,
                decoder_prompt_len,
                early_stopping,
                length_penalty,
            )
        longest_B1 = torch.full_like(beam_scores[:, :1], max_length - decoder_prompt_len)
        if early_stopping.caps is not None:
            longest_B1 = longest_B1.minimum(early_stopping.caps.to(longest_B1).unsqueeze(1))
        if isinstance(length_penalty, GNMTPenalty):
            norm_B1 = length_penalty.__rpow__(longest_B1)  # `**` would ask the tensor first
        else:
            norm_B1 = longest_B1**length_penalty
        best_possible_B1 = running_beam_scores[:, :1] / norm_B1
        last_returned_B1 = beam_scores[:, early_stopping.returned - 1 : early_stopping.returned]
        return is_early_stop_heuristic_unsatisfied & (best_possible_B1 > last_returned_B1)


class _Settings:
    """A generation setting's value: the call's, else the given config's, else the model's."""

    def __init__(self, kwargs: dict[str, Any], given: GenerationConfig | None, saved: GenerationConfig):
        self.kwargs, self.configs = kwargs, [config for config in (given, saved) if config is not None]

    def value(self, name: str, default: Any = None) -> Any:
        if self.kwargs.get(name) is not None:
            return self.kwargs[name]
        return next((v for config in self.configs if (v := getattr(config, name, None)) is not None), default)

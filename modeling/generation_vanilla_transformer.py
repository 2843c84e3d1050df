"""Decoding as the paper does it, inside transformers' `generate`: GNMT length penalty, length cap, exact early stopping.

Section 6.1: beam size 4, length penalty alpha = 0.6 (Wu et al. 2016, equation 14), output at most input length + 50,
terminated early when possible. Ships to the Hub beside the weights; imports torch and transformers alone.
"""

from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, StoppingCriteria, StoppingCriteriaList
from transformers.generation import GenerationMixin

# Shapes: B sentences, R rows of the search (sentences x beams), T target positions so far.

LENGTH_PENALTY_TYPES = ("gnmt", "power")


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
    max_new_tokens or max_length takes its place;
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
        kind = setting.value("length_penalty_type")
        if kind is not None and kind not in LENGTH_PENALTY_TYPES:
            raise ValueError(f"length_penalty_type = {kind!r}: choose {' or '.join(LENGTH_PENALTY_TYPES)}")
        over_input = setting.value("max_new_tokens_over_input")
        kwargs.pop("max_new_tokens_over_input", None)
        explicit = setting.value("max_new_tokens") is not None or setting.value("max_length") is not None
        if over_input is not None and not explicit:
            caps = self._source_lengths(inputs, kwargs) + over_input
            kwargs["max_new_tokens"] = int(caps.max())
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), SentenceCap(caps)])
        return super().generate(
            inputs, generation_config=generation_config, stopping_criteria=stopping_criteria, **kwargs
        )

    def _source_lengths(self, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor:
        """Tokens of each source sentence without padding, (B,)."""
        if kwargs.get("attention_mask") is not None:
            return kwargs["attention_mask"].long().sum(1)
        ids = inputs if inputs is not None else kwargs.get("input_ids")
        if ids is not None and not ids.is_floating_point():
            return ids.ne(self.config.pad_token_id).sum(1)
        states = ids if ids is not None else kwargs.get("inputs_embeds")
        if states is None:
            states = kwargs["encoder_outputs"][0]
        return torch.full((states.shape[0],), states.shape[1], device=states.device)

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As transformers', with the mask of prompts padded on the left, which the sliced ids no longer show."""
        pad = self.config.pad_token_id
        if kwargs.get("decoder_attention_mask") is None and pad != self.config.decoder_start_token_id:
            if bool(input_ids[:, 0].eq(pad).any()):
                kwargs["decoder_attention_mask"] = input_ids.ne(pad).cumsum(1).gt(0).long()
        return super().prepare_inputs_for_generation(input_ids, *args, **kwargs)

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        # generation_config is generate's own copy; the search reads both values from it.
        if getattr(generation_config, "length_penalty_type", "power") == "gnmt":
            generation_config.length_penalty = GNMTPenalty(generation_config.length_penalty)
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

    def value(self, name: str) -> Any:
        if self.kwargs.get(name) is not None:
            return self.kwargs[name]
        return next((v for config in self.configs if (v := getattr(config, name, None)) is not None), None)

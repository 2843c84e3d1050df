"""`generate` for greedy and beam search on a CPU: the same tokens by a decoder and a search of this folder's own.

Whoever asks for more than tokens (scores, attention, sampling, a cache to go on from, rules of their own) gets
transformers' search. Ships to the Hub beside the weights; imports torch, transformers and other files that ship.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from .decoding_vanilla_transformer import DecoderSteps, DecoderWeights
from .generation_vanilla_transformer import PaperGenerationMixin, SentenceCap, StopWhenSettled, prompt_mask
from .search_vanilla_transformer import BeamRules, Ends, beam_search, greedy_search

# Shapes: B sentences, S source positions, T target positions so far, D d_model.


class QuickGenerationMixin(PaperGenerationMixin):
    """PaperGenerationMixin with quick steps where nothing but the tokens is wanted."""

    @contextmanager
    def weights_unchanged(self) -> Iterator[None]:
        """Inside, the caller changes no weight: `generate` packs them for decoding at its first call, not at each."""
        outer = self._kept_weights
        self._kept_weights = outer if outer is not None else []
        try:
            yield
        finally:
            self._kept_weights = outer

    # The packed weights, one or none, inside weights_unchanged; outside it None.
    _kept_weights: list[DecoderWeights] | None = None

    def _decodes_by_steps(self) -> bool:
        """Whether decoding_vanilla_transformer computes what this model's forward does."""
        return False

    def _steps_and_ends(
        self,
        prompt_BT: torch.Tensor,
        beams: int,
        processors: Any,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> tuple[DecoderSteps, Ends] | None:
        """The decoder and the ends of our own search; None where the call asks for more than a search's tokens."""
        given = {name: value for name, value in model_kwargs.items() if value is not None}
        cache, memory_BSD = given.pop("cache", None), given.pop("encoder_outputs")[0]
        source_mask_BS = given.pop("attention_mask", None)
        more = config.return_dict_in_generate or config.do_sample or config.is_assistant
        special = config.cache_implementation or config.prefill_chunk_size or not given.pop("use_cache", True)
        # A cache that the caller holds is to be filled.
        kept = cache is not None and (cache.get_seq_length() > 0 or getattr(cache, "_is_user_defined", False))
        given = {name: value for name, value in given.items() if value is not False}
        if more or special or kept or given or not self._decodes_by_steps():
            return None
        ends = _ends(processors, criteria, config, prompt_BT.shape[1])
        if ends is None or prompt_mask(prompt_BT, self.config) is not None or len(prompt_BT) != len(memory_BSD):
            return None
        if source_mask_BS is not None and source_mask_BS.shape != memory_BSD.shape[:2]:
            return None
        return DecoderSteps(self._weights_for(len(prompt_BT) * beams), memory_BSD, source_mask_BS, beams), ends

    def _weights_for(self, rows: int) -> DecoderWeights:
        if self._kept_weights is None:
            # For one float32 sentence without beams packing takes longer than it saves.
            return DecoderWeights(self, pack=rows > 1 or self.dtype != torch.float32)
        if not self._kept_weights:
            self._kept_weights.append(DecoderWeights(self, pack=True))
        return self._kept_weights[0]

    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        own = self._steps_and_ends(input_ids, 1, logits_processor, stopping_criteria, generation_config, kwargs)
        if own is None:
            return super()._sample(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
        return greedy_search(own[0], input_ids, own[1])

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        # generation_config is generate's own copy.
        config, returned = generation_config, generation_config.num_return_sequences
        settle = config.early_stopping == "never" and not config.do_sample
        prompt_BT, length = input_ids[:: config.num_beams], input_ids.shape[1]
        own = self._steps_and_ends(prompt_BT, config.num_beams, logits_processor, stopping_criteria, config, kwargs)
        candidates = max(2, 1 + (0 if own is None else len(own[1].eos))) * config.num_beams
        if own is None or own[1].possible(self.config.vocab_size) < candidates:
            return super()._beam_search(input_ids, logits_processor, stopping_criteria, config, **kwargs)
        steps, ends = own

        def hopeful(before: Any, running: Any, scores: Any, ended: Any, now: int, caps: Any) -> torch.Tensor:
            return self._check_early_stop_heuristic(
                is_early_stop_heuristic_unsatisfied=before,
                running_beam_scores=running,
                beam_scores=scores,
                is_sent_finished=ended,
                cur_len=now,
                max_length=config.max_length,
                decoder_prompt_len=length,
                early_stopping=StopWhenSettled(returned, caps) if settle else config.early_stopping,
                length_penalty=config.length_penalty,
            )

        rules = BeamRules(
            config.num_beams, returned, candidates, config.length_penalty, config.early_stopping is True, hopeful
        )
        return beam_search(steps, prompt_BT, ends, rules)


def _ends(processors: Any, criteria: StoppingCriteriaList, config: GenerationConfig, prompt: int) -> Ends | None:
    """What `generate` has made of its settings; None where there are rules that our own search does not know."""
    eos, pad = config._eos_token_tensor, config._pad_token_tensor
    known = (MaxLengthCriteria, EosTokenCriteria, SentenceCap)
    if eos is None or pad is None or any(type(rule) not in known for rule in criteria):
        return None
    # transformers' beam search takes a pad numbered 0 for none.
    ends = Ends(eos, int(pad) or (int(eos[0]) if config.num_beams > 1 else 0), config.max_length)
    for rule in criteria:
        if isinstance(rule, SentenceCap):
            ends.caps_B = rule.caps.to(eos.device)
    for processor in processors:
        if type(processor) is SuppressTokensLogitsProcessor:
            ends.suppressed = processor.suppress_tokens.to(eos)  # an empty list of them has another type
        elif type(processor) is MinLengthLogitsProcessor:
            ends.min_length = max(ends.min_length, processor.min_length)
        elif type(processor) is MinNewTokensLengthLogitsProcessor:
            ends.min_length = max(ends.min_length, prompt + processor.min_new_tokens)
        else:
            return None
    return ends

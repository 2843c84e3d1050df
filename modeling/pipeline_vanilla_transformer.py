"""Text in, translation out: the `translation` pipeline, with the call that transformers 4 had.

transformers 5 removed its own. This file ships to the Hub beside the weights and must run without the package: it
imports only torch and transformers.
"""

from collections.abc import Iterable, Mapping, Sized
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Pipeline
from transformers.utils import logging

logger = logging.get_logger(__name__)


class TranslationPipeline(Pipeline):
    """Translates strings with a sequence-to-sequence model and its tokenizer.

    `pipeline("translation", model=folder, trust_remote_code=True)` builds one, so does
    `TranslationPipeline(model=model, tokenizer=tokenizer)`; see `__call__` for what it takes and gives.

    Raises:
        ValueError: without a tokenizer.
    """

    _pipeline_calls_generate = True
    tokenizer: Any
    model: Any
    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False

    def __init__(self, model: Any, tokenizer: Any = None, *, task: str = "translation", **kwargs: Any) -> None:
        super().__init__(model, tokenizer, task=task, **kwargs)
        if self.tokenizer is None:
            raise ValueError("A translation pipeline needs a tokenizer: pass tokenizer=...")

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Translates one string or many.

        Args:
            inputs: a string; a list, tuple or dataset column of strings; or a stream of strings: a generator or other
                iterator, a torch Dataset such as KeyDataset, a column of a streaming dataset.
            batch_size: sentences decoded together, 1 by default; the text does not depend on it.
            return_text, return_tensors: what a result holds: "translation_text" and, with return_tensors=True,
                "translation_token_ids" in its place (both with return_text=True).
            truncation: True cuts a source that is longer than the model's learned positions or the tokenizer's
                model_max_length, with a warning.
            clean_up_tokenization_spaces: given to the tokenizer's decode.
            src_lang, tgt_lang: accepted; a model that knows its languages warns if they are others.
            Everything else goes to the model's `generate`: num_beams, num_return_sequences, max_new_tokens, ...

        Returns:
            For a string, a list of one dict for each returned sequence. For a list, a list in the same order of dicts,
            or of lists of dicts if num_return_sequences is above 1. For a stream, an iterator over such lists of
            dicts. Empty and blank strings give empty translations.

        Raises:
            TypeError: where something is not a string.
            ValueError: a source beyond the learned positions without `truncation`.
        """
        if isinstance(inputs, (str, bytes, Mapping)):
            return super().__call__(inputs, *args, **kwargs)
        if isinstance(inputs, Sized) and not len(inputs):  # the base class looks at the first item
            return []
        if not isinstance(inputs, Iterable) or isinstance(inputs, (Dataset, GeneratorType)):
            return super().__call__(inputs, *args, **kwargs)
        if not isinstance(inputs, Sized):
            return super().__call__((text for text in inputs), *args, **kwargs)
        texts = [_checked(text) for text in inputs]
        results = super().__call__(texts, *args, **kwargs)
        return [result[0] for result in results] if all(len(result) == 1 for result in results) else results

    def _sanitize_parameters(
        self,
        truncation: bool | str | None = None,
        return_text: bool | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        task = self.task.split("_")
        if len(task) == 4 and src_lang is None and tgt_lang is None:  # translation_en_to_de
            src_lang, tgt_lang = task[1], task[3]
        for name, asked in (("source_lang", src_lang), ("target_lang", tgt_lang)):
            trained = getattr(self.model.config, name, None)
            if asked and trained and _language(asked) != _language(trained):
                logger.warning_once(f"This model was trained with {name} {trained!r}; {asked!r} changes nothing.")
        # Assistants are loaded by the base class.
        if getattr(self, "assistant_model", None) is not None:
            generate_kwargs["assistant_model"] = self.assistant_model
            if self.assistant_tokenizer is not None:
                generate_kwargs["assistant_tokenizer"] = self.assistant_tokenizer
        preprocess = {"truncation": truncation}
        postprocess = {
            "return_text": return_text,
            "return_tensors": return_tensors,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        # Only what was given: what a call leaves out must not undo what the constructor was given.
        return _given(preprocess), generate_kwargs, _given(postprocess)

    # The base class annotates what it passes on as one dict each; its own pipelines name theirs, as here.
    def preprocess(self, text: str, truncation: bool | str = False) -> dict[str, Any]:  # type: ignore[override]
        """One sentence as a batch of one: input_ids and attention_mask (1, S), is_blank (1,)."""
        options: dict[str, Any] = {"return_tensors": "pt", "return_token_type_ids": False}
        encoded = self.tokenizer(_checked(text), **options)
        length = encoded["input_ids"].shape[1]
        # Only learned positions end somewhere; a tokenizer may have a limit of its own.
        limit = getattr(self.model.config, "max_source_positions", None)
        if truncation:
            encoded = self.tokenizer(text, truncation=truncation, max_length=limit, **options)
            kept = encoded["input_ids"].shape[1]
            if kept < length:
                logger.warning(f"A source of {length} tokens was cut to its first {kept}.")
        elif limit is not None and length > limit:
            raise ValueError(
                f"The source has {length} tokens and the model's learned positions end at {limit}: "
                f"split it, or pass truncation=True to translate the first {limit} tokens."
            )
        return {**encoded, "is_blank": torch.tensor([not text.strip()])}

    def _forward(  # type: ignore[override]
        self, model_inputs: dict[str, torch.Tensor], **generate_kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """Token ids (B, sequences for each sentence, T)."""
        is_blank_B = model_inputs.pop("is_blank")
        kwargs = self._prepare_generate_kwargs(generate_kwargs)
        training = self.model.training
        # A model fresh from its class or its training would translate with dropout.
        self.model.eval()
        try:
            output = self.model.generate(**model_inputs, tokenizer=self.tokenizer, **kwargs)
        finally:
            self.model.train(training)
        ids = getattr(output, "sequences", output)
        ids_BRT = ids.reshape(len(is_blank_B), -1, ids.shape[-1])
        # Nothing to translate: <s> </s> and padding, whatever the model made of it.
        ids_BRT[is_blank_B, :, 1:] = self.model.config.pad_token_id
        ids_BRT[is_blank_B, :, 1:2] = self.model.config.eos_token_id
        return {"output_ids": ids_BRT}

    def postprocess(  # type: ignore[override]
        self,
        model_outputs: dict[str, torch.Tensor],
        return_text: bool | None = None,
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """The sequences of one sentence as dicts."""
        records: list[dict[str, Any]] = []
        for ids_T in model_outputs["output_ids"][0]:
            record: dict[str, Any] = {}
            if return_tensors:
                record["translation_token_ids"] = ids_T
            if return_text or (return_text is None and not return_tensors):
                record["translation_text"] = self.tokenizer.decode(
                    ids_T, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
                )
            records.append(record)
        return records


def _language(code: str) -> str:
    """zh of zh_CN, zh-Hans and ZH."""
    return code.replace("-", "_").partition("_")[0].lower()


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def _checked(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(
            f"A translation pipeline takes a string, or a list, column or stream of strings; got {type(text).__name__} "
            f"{str(text)[:60]!r}. Of a dataset pass one column, for example dataset['text']."
        )
    return text

"""How good the model is on the dev pairs while it trains: cross-entropy, perplexity, and scores of its translations."""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import datasets
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.training.batching import collate
from vanilla_transformer.training.evaluation import corpus_scores
from vanilla_transformer.training.recipe import DecodingConfig, Recipe
from vanilla_transformer.training.token_ids import PairEncoder
from vanilla_transformer.training.translation import check_lengths, translate_sharded


class Validator:
    """Scores a model on dev pairs; every process calls it with the same model and gets the same scores."""

    def __init__(
        self, recipe: Recipe, accelerator: Accelerator, tokenizer: PreTrainedTokenizerBase, dev: datasets.Dataset
    ):
        data, limit = recipe.data, recipe.evaluation.dev_limit
        pairs = [row["translation"] for row in dev]
        self.sources = [pair[data.source_lang] for pair in pairs]
        self.targets = [pair[data.target_lang] for pair in pairs]
        self._recipe, self._accelerator, self._tokenizer = recipe, accelerator, tokenizer
        self._decoded = slice(limit)
        encode = PairEncoder(tokenizer, max_length=sys.maxsize)  # dev is scored whole
        self._batches = _batches(encode(self.sources, self.targets, 1).to_pylist(), recipe.generation.batch_tokens)
        if recipe.evaluation.decode:
            self._bleu(self.targets[:1], self.targets[:1])  # a wish that cannot be met is found before training

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """validation_loss (nats per target token, without label smoothing), validation_perplexity, and, where the
        recipe decodes, validation_bleu and its lower-cased tokenised form if the recipe asks for that one.
        """
        loss = self._loss(model)
        scores = {"validation_loss": loss, "validation_perplexity": math.exp(min(loss, 700.0))}
        if self._recipe.evaluation.decode:
            scores |= {f"validation_{name}": score["score"] for name, score in self._translation_scores(model).items()}
        return scores

    @torch.no_grad()
    def _loss(self, model: nn.Module) -> float:
        """Cross-entropy per target token over all dev pairs, the batches shared out over the processes."""
        accelerator = self._accelerator
        model.eval()
        totals = torch.zeros(2, dtype=torch.float64)
        # Each process makes the same number of calls, which a sharded model needs; a repeated batch is not counted.
        for first in range(0, len(self._batches), accelerator.num_processes):
            index = first + accelerator.process_index
            batch = collate(self._batches[min(index, len(self._batches) - 1)], self._tokenizer.pad_token_id)
            inputs = {name: values.to(accelerator.device) for name, values in batch.items()}
            total = model(**inputs, num_items_in_batch=1, compute_logits=False).loss.item()
            if index < len(self._batches):
                totals += torch.tensor([total, (batch["labels"] >= 0).sum()], dtype=torch.float64)
        loss, tokens = accelerator.reduce(totals.to(accelerator.device), "sum").tolist()
        return loss / tokens

    def _translation_scores(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        sources, options = self.sources[self._decoded], decoding_options(self._recipe.generation)
        hypotheses = translate_sharded(self._whole(model), self._tokenizer, sources, **options)
        return self._bleu(hypotheses, self.targets[self._decoded])

    def _bleu(self, hypotheses: list[str], references: list[str]) -> dict[str, dict[str, Any]]:
        return corpus_scores(
            hypotheses,
            references,
            target_lang=self._recipe.data.target_lang,
            metrics=["bleu"],
            lowercase_tokenized=self._recipe.evaluation.lowercase_tokenized,
            tokenize=self._recipe.evaluation.tokenize,
        )

    def _whole(self, model: nn.Module) -> PreTrainedModel:
        """The model without its wrappers, all weights on this process; a sharded one is gathered into a copy."""
        accelerator = self._accelerator
        plain = accelerator.unwrap_model(model, keep_torch_compile=False)
        if accelerator.distributed_type != DistributedType.FSDP:
            return plain
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        copy = type(plain)(plain.config)
        copy.load_state_dict(weights)
        copy.generation_config = plain.generation_config
        return copy.to(accelerator.device)


def require_lengths(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, splits: dict[str, datasets.Dataset | None]
) -> None:
    """Raise SentenceTooLongError, before training, for a pair of dev or test that could not be scored then."""
    config, langs = recipe.model.to_config(len(tokenizer)), (recipe.data.source_lang, recipe.data.target_lang)
    encode = PairEncoder(tokenizer, max_length=sys.maxsize)
    for split, pairs in splits.items():
        sources, targets = ([row["translation"][lang] for row in pairs or ()] for lang in langs)
        rows = encode(sources, targets, 1).to_pylist()
        for field, column in (("max_source_positions", "source_ids"), ("max_target_positions", "target_ids")):
            check_lengths(config, field, {f"{row['line']} of {split}": row[column] for row in rows})


def decoding_options(config: DecodingConfig) -> dict[str, Any]:
    """The options of `translation.translate` that a recipe sets; greedy decoding has no use for a length penalty."""
    options = asdict(config)
    return options if config.num_beams > 1 else {**options, "length_penalty": None}


def _batches(rows: Sequence[dict[str, list[int]]], max_tokens: int) -> list[list[dict[str, list[int]]]]:
    """All rows, longest first, in batches of at most `max_tokens` padded tokens a side, or of one row."""
    batches: list[list[dict[str, list[int]]]] = []
    size = 0
    for row in sorted(rows, key=_length, reverse=True):
        if not batches or (len(batches[-1]) + 1) * size > max_tokens:
            batches.append([])
            size = _length(row)
        batches[-1].append(row)
    return batches


def _length(row: dict[str, list[int]]) -> int:
    return max(len(row["source_ids"]), len(row["target_ids"]))

"""The model that a recipe describes, before its first update, and the Hub-ready folder it is saved to."""

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.checkpoint import TRAINING_FILES
from vanilla_transformer.training.durable import whole_folder
from vanilla_transformer.training.memory import is_out_of_memory
from vanilla_transformer.training.recipe import Recipe
from vanilla_transformer.training.validation import decoding_options


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The recipe's model with its first weights, a function of training.seed alone, and its decoding as the default.

    Raises UserError where the memory does not hold it.
    """
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "pad", "eos")}
    config = recipe.model.to_config(
        len(tokenizer),
        source_lang=recipe.data.source_lang,
        target_lang=recipe.data.target_lang,
        decoder_start_token_id=tokenizer.bos_token_id,
        **special,
    )
    torch.manual_seed(recipe.training.seed)
    try:
        model = AutoModelForSeq2SeqLM.from_config(config)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            "The memory does not hold a model of the recipe's sizes; make model.d_model, model.d_ff, the "
            "layers or tokenizer.vocab_size smaller."
        ) from error
    decoding = decoding_options(recipe.generation)
    for name in ("num_beams", "length_penalty", "max_new_tokens_over_input"):
        setattr(model.generation_config, name, decoding[name])
    if recipe.generation.num_beams == 1:
        model.generation_config.early_stopping = None  # belongs to beams; transformers refuses to save it without
    return model


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: dict[str, torch.Tensor],
) -> None:
    """Write a Hub-ready model folder with these weights, which may be gathered from several processes."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # it would break into the loop's own
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
    if shown:
        transformers_logging.enable_progress_bar()


def copy_model(source: Path, target: Path) -> None:
    """Copy a checkpoint, or RUN/best, as a model folder: without the files that only training needs."""
    with whole_folder(target) as temporary:
        for path in source.iterdir():
            if path.is_file() and path.name not in TRAINING_FILES:
                shutil.copyfile(path, temporary / path.name)

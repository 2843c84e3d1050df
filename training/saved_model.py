"""Loads a saved or Hub model to translate with, and refuses one that would give wrong text or run foreign code.

transformers itself draws missing weights at random and says so in a warning, takes any tokenizer for any model, falls
back to pickled weights, and asks at the terminal whether a folder's code may run.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from vanilla_transformer.configuration.errors import UsageError, UserError, problems_error
from vanilla_transformer.training.hub_access import reading_problem
from vanilla_transformer.training.memory import is_out_of_memory
from vanilla_transformer.training.model_files import is_path, require_model_folder
from vanilla_transformer.training.processes import joined_processes
from vanilla_transformer.training.redaction import redacted

# What weights are loaded as; int8 quantises the linear layers afterwards.
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}
# Padding of a vocabulary to a multiple of 64 or 128 leaves fewer numbers than this without a token.
MOST_UNUSED_TOKENS = 256


def load_model(
    model_path: str | os.PathLike[str], device: str | None = None, precision: str = "float32"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A saved or Hub model in evaluation mode and its tokenizer; no code but this package's and transformers' is run.

    `device` defaults to this process's accelerator where there is one, else the CPU; precision int8, linear layers in
    8-bit integers, is for the CPU. Raises UsageError for a precision or device that does not exist, UserError where
    the model cannot be loaded whole, where its weights are pickled, or where its tokenizer is not its own.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"Unknown precision {precision}; choose from {', '.join(PRECISIONS)}.")
    if precision == "int8":
        if device not in (None, "cpu"):
            raise UsageError(f"device = {device}: int8 is for the CPU; leave it out, or take bfloat16.")
        device = "cpu"
    if device is not None:
        _require_device(device)
    name = os.fspath(model_path)
    if is_path(name):
        require_model_folder(Path(name))
    try:
        with _without_warnings():
            model, report = AutoModelForSeq2SeqLM.from_pretrained(
                name,
                dtype=PRECISIONS[precision],
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are told below
                output_loading_info=True,
            )
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # transformers, tokenizers and safetensors each have errors of their own
        raise _not_loaded(name, error) from error
    if problems := [*weight_problems(model, report), *tokenizer_problems(tokenizer, model)]:
        raise problems_error(f"model {name}", problems, UserError)
    model = model.to(device or joined_processes().device).eval()
    return _quantised(model) if precision == "int8" else model, tokenizer


def _quantised(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its linear layers in 8-bit integers: weights by output, activations as they come.

    Embeddings stay as they are, also where the vocabulary layer shares their matrix.
    """
    try:
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
    except ImportError:
        raise UserError(f"torch {torch.__version__} no longer has the 8-bit layers of int8; take bfloat16.") from None
    with warnings.catch_warnings():
        # torch announces that torchao will take this over; torchao's products for CPUs want a compiler where they run.
        warnings.simplefilter("ignore")
        return quantize_dynamic(model, {torch.nn.Linear: per_channel_dynamic_qconfig}, inplace=True)


def weight_problems(model: PreTrainedModel, report: dict[str, Any]) -> list[str]:
    """What is wrong with the weights, by transformers' loading report and by their values: at most six lines."""
    problems = [f"weight {key}: missing in the file" for key in sorted(report["missing_keys"])]
    problems += [f"weight {key}: config.json describes a model without it" for key in sorted(report["unexpected_keys"])]
    problems += [
        f"weight {key}: {tuple(stored)} in the file, {tuple(wanted)} in the model"
        for key, stored, wanted in sorted(report["mismatched_keys"])
    ]
    if not problems:
        weights = model.named_parameters()
        problems = [f"weight {key}: not all of it are finite numbers" for key, w in weights if not w.isfinite().all()]
    more = len(problems) - 5
    return problems[:5] + ([f"and {more} weights more"] if more > 0 else [])


def tokenizer_problems(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> list[str]:
    """Why the tokenizer cannot be the model's, or not with this config: one line each."""
    config, problems = model.config, []
    if len(tokenizer) > config.vocab_size or len(tokenizer) <= config.vocab_size - MOST_UNUSED_TOKENS:
        problems.append(
            f"tokenizer: has {len(tokenizer):,} tokens, and the model {config.vocab_size:,}; put back the tokenizer "
            "that it was trained with"
        )
    for kind in ("eos", "pad"):
        own, wanted = getattr(tokenizer, f"{kind}_token_id"), getattr(config, f"{kind}_token_id")
        if own is not None and own not in (wanted if isinstance(wanted, list) else [wanted]):
            problems.append(f"tokenizer: its {kind} token has number {own}, the model's {wanted}")
    for kind in ("pad", "decoder_start"):
        if getattr(model.generation_config, f"{kind}_token_id") is None:
            problems.append(f"generation_config.json: has no {kind}_token_id, which translating needs")
    return problems


def _not_loaded(name: str, error: Exception) -> UserError:
    if is_out_of_memory(error):
        return UserError(f"{name} does not fit into the memory; try --precision bfloat16, or another machine.")
    if not is_path(name) and isinstance(error, OSError) and (problem := reading_problem("model", name)):
        return UserError(f"{problem} No local folder is called {name} either.")
    lines = (str(error).strip() or type(error).__name__).splitlines()
    # The config's own list of problems is told whole; of the libraries' texts, the rest is advice for programmers.
    reason = "\n".join(lines) if hasattr(error, "exit_code") else lines[0]
    if "custom code" in reason:
        reason = "it needs code of its own, and code that comes with a model is not run."
    if "backend tokenizer" in reason:
        reason = "it has no tokenizer; put the tokenizer.json that it was trained with beside its weights."
    return UserError(redacted(f"Cannot load a translation model from {name}: {reason}"))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep back transformers' table of weights that do not fit."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def _require_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).tolist()
    except Exception as error:  # every backend that is missing has a class of its own for saying so
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"device = {device}: cannot be used here ({reason}); leave it out, or give cpu.") from None

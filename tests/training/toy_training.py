"""A model of a few thousand weights and a corpus of random pairs, for tests of the loop and its checkpoints."""

from pathlib import Path

import datasets
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.loop import Loop
from vanilla_transformer.training.metrics_log import MetricsLog
from vanilla_transformer.training.optimizer import build_adam
from vanilla_transformer.training.recipe import TrainingConfig
from vanilla_transformer.training.run_folder import RunFolder

PAD, EOS, VOCABULARY = 1, 2, 24


def toy_model(seed: int = 1, **fields) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "d_ff": 32, "num_heads": 2}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = VanillaTransformerConfig(**{**sizes, **layers, **fields})
    return VanillaTransformerForConditionalGeneration(config)


def toy_pairs(count: int = 40, seed: int = 7) -> datasets.Dataset:
    """Pairs of 2 to 9 random words a side and the end token; lines count from 1."""
    random = np.random.default_rng(seed)
    sides = [[[*random.integers(4, VOCABULARY, random.integers(2, 10)), EOS] for _ in range(count)] for _ in range(2)]
    features = datasets.Features(
        source_ids=datasets.List(datasets.Value("int32")),
        target_ids=datasets.List(datasets.Value("int32")),
        line=datasets.Value("int64"),
    )
    rows = {"source_ids": sides[0], "target_ids": sides[1], "line": list(range(1, count + 1))}
    return datasets.Dataset.from_dict(rows, features=features)


def toy_loop(folder: Path, model=None, pairs=None, state=None, validate=None, **config) -> Loop:
    """A loop on one process, on the CPU, that writes to `folder`; `config` are keys of the training section."""
    defaults = {"max_steps": 6, "max_source_tokens": 60, "max_target_tokens": 60, "warmup_steps": 4}
    config = TrainingConfig(**{**defaults, "log_every": 1, "save_every": 100, "eval_every": 100, **config})
    AcceleratorState._reset_state()  # other tests have another precision
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if config.precision == "bfloat16" else "no")
    run = RunFolder(folder)
    model = model or toy_model()
    adam = build_adam(model.parameters(), config.adam_beta1, config.adam_beta2, config.adam_epsilon)
    wrapped, optimizer = accelerator.prepare(model, adam)
    state = state or TrainerState(parts=config.gradient_accumulation_steps)
    folder.mkdir(exist_ok=True)
    return Loop(
        config=config,
        accelerator=accelerator,
        model=wrapped,
        optimizer=optimizer.optimizer,
        examples=pairs if pairs is not None else toy_pairs(),
        d_model=model.config.d_model,
        pad_id=PAD,
        state=state,
        run=run,
        log=MetricsLog(run.metrics, state.log_size, state.log_rows),
        save_model=lambda path, weights: model.save_pretrained(path, state_dict=weights),
        validate=validate,
    )

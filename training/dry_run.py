"""What a run would be, without its data: `train --dry-run` checks the recipe and does the arithmetic.

Parameters are counted and activations are weighed on torch's meta device, where a model has shapes and no numbers;
nothing is measured, and nothing is downloaded.
"""

from dataclasses import dataclass

import torch
from torch import nn

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.configuration.errors import UsageError
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerModel
from vanilla_transformer.training.recipe import Recipe

# Tokens a side of the sentences that activations are weighed for: about the mean of news text in the paper's BPE.
SENTENCE = 28
# Bytes for a parameter in training: weight, gradient and Adam's two moments, in float32.
BYTES_A_PARAMETER = 16
# Dense bfloat16 peaks in FLOP/s from the makers' data sheets, for the table of hours.
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
# The share of the peak that the hours are reckoned with. A guess that the run itself will correct.
ASSUMED_SHARE = 0.4


@dataclass(frozen=True)
class DryRun:
    """A run's size; every figure follows from the recipe by arithmetic."""

    updates: int
    processes: int
    micro_batches: int  # of an update, over all processes
    tokens_per_update: tuple[int, int]  # most padded source and target tokens
    tokens_per_micro_batch: tuple[int, int]
    parameters: int
    flops_per_source_token: float  # forward and backward, without attention's n^2 part
    flops_per_target_token: float
    flops: float  # of the whole run
    model_bytes: int  # weights, gradients and Adam of one process
    activation_bytes: int  # kept for the backward pass of one micro-batch of sentences of SENTENCE tokens
    checkpoint_bytes: int  # weights and Adam on disk, one checkpoint
    kept_bytes: int  # all checkpoints that the run keeps at a time, with the best and the final model
    hours: dict[str, float]  # on one GPU of each kind, at ASSUMED_SHARE of its peak


def told(plan: DryRun) -> str:
    """The plan in lines for a reader."""
    source, target = plan.tokens_per_update
    part_source, part_target = plan.tokens_per_micro_batch
    hours = ", ".join(f"{name} {value:.1f}" for name, value in plan.hours.items())
    return "\n".join(
        [
            f"updates: {plan.updates:,}, each of up to {source:,} source and {target:,} target tokens with padding",
            f"micro-batches: {plan.micro_batches} an update on {plan.processes} processes, "
            f"each of up to {part_source:,} and {part_target:,} tokens",
            f"parameters: {plan.parameters:,}",
            f"memory of a process: {_size(plan.model_bytes)} for weights, gradients and Adam, about "
            f"{_size(plan.activation_bytes)} for the activations of a micro-batch of {SENTENCE}-token sentences",
            f"disk: {_size(plan.checkpoint_bytes)} a checkpoint, up to {_size(plan.kept_bytes)} at a time",
            f"FLOPs: {plan.flops_per_source_token:.3g} a source token and {plan.flops_per_target_token:.3g} a target "
            f"token, {plan.flops:.3g} in all",
            f"hours on one GPU, if it reaches {ASSUMED_SHARE:.0%} of its bfloat16 peak (an assumption): {hours}",
        ]
    )


def _size(number: int) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def dry_run(recipe: Recipe, processes: int = 1) -> DryRun:
    """The arithmetic of a recipe on so many processes. Raises UsageError for a model that is no Transformer."""
    training = recipe.training
    if recipe.model.architecture != "vanilla_transformer":
        raise UsageError(f"model.architecture = {recipe.model.architecture}: --dry-run reckons the Transformer only.")
    config = recipe.model.to_config(recipe.tokenizer.vocab_size)
    # A learned table is asked whether positions are in it, which numbers without values cannot tell; what it keeps for
    # the backward pass is nothing beside the rest.
    sinusoids = {"positional_encoding": "sinusoidal", "max_source_positions": None, "max_target_positions": None}
    with torch.device("meta"):
        model = VanillaTransformerModel(config)
        weighed = VanillaTransformerModel(recipe.model.to_config(recipe.tokenizer.vocab_size, **sinusoids))
    parameters = sum(value.numel() for value in {id(value): value for value in model.parameters()}.values())
    if config.embedding_sharing == "none":
        parameters += config.vocab_size * config.d_model
    parameters += config.vocab_size if config.output_bias else 0
    parts = processes * training.gradient_accumulation_steps
    update = (training.max_source_tokens, training.max_target_tokens)
    part = (update[0] // parts, update[1] // parts)
    source, target = token_flops(model, config)
    total = 3 * training.max_steps * (update[0] * source + update[1] * target)
    weights = 4 * parameters
    return DryRun(
        updates=training.max_steps,
        processes=processes,
        micro_batches=parts,
        tokens_per_update=update,
        tokens_per_micro_batch=part,
        parameters=parameters,
        flops_per_source_token=3 * source,
        flops_per_target_token=3 * target,
        flops=total,
        model_bytes=BYTES_A_PARAMETER * parameters,
        activation_bytes=activation_bytes(weighed, part, training.precision == "bfloat16"),
        checkpoint_bytes=3 * weights,
        kept_bytes=(training.keep_last + 1) * 3 * weights + 2 * weights,
        hours={name: total / (peak * ASSUMED_SHARE) / 3600 for name, peak in PEAKS.items()},
    )


def token_flops(model: nn.Module, config: VanillaTransformerConfig) -> tuple[float, float]:
    """FLOPs of the forward pass for one source and one target token: two for each weight of a product.

    The encoder's layers, and the decoder's keys and values of the source, are the source token's; the softmax over the
    vocabulary is the target token's. Attention's own products depend on the lengths and are left out: 3 % at base size
    and 28 tokens.
    """
    source = target = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            of_source = name.startswith("encoder.") or ("cross_attention" in name and name[-6:] in ("k_proj", "v_proj"))
            size = 2 * module.in_features * module.out_features
            source, target = source + size * of_source, target + size * (not of_source)
    return float(source), float(target + 2 * config.d_model * config.vocab_size)


def activation_bytes(model: nn.Module, tokens: tuple[int, int], bfloat16: bool) -> int:
    """Bytes that autograd keeps of one micro-batch with so many padded tokens a side, by asking it.

    The loss over the vocabulary keeps only its chunk and is left out. Attention as the paper writes it is weighed; the
    fused kernels of a GPU keep less.
    """
    length = max(1, min(SENTENCE, *tokens))
    rows = 2  # enough to weigh a row
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is given out twice

    def weigh(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage  # the address of its numbers is 0 on the meta device
        return tensor

    d_model = model.config.d_model
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    with torch.device("meta"):
        embedded = torch.empty(rows, length, d_model, dtype=dtype, requires_grad=True)  # (rows, length, D)
    model = model.to(dtype).train()
    model.set_attn_implementation("eager")
    with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
        model(inputs_embeds=embedded, decoder_inputs_embeds=embedded, use_cache=False)
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept_bytes = sum(storage.nbytes() for key, storage in kept.items() if key not in weights)
    return kept_bytes * (max(tokens) // length) // rows

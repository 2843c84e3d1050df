"""Whether one device computes what another precision or path computes, for gpu_check.py: each check is its figures."""

from collections.abc import Callable
from typing import Any

import torch
from bench_train_weights import config_of
from gpu_check_sides import FIRST_WORD, PAD, SEED, SMOOTHING, bfloat16
from torch.nn.attention import SDPBackend, sdpa_kernel

from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.batching import IGNORED_LABEL

ROWS, LENGTH = 8, 192  # longer than what is computed without fused attention on a CPU
Gradients = dict[str, torch.Tensor]


class Correctness:
    """Loss and gradients of one model on one batch, computed in several ways; dropout is off."""

    def __init__(self, model: Any, device: torch.device):
        torch.manual_seed(SEED)
        self._device = device
        self._model = VanillaTransformerForConditionalGeneration(config_of(model, SMOOTHING)).to(device).eval()
        draw = torch.Generator().manual_seed(SEED)
        self._ids = torch.randint(FIRST_WORD, model.vocabulary, (2, ROWS, LENGTH), generator=draw)

    def checks(self) -> dict[str, Callable[[], dict[str, Any]]]:
        return {
            "sdpa against eager, float32": self.fused,
            "bfloat16 against float32": self.half,
            "flash against eager, bfloat16": self.flash,
            "static cache against growing cache, float32": self.static_cache,
        }

    def _batch(self, padded: bool) -> dict[str, torch.Tensor]:
        mask = torch.ones(ROWS, LENGTH, dtype=torch.int64)
        if padded:
            mask[1::2, LENGTH // 2 :] = 0
        source, target = self._ids
        batch = {
            "input_ids": source.masked_fill(mask == 0, PAD),
            "attention_mask": mask,
            "labels": target.masked_fill(mask == 0, IGNORED_LABEL),
        }
        return {name: tensor.to(self._device) for name, tensor in batch.items()}

    def _computed(self, attention: str, padded: bool) -> tuple[float, Gradients]:
        self._model.set_attn_implementation(attention)
        self._model.zero_grad(set_to_none=True)
        loss = self._model(**self._batch(padded)).loss
        loss.backward()
        gradients = {name: each.grad.float().cpu() for name, each in self._model.named_parameters()}
        return loss.item(), gradients

    def fused(self) -> dict[str, Any]:
        """Fused attention with pads, against the equations: but for rounding the same."""
        eager, fused = (self._computed(attention, padded=True) for attention in ("eager", "sdpa"))
        return compared(eager, fused, loss=1e-5, gradient=1e-3)

    def half(self) -> dict[str, Any]:
        """Autocast to bfloat16, whose numbers have three digits."""
        exact = self._computed("sdpa", padded=True)
        with bfloat16(self._device):
            half = self._computed("sdpa", padded=True)
        return compared(exact, half, loss=1e-2, gradient=1e-1)

    def flash(self) -> dict[str, Any]:
        """torch's flash kernel, and no other, which takes no pads."""
        with bfloat16(self._device):
            eager = self._computed("eager", padded=False)
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                flash = self._computed("sdpa", padded=False)
        return compared(eager, flash, loss=1e-2, gradient=1e-1)

    def static_cache(self) -> dict[str, Any]:
        """Greedy search whose cache has its full size from the start, which transformers compiles on a GPU."""
        self._model.set_attn_implementation("sdpa")
        batch = self._batch(padded=True)
        wanted = {"num_beams": 1, "min_new_tokens": 32, "max_new_tokens": 32}
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        growing, static = (
            self._model.generate(**inputs, **wanted, **options) for options in ({}, {"cache_implementation": "static"})
        )
        same = float((growing == static).all(1).float().mean())
        compiled = self._device.type == "cuda"
        # Random weights put tokens close together: rounding may turn one, and with it the rest of its sentence.
        return {"same_sentences": same, "compiled": compiled, "passed": same >= 0.75}


def compared(
    expected: tuple[float, Gradients], found: tuple[float, Gradients], loss: float, gradient: float
) -> dict[str, Any]:
    """Relative differences of losses and of all gradients together, and whether both are within their bounds."""
    difference = sum(float((found[1][name] - each).square().sum()) for name, each in expected[1].items()) ** 0.5
    size = sum(float(each.square().sum()) for each in expected[1].values()) ** 0.5
    losses = abs(found[0] / expected[0] - 1)
    return {
        "loss": expected[0],
        "loss_differs_by": losses,
        "gradient_differs_by": difference / size,
        "bounds": {"loss": loss, "gradient": gradient},
        "passed": losses <= loss and difference / size <= gradient,
    }

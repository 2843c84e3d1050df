"""transformers' MarianMTModel as Trainer trains it: its LabelSmoother, autocast, fused AdamW without weight decay."""

import torch
from transformers import MarianMTModel
from transformers.trainer_pt_utils import LabelSmoother
from worker import BETAS, EPSILON, LEARNING_RATE, PAD, Batch, Setup, Side, computing_in, serve

IGNORED = -100


class Marian(Side):
    """A variant is an attention implementation and a precision: "sdpa float32"."""

    packages = ("torch", "transformers")

    def __init__(self, setup: Setup):
        self.model = MarianMTModel.from_pretrained(f"{setup.weights}/marian", dtype=torch.float32)
        for name, parameter in self.model.named_parameters():
            if "embed_positions" in name:  # sinusoids, which transformers 5 would train
                parameter.requires_grad_(False)
        self._smoother = LabelSmoother(epsilon=setup.label_smoothing)
        self._adam = torch.optim.AdamW(
            [each for each in self.model.parameters() if each.requires_grad],
            LEARNING_RATE,
            BETAS,
            EPSILON,
            weight_decay=0.0,
            fused=True,
        )

    def prepare(self, batch: Batch) -> dict[str, torch.Tensor]:
        inputs = {"input_ids": batch.source, "attention_mask": batch.mask, "decoder_input_ids": batch.inputs}
        return inputs | {"labels": batch.labels.masked_fill(batch.labels.eq(PAD), IGNORED)}

    def loss(self, variant: str, batch: Batch) -> float:
        self.model.eval()
        with torch.no_grad():
            return float(self._loss(variant, self.prepare(batch)))

    def update(self, variant: str, prepared: dict[str, torch.Tensor]) -> None:
        self._adam.zero_grad(set_to_none=True)
        self._loss(variant, prepared).backward()
        self._adam.step()

    def _loss(self, variant: str, prepared: dict[str, torch.Tensor]) -> torch.Tensor:
        attention, precision = variant.split()
        if self.model.config._attn_implementation != attention:
            self.model.set_attn_implementation(attention)
        inputs = dict(prepared)
        labels = inputs.pop("labels")
        with computing_in(precision):
            return self._smoother(self.model(**inputs, use_cache=False), labels)


if __name__ == "__main__":
    serve(Marian)

"""JoeyNMT: its TrainManager takes the training step, with its model, its loss, and the Adam it builds."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from joeynmt.batch import Batch as JoeyBatch
from joeynmt.config import TrainConfig
from joeynmt.model import build_model
from joeynmt.training import TrainManager
from joeynmt.vocabulary import Vocabulary
from worker import BETAS, BOS, EOS, LEARNING_RATE, PAD, UNK, Batch, Setup, Side, renumbered, serve

# JoeyNMT's own order of the special tokens, by ours.
NUMBERS = {UNK: 0, PAD: 1, BOS: 2, EOS: 3}


class JoeyNMT(Side):
    """A variant is a precision: JoeyNMT's setting fp16 is autocast, which on the CPU computes in bfloat16."""

    packages = ("torch", "joeynmt")

    def __init__(self, setup: Setup):
        roles = {"unk": UNK, "pad": PAD, "bos": BOS, "eos": EOS}
        symbols: dict[str, Any] = {f"{role}_token": f"<{role}>" for role in roles}
        symbols |= {f"{role}_id": NUMBERS[number] for role, number in roles.items()}
        words = [f"word{number}" for number in range(len(NUMBERS), setup.vocabulary)]
        vocabulary = Vocabulary(words, SimpleNamespace(**symbols, sep_token=None, sep_id=None, lang_tags=[]))
        self.model = build_model(_model(setup), vocabulary, vocabulary)
        weights = torch.load(f"{setup.weights}/joeynmt.pt")
        embedding = weights["src_embed.lut.weight"]
        embedding[list(NUMBERS.values())] = embedding[list(NUMBERS)]
        self.model.load_state_dict(weights, strict=False)  # its table of sinusoids is not among them
        self.model.loss_function = ("crossentropy", setup.label_smoothing)
        self._setup = setup
        folder = Path(setup.weights) / "joeynmt"
        folder.mkdir(exist_ok=True)
        self._manager = TrainManager(
            rank=0,
            model=self.model,
            model_dir=folder,
            device=torch.device("cpu"),
            autocast={"device_type": "cpu", "enabled": False},
            train_args=_training(setup),
            dev_args=None,
        )

    def prepare(self, batch: Batch) -> JoeyBatch:
        return JoeyBatch(
            src=renumbered(batch.source, NUMBERS),
            src_length=batch.mask.sum(1),
            src_prompt_mask=None,
            trg=renumbered(torch.cat([batch.inputs[:, :1], batch.labels], 1), NUMBERS),
            trg_prompt_mask=None,
            indices=torch.arange(len(batch.source)),
            device=torch.device("cpu"),
            pad_index=NUMBERS[PAD],
            eos_index=NUMBERS[EOS],
        )

    def loss(self, variant: str, batch: Batch) -> float:
        """JoeyNMT's is a divergence, less than the cross-entropy by the entropy of the smoothed labels."""
        self.model.eval()
        with torch.no_grad(), torch.autocast(**_autocast(variant)):
            total = self.model(return_type="loss", **vars(self.prepare(batch)))[0]
        epsilon = self._setup.label_smoothing
        entropy = -(1 - epsilon) * math.log(1 - epsilon) - epsilon * math.log(epsilon / (self._setup.vocabulary - 2))
        return float(total) / batch.target_tokens + entropy

    def update(self, variant: str, prepared: JoeyBatch) -> None:
        self._manager.autocast = _autocast(variant)
        self._manager._train_step(prepared)
        self._manager.optimizer.step()
        self.model.zero_grad()


def _autocast(precision: str) -> dict[str, Any]:
    return {"device_type": "cpu", "enabled": precision == "bfloat16", "dtype": torch.bfloat16}


def _model(setup: Setup) -> dict[str, Any]:
    """JoeyNMT's description of the paper's model."""
    side = {
        "type": "transformer",
        "num_layers": setup.layers,
        "num_heads": setup.heads,
        "embeddings": {"embedding_dim": setup.d_model, "scale": True},
        "hidden_size": setup.d_model,
        "ff_size": setup.d_ff,
        "dropout": setup.dropout,
        "layer_norm": "post",
    }
    initial = {"initializer": "xavier_uniform", "embed_initializer": "xavier_uniform", "bias_initializer": "zeros"}
    return initial | {"tied_embeddings": True, "tied_softmax": True, "encoder": side, "decoder": side}


def _training(setup: Setup) -> TrainConfig:
    """The section `training`; what is not named here plays no part in a step."""
    fields = dict.fromkeys(TrainConfig._fields)
    fields |= {
        "optimizer": "adam",
        "adam_betas": BETAS,
        "learning_rate": LEARNING_RATE,
        "weight_decay": 0.0,
        "label_smoothing": setup.label_smoothing,
        "normalization": "tokens",
        "batch_multiplier": 1,
        "scheduling": "noam",  # it insists on one; a step here leaves the rate as it is
        "learning_rate_factor": 1,
        "learning_rate_warmup": 4000,
        "minimize_metric": True,
    }
    return TrainConfig(**fields)


if __name__ == "__main__":
    serve(JoeyNMT)

"""eole: its Trainer takes the training step, with its model, its loss, and the Adam it builds."""

from typing import Any

import pyonmttok
import torch
from eole.config.run import TrainConfig
from eole.models.model import get_model_class
from eole.trainer import Trainer, TrainerConfig
from eole.utils import Statistics
from eole.utils.loss import LossCompute
from eole.utils.misc import get_autocast
from eole.utils.optimizers import Optimizer
from torch.amp import GradScaler
from worker import BETAS, BOS, EOS, LEARNING_RATE, PAD, UNK, Batch, Setup, Side, serve

NAMES = {UNK: "<unk>", PAD: "<blank>", BOS: "<s>", EOS: "</s>"}


class Eole(Side):
    """A variant is a precision; bfloat16 is eole's own, compute_dtype = bf16 with autocast and a scaled gradient."""

    packages = ("torch", "eole")

    def __init__(self, setup: Setup):
        config = _config(setup)
        tokens = [NAMES.get(number, f"word{number}") for number in range(setup.vocabulary)]
        vocabulary = pyonmttok.build_vocab_from_tokens(tokens)
        vocabulary.default_id = UNK
        roles = {"unk_token": UNK, "pad_token": PAD, "bos_token": BOS, "eos_token": EOS}
        specials = {role: NAMES[number] for role, number in roles.items()}
        vocabularies = {"src": vocabulary, "tgt": vocabulary, "specials": specials, "decoder_start_token": NAMES[BOS]}
        if [vocabulary[name] for name in NAMES.values()] != [*NAMES]:
            raise RuntimeError("the special tokens have other numbers")
        model_class = get_model_class(config.model)
        self.model = model_class.for_training(config.model, vocabularies, config.training, device_id=-1)
        self._optim = Optimizer.from_config(self.model, config)
        self._scaler = GradScaler("cpu")
        self._trainer = Trainer(
            model=self.model,
            train_loss=LossCompute.from_config(config, self.model, vocabularies),
            valid_loss=None,
            scoring_preparator=None,
            valid_scorers={},
            optim=self._optim,
            config=TrainerConfig(
                norm_method="tokens", n_gpu=0, gpu_rank=-1, dropout=[setup.dropout], attention_dropout=[0.0]
            ),
        )

    def prepare(self, batch: Batch) -> dict[str, Any]:
        target = torch.cat([batch.inputs[:, :1], batch.labels], 1)
        tensors = {"src": batch.source, "tgt": target, "srclen": batch.mask.sum(1)}
        tensors |= {"cid": ["corpus"] * len(target), "cid_line_number": [0] * len(target)}
        return tensors | {"images": None, "prefix_len": None, "tokens": batch.target_tokens}

    def loss(self, variant: str, batch: Batch) -> float:
        self.model.eval()
        prepared = self.prepare(batch)
        with torch.no_grad(), get_autocast(enabled=variant == "bfloat16"):
            output = self.model(prepared["src"], prepared["tgt"], prepared["srclen"])
            total = self._trainer.train_loss(prepared, output.dec_out, output.attns)[0]
        return float(total) / batch.target_tokens

    def update(self, variant: str, prepared: dict[str, Any]) -> None:
        self._optim.use_amp = variant == "bfloat16"
        self._optim._scaler = self._scaler if self._optim.use_amp else None
        self._trainer._train_step([prepared], prepared["tokens"], Statistics(), Statistics())


def _config(setup: Setup) -> TrainConfig:
    """eole's description of its Transformer at these sizes; what it does not name is eole's default."""
    model = {
        "architecture": "transformer",
        "layers": setup.layers,
        "hidden_size": setup.d_model,
        "heads": setup.heads,
        "transformer_ff": setup.d_ff,
        "add_ffnbias": True,
        "generator_bias": False,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "embeddings": {
            "word_vec_size": setup.d_model,
            "position_encoding": True,
            "position_encoding_type": "SinusoidalInterleaved",
        },
    }
    training = {
        "world_size": 0,
        "gpu_ranks": [],
        "compute_dtype": "fp32",
        "optim": "adam",
        "adam_beta2": BETAS[1],
        "learning_rate": LEARNING_RATE,
        "label_smoothing": setup.label_smoothing,
        "normalization": "tokens",
        "max_grad_norm": 0,
        "dropout": [setup.dropout],
        "attention_dropout": [0.0],
        "param_init_method": "xavier_uniform",
        "log_attention_entropy": False,
    }
    return TrainConfig(
        src_vocab="none", tgt_vocab="none", share_vocab=True, data={}, model=model, training=training, seed=1
    )


if __name__ == "__main__":
    serve(Eole)

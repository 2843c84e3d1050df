"""OpenNMT-py: its Trainer takes the training step, with its model, its loss and the Adam it builds."""

import sys
from types import ModuleType
from typing import Any

# OpenNMT-py imports them for cleaning text, which plays no part here.
for absent in ("spacy", "fasttext"):
    sys.modules[absent] = ModuleType(absent)

import onmt.opts  # noqa: E402
import pyonmttok  # noqa: E402
import torch  # noqa: E402
from onmt.model_builder import build_model  # noqa: E402
from onmt.trainer import Trainer  # noqa: E402
from onmt.utils import Statistics  # noqa: E402
from onmt.utils.loss import LossCompute  # noqa: E402
from onmt.utils.optimizers import Optimizer  # noqa: E402
from onmt.utils.parse import ArgumentParser  # noqa: E402
from worker import BOS, EOS, PAD, UNK, Batch, Setup, Side, computing_in, serve  # noqa: E402

NAMES = {UNK: "<unk>", PAD: "<blank>", BOS: "<s>", EOS: "</s>"}


class OpenNMT(Side):
    """A variant is a precision. OpenNMT-py autocasts on GPUs alone: for bfloat16 it is given torch's for the CPU."""

    packages = ("torch", "OpenNMT-py")

    def __init__(self, setup: Setup):
        options = _options(setup)
        tokens = [NAMES.get(number, f"word{number}") for number in range(setup.vocabulary)]
        vocabulary = pyonmttok.build_vocab_from_tokens(tokens)
        vocabulary.default_id = UNK
        vocabularies = {"src": vocabulary, "tgt": vocabulary, "data_task": "seq2seq", "decoder_start_token": NAMES[BOS]}
        if [vocabulary[name] for name in NAMES.values()] != [*NAMES]:
            raise RuntimeError("the special tokens have other numbers")
        self.model = build_model(options, options, vocabularies, None, -1)
        self._trainer = Trainer(
            self.model,
            LossCompute.from_opts(options, self.model, vocabulary),
            None,
            None,
            {},
            Optimizer.from_opt(self.model, options),
            norm_method="tokens",
            n_gpu=0,
            gpu_rank=-1,
            dropout=[setup.dropout],
            attention_dropout=[0.0],
        )

    def prepare(self, batch: Batch) -> dict[str, Any]:
        target = torch.cat([batch.inputs[:, :1], batch.labels], 1)
        tensors = {"src": batch.source.unsqueeze(2), "tgt": target.unsqueeze(2), "srclen": batch.mask.sum(1)}
        return tensors | {"tokens": batch.target_tokens}

    def loss(self, variant: str, batch: Batch) -> float:
        self.model.eval()
        prepared = self.prepare(batch)
        with torch.no_grad(), computing_in(variant):
            output, attention = self.model(prepared["src"], prepared["tgt"], prepared["srclen"])
            total, _ = self._trainer.train_loss(prepared, output, attention)
        return float(total) / batch.target_tokens

    def update(self, variant: str, prepared: dict[str, Any]) -> None:
        torch.cuda.amp.autocast = lambda enabled: computing_in(variant)
        self._trainer._gradient_accumulation([prepared], prepared["tokens"], Statistics(), Statistics())


def _options(setup: Setup) -> Any:
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    given = {
        "data": "{}",
        "src_vocab": "none",
        "share_vocab": None,
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "layers": setup.layers,
        "hidden_size": setup.d_model,
        "word_vec_size": setup.d_model,
        "heads": setup.heads,
        "transformer_ff": setup.d_ff,
        "position_encoding": None,
        "share_embeddings": None,
        "share_decoder_embeddings": None,
        "dropout": setup.dropout,
        "attention_dropout": 0.0,
        "label_smoothing": setup.label_smoothing,
        "normalization": "tokens",
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": 1e-4,
        "max_grad_norm": 0,
        "param_init": 0,
        "param_init_glorot": None,
    }
    words = [word for name, value in given.items() for word in (f"-{name}", value) if word is not None]
    options = parser.parse_args([str(word) for word in words])
    ArgumentParser.update_model_opts(options)
    ArgumentParser.validate_model_opts(options)
    return options


if __name__ == "__main__":
    serve(OpenNMT)

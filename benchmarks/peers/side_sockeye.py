"""Sockeye: its EarlyStoppingTrainer takes the training step, with its traced model, its loss and the Adam it builds."""

import argparse
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from sockeye import arguments, data_io, model, optimizers, training
from sockeye import constants as C
from sockeye.train import create_losses, create_model_config, create_optimizer_config
from worker import BOS, EOS, PAD, UNK, Batch, Setup, Side, make_batch, renumbered, serve

# Sockeye's own numbers of the special tokens.
NUMBERS = {PAD: C.PAD_ID, UNK: C.UNK_ID, BOS: C.BOS_ID, EOS: C.EOS_ID}
LONGEST = 1024
TRACED_ON = [[[5, 6, EOS], [7, EOS]], [[8, EOS], [9, 10, 11, EOS]]]


class Sockeye(Side):
    """A variant is a precision. Sockeye autocasts on GPUs alone: for bfloat16 it is given torch's for the CPU.

    As in its command, the model is traced before it trains, once for each precision.
    """

    packages = ("torch", "sockeye")

    def __init__(self, setup: Setup):
        options = _options(setup)
        config = create_model_config(options, [setup.vocabulary], [setup.vocabulary], LONGEST, LONGEST, _data(setup))
        self.model = model.SockeyeModel(config)
        self.model.apply(model.initialize_parameters)
        self._losses = create_losses(options, [setup.vocabulary])
        config = create_optimizer_config(options)
        adam, arguments_, zero_grad = optimizers.get_optimizer(config)
        self._trainer = training.EarlyStoppingTrainer(
            config=_trainer_config(Path(setup.weights) / "sockeye"),
            optimizer_config=config,
            sockeye_model=self.model,
            model_object=self.model,
            optimizer=adam(self.model.parameters(), **arguments_),
            lr_scheduler=None,
            zero_grad_kwargs=zero_grad,
            loss_functions=self._losses,
            device=torch.device("cpu"),
        )
        self._trainer.state = training.TrainState(C.PERPLEXITY)
        self._traced: dict[str, torch.nn.Module] = {}

    def prepare(self, batch: Batch) -> data_io.Batch:
        source, labels = (renumbered(tokens, NUMBERS).int() for tokens in (batch.source, batch.labels))
        start = torch.full_like(labels[:, :1], C.BOS_ID)
        both = torch.cat([start, labels], 1).unsqueeze(2)
        target, label = data_io.create_target_and_shifted_label_sequences(both)
        return data_io.create_batch_from_parallel_sample(source.unsqueeze(2), target, label)

    def loss(self, variant: str, batch: Batch) -> float:
        self.model.eval()
        sample = self.prepare(batch)
        with torch.no_grad(), _autocast(variant):
            outputs = self.model(sample.source, sample.source_length, sample.target, sample.target_length)
            return float(self._losses[0](outputs, sample.labels)[0])

    def update(self, variant: str, prepared: data_io.Batch) -> None:
        self._trainer.model_object = self._with_loss(variant)
        self._trainer._step(prepared)

    def _with_loss(self, variant: str) -> torch.nn.Module:
        if variant not in self._traced:
            self.model.train()
            sample = self.prepare(make_batch(TRACED_ON))
            inputs = (sample.source, sample.source_length, sample.target, sample.target_length)
            with _autocast(variant):
                traced = torch.jit.trace(self.model, inputs, strict=False)
            self._traced[variant] = Autocast(training.ModelWithLoss(traced, self._losses), variant)
        return self._traced[variant]


class Autocast(torch.nn.Module):
    """A model and its loss computed under autocast."""

    def __init__(self, inner: torch.nn.Module, precision: str):
        super().__init__()
        self.inner, self.precision = inner, precision

    def forward(self, *inputs):
        with _autocast(self.precision):
            return self.inner(*inputs)


def _autocast(precision: str) -> AbstractContextManager:
    # As Sockeye calls it: tracing does not go with the cache of cast weights.
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)


def _options(setup: Setup) -> argparse.Namespace:
    """Sockeye's training options for the paper's post-norm model."""
    parser = argparse.ArgumentParser()
    arguments.add_train_cli_args(parser)
    given = {
        "source": __file__,  # options that it insists on and that play no part here
        "target": __file__,
        "validation-source": __file__,
        "validation-target": __file__,
        "output": "none",
        "shared-vocab": None,
        "num-layers": setup.layers,
        "transformer-model-size": setup.d_model,
        "transformer-attention-heads": setup.heads,
        "transformer-feed-forward-num-hidden": setup.d_ff,
        "transformer-preprocess": "",
        "transformer-postprocess": "drn",
        "transformer-dropout-attention": 0.0,
        "transformer-dropout-act": 0.0,
        "transformer-dropout-prepost": setup.dropout,
        "embed-dropout": setup.dropout,
        "weight-tying-type": C.WEIGHT_TYING_SRC_TRG_SOFTMAX,
        "label-smoothing": setup.label_smoothing,
        "optimizer-betas": "0.9:0.98",
        "initial-learning-rate": 1e-4,
        "gradient-clipping-type": C.GRADIENT_CLIPPING_TYPE_NONE,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", value) if word is not None]
    return parser.parse_args([str(word) for word in words])


def _data(setup: Setup) -> data_io.DataConfig:
    statistics = dict.fromkeys(data_io.DataStatistics.__dataclass_fields__, 0)
    statistics |= {"buckets": [], "num_sents_per_bucket": [], "average_len_target_per_bucket": []}
    return data_io.DataConfig(data_io.DataStatistics(**statistics), LONGEST, LONGEST, 1, 1)


def _trainer_config(folder: Path) -> training.TrainerConfig:
    folder.mkdir(parents=True, exist_ok=True)
    needed = [name for name, field in training.TrainerConfig.__dataclass_fields__.items()]
    fields = dict.fromkeys(needed) | {"output_dir": str(folder), "early_stopping_metric": C.PERPLEXITY}
    return training.TrainerConfig(**fields | {"update_interval": 1})


if __name__ == "__main__":
    serve(Sockeye)

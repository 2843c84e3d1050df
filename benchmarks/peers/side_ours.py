"""This package's own training loop: training/loop.py with the Accelerator, Adam and batcher that `train` gives it.

The loop makes the batches itself, from the same pairs, budgets and seed; it is held up where it logs an update, until
the next request.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate.utils import set_seed
from transformers import AutoModelForSeq2SeqLM
from worker import PAD, Batch, Pipe, Setup, Side, make_batch

from vanilla_transformer.training.acceleration import make_accelerator
from vanilla_transformer.training.batching import IGNORED_LABEL
from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.loop import Loop
from vanilla_transformer.training.metrics_log import MetricsLog
from vanilla_transformer.training.optimizer import build_adam
from vanilla_transformer.training.recipe import DataConfig, Recipe, TrainingConfig
from vanilla_transformer.training.run_folder import RunFolder

NEVER = 10**9


class HeldLog(MetricsLog):
    """The run's log, which lets the loop go on only as far as was asked for."""

    def __init__(self, path: Path, pipe: Pipe, updates: int):
        super().__init__(path)
        self._pipe, self._requests, self._left = pipe, pipe.requests(), updates
        self._seconds: list[float] = []
        self.loop: Loop | None = None
        self._tokens_before, self._began = 0, time.perf_counter()

    def write(self, row: dict[str, Any]) -> None:
        super().write(row)
        now = time.perf_counter()
        self._seconds.append(now - self._began)
        self._left -= 1
        if not self._left:
            self._wait()
            now = time.perf_counter()
        self._began = now

    def _wait(self) -> None:
        """Answer, and read how many updates are to come; with the last request the process ends."""
        tokens = self.loop.state.source_tokens + self.loop.state.target_tokens
        self._pipe.answer({"seconds": self._seconds, "tokens": tokens - self._tokens_before})
        self._seconds, self._tokens_before = [], tokens
        self.loop.optimizer.zero_grad(set_to_none=True)  # as the other sides while they wait
        request = next(self._requests, None)
        if request is None:
            sys.exit()
        self._left = len(request["batches"])


class Ours(Side):
    """`variant` is training.precision, one a process: a run of `train` has one, too."""

    packages = ("torch", "transformers", "accelerate")

    def __init__(self, setup: Setup, plan: dict[str, Any]):
        config = TrainingConfig(
            seed=plan["seed"],
            max_steps=NEVER,
            max_source_tokens=plan["max_source_tokens"],
            max_target_tokens=plan["max_target_tokens"],
            precision=plan["precision"],
            threads=setup.threads,
            log_every=1,
            save_every=NEVER,
            eval_every=NEVER,
        )
        data = DataConfig(corpus=plan["pairs"], source_lang="en", target_lang="de")
        self._config = config
        self._accelerator = make_accelerator(Recipe(data=data, training=config))
        self.model = AutoModelForSeq2SeqLM.from_pretrained(f"{setup.weights}/ours", dtype=torch.float32)
        adam = build_adam(self.model.parameters(), config.adam_beta1, config.adam_beta2, config.adam_epsilon)
        self._wrapped, optimizer = self._accelerator.prepare(self.model, adam)
        self._optimizer = optimizer.optimizer
        self._pairs, self._run = plan["pairs"], RunFolder(plan["run"])

    def loss(self, variant: str, batch: Batch) -> float:
        self.model.eval()
        self.model.loss.train()  # smooths only then; it has no dropout
        labels = batch.labels.masked_fill(batch.labels.eq(PAD), IGNORED_LABEL)
        with torch.no_grad():
            loss = self._wrapped(input_ids=batch.source, attention_mask=batch.mask, labels=labels).loss
        return float(loss)

    def train(self, request: dict[str, Any], pipe: Pipe) -> None:
        """Answer this request and all that follow."""
        set_seed(self._config.seed)
        self._run.path.mkdir(parents=True, exist_ok=True)
        with HeldLog(self._run.metrics, pipe, len(request["batches"])) as log:
            log.loop = Loop(
                config=self._config,
                accelerator=self._accelerator,
                model=self._wrapped,
                optimizer=self._optimizer,
                examples=pairs_in(Path(self._pairs)),
                d_model=self.model.config.d_model,
                pad_id=PAD,
                state=TrainerState(),
                run=self._run,
                log=log,
                save_model=lambda path, weights: None,
            )
            log.loop.train()


def pairs_in(path: Path) -> datasets.Dataset:
    """The benchmark's pairs as the batcher takes them."""
    pairs = json.loads(path.read_text(encoding="utf-8"))
    ids = datasets.List(datasets.Value("int32"))
    features = datasets.Features(source_ids=ids, target_ids=ids, line=datasets.Value("int64"))
    source, target = zip(*pairs, strict=True)
    rows = {"source_ids": list(source), "target_ids": list(target), "line": list(range(1, len(pairs) + 1))}
    return datasets.Dataset.from_dict(rows, features=features)


def main() -> None:
    pipe, side = Pipe(), None
    for request in pipe.requests():
        try:
            if request["do"] == "setup":
                side = Ours(Setup(**request["setup"]), request["plan"])
                pipe.answer(side.facts())
            elif request["do"] == "loss":
                pipe.answer({"loss": side.loss(request["variant"], make_batch(request["pairs"]))})
            else:
                side.train(request, pipe)
        except Exception as error:
            pipe.fail(error)


if __name__ == "__main__":
    main()

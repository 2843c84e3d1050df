"""Training itself: for each update forward, backward, Adam; between updates log, validate, keep checkpoints, stop.

An update is a global batch. Its parts, one micro-batch each, are shared out over processes and accumulation steps, and
neither of these numbers changes the update: the loss is a sum over target tokens divided by the whole update's number
of them, and dropout is seeded by the update and the part.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training import checkpoint
from vanilla_transformer.training.batching import Update, micro_batches, pair_lengths, plan_epoch
from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.metrics_log import MetricsLog, numbers
from vanilla_transformer.training.optimizer import optimizer_tensors
from vanilla_transformer.training.processes import on_main, said_once
from vanilla_transformer.training.progress import ProgressBar
from vanilla_transformer.training.recipe import TrainingConfig
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.schedule import lr_at
from vanilla_transformer.training.stopping import Preempted, PreemptionSignal
from vanilla_transformer.training.streaming import StreamedPairs

logger = logging.getLogger(__name__)

# A run that computes nothing but NaN is stopped rather than left to burn its time.
MAX_SKIPPED_IN_A_ROW = 20


@dataclass
class Loop:
    """One session of training, from `state` on. Every process runs it with equal arguments."""

    config: TrainingConfig
    accelerator: Accelerator
    model: nn.Module  # as prepared by Accelerate
    optimizer: torch.optim.Optimizer  # torch's own: Accelerate's wrapper looks for other packages at every step
    examples: datasets.Dataset | StreamedPairs  # a data set has the columns source_ids, target_ids and line
    d_model: int
    pad_id: int
    state: TrainerState
    run: RunFolder
    log: MetricsLog | None  # on the main process
    save_model: Callable[..., None]  # called with a folder and `weights`, writes a Hub-ready model folder
    validate: Callable[[nn.Module], dict[str, float]] | None = None  # scores, the same on every process
    counters: dict[str, int] = field(default_factory=dict)  # pairs and tokens of the latest epoch's plan

    def train(self) -> str:
        """Train until the first limit is reached and return its name; `state`, model and folder are then at its end.

        Raises Preempted after the checkpoint that SIGTERM or SIGUSR1 asked for, UserError where training cannot go on.
        """
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._seconds_before, self._started = self.state.seconds, time.perf_counter()
        self._preempted = self._warned = False
        self._signal, self._bar = PreemptionSignal(), ProgressBar(self.config, self.state, self.log is not None)
        self.model.train()
        with self._signal, self._bar:
            if self.state.pending_row:
                self._close_update(self.state.pending_row)
            while not (limit := self._limit_reached()):
                self._train_epoch()
        return limit

    def _train_epoch(self) -> None:
        """Train on what is left of the current epoch, or up to a limit."""
        state, before = self.state, self.state.step
        for update in self._updates():
            row = {"step": state.step + 1, "epoch": state.epoch, **self._update(update)}
            if update.last:
                state.epoch, state.update, state.cursor = state.epoch + 1, 0, None
            else:
                state.update, state.cursor = update.number + 1, update.cursor
            self._close_update(row)
            if self._limit_reached():
                return
        if state.step == before:
            raise UserError(
                f"The corpus ended before update {state.update} of epoch {state.epoch}, where the run stood: it is not "
                "the corpus that the run began with. Put that one back, or start a new run in another folder."
            )

    def _update(self, update: Update) -> dict[str, Any]:
        """One optimiser step on all parts of the update; what a log row says about it."""
        started, state, config = time.perf_counter(), self.state, self.config
        row: dict[str, Any]
        state.step += 1
        rate = lr_at(state.step, self.d_model, config.warmup_steps, config.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss, norm = self._agree(self._backward(update), self._gradient_norm())
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
            state.skipped_in_a_row = 0
            row = {"loss": loss, "learning_rate": rate, "gradient_norm": norm}
        else:
            state.skipped += 1
            state.skipped_in_a_row += 1
            row = {"loss": None, "learning_rate": rate, "skipped": state.skipped, "lines": update.lines.tolist()}
        state.source_tokens += update.source_tokens
        state.target_tokens += update.target_tokens
        state.interval_tokens += update.source_tokens + update.target_tokens
        state.interval_seconds += time.perf_counter() - started
        return row | {"tokens_per_second": round(state.interval_tokens / state.interval_seconds, 1)}

    def _backward(self, update: Update) -> torch.Tensor:
        """Add the gradients of this process's parts; returns their share of the update's loss per target token."""
        world, device = self.accelerator.num_processes, self.accelerator.device
        # float64 holds a sum of float32 losses exactly, over parts as over processes; Apple's GPUs do not have it.
        total = torch.zeros((), device=device, dtype=torch.float32 if device.type == "mps" else torch.float64)
        for index, batch in enumerate(update.batches):
            if batch is None and world == 1:
                continue
            inputs = {name: values.to(device, non_blocking=True) for name, values in (batch or self._filler()).items()}
            part = index * world + self.accelerator.process_index
            seed_generators(device, part_seed(self.config.seed, self.state.step, part))
            last = index == len(update.batches) - 1  # processes exchange gradients once an update
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                loss = self.model(**inputs, num_items_in_batch=update.target_tokens).loss
                if batch is None:
                    loss = loss * 0.0
                (loss * world).backward()  # processes take the mean of their gradients, and the sum is wanted
            total += loss.detach()
        return total

    def _filler(self) -> dict[str, torch.Tensor]:
        """One token a side for a process without a part of its own: the others wait for it in every exchange."""
        token = torch.tensor([[int(self.pad_id == 0)]])  # any but the pad
        return {"input_ids": token, "attention_mask": torch.ones_like(token), "labels": token}

    def _gradient_norm(self) -> torch.Tensor:
        """The norm of the whole gradient before any clipping; the same on every process."""
        limit = self.config.max_grad_norm
        if limit is None and self.accelerator.distributed_type != DistributedType.FSDP:
            return torch.nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        # Sharded gradients have no other way to their norm.
        norm = self.accelerator.clip_grad_norm_(self._parameters, math.inf if limit is None else limit)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def _agree(self, loss: torch.Tensor, norm: torch.Tensor) -> tuple[float, float]:
        """The update's loss over all processes and its gradient's norm; also agrees on the clock and on pre-emption.

        The one place in an update that waits for the device and, where there are several, for the other processes.
        """
        seconds = self._seconds_before + time.perf_counter() - self._started
        if self.accelerator.num_processes == 1:
            self.state.seconds, self._preempted = seconds, self._signal.received
            return loss.item(), norm.item()
        clock = seconds if self.accelerator.is_main_process else 0.0
        shares = torch.tensor([0.0, clock, self._signal.received], dtype=torch.float64, device=loss.device)
        shares[0] = loss
        total, self.state.seconds, signals = self.accelerator.reduce(shares, "sum").tolist()
        self._preempted = signals > 0
        return total, norm.item()

    def _close_update(self, row: dict[str, Any]) -> None:
        """What may follow an update: validation, its row in the log, a checkpoint, the end."""
        state, config = self.state, self.config
        validation_due = state.step % config.eval_every == 0 or self._limit_reached() is not None
        validate = self.validate if validation_due else None
        state.pending_row = None
        if validate and self._preempted:
            state.pending_row = row  # there may be no time left to validate; the resumed run begins with it
        else:
            if validate:
                row |= self._validation(validate)
            if validate or "skipped" in row or state.step % config.log_every == 0:
                self._write(row)
        self._bar.show(row)
        if state.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            diverged = UserError(
                f"The loss or its gradient was not a finite number in {MAX_SKIPPED_IN_A_ROW} updates in a row, up to "
                f"step {state.step}; metrics.jsonl names their lines. Try, from the last checkpoint, a lower "
                "training.learning_rate, a longer warm-up, training.max_grad_norm = 1, or precision = float32."
            )
            raise said_once(self.accelerator, diverged)
        if state.step % config.save_every == 0 or self._limit_reached() or self._preempted:
            self._save()
        if self._preempted:
            stopped = Preempted(f"Stopped by a signal after step {state.step}, which is saved; continue with --resume.")
            raise said_once(self.accelerator, stopped)

    def _validation(self, validate: Callable[[nn.Module], dict[str, float]]) -> dict[str, float]:
        """Validate, remember whether this is the best model so far, and keep that one."""
        scores = validate(self.model)
        self.model.train()
        state, metric = self.state, f"validation_{self.config.early_stopping_metric}"
        if metric not in scores:  # BLEU, in a recipe that does not decode
            metric = "validation_loss"
        score = -scores[metric] if metric == "validation_loss" else scores[metric]
        if math.isfinite(score) and (state.best_score is None or score > state.best_score):
            state.best_score, state.best_step, state.validations_since_best = score, state.step, 0
            write = partial(self.save_model, weights=self._weights())
            on_main(self.accelerator, lambda: checkpoint.save_best(self.run.best, state.step, scores, write))
        else:
            state.validations_since_best += 1
        return scores

    def _write(self, row: dict[str, Any]) -> None:
        """Log a row, and give the trackers its numbers."""
        self.state.interval_tokens, self.state.interval_seconds = 0, 0.0
        if self.log is not None:
            self.log.write(row)
        self.accelerator.log(numbers(row), step=row["step"])

    def _save(self) -> None:
        """Write a checkpoint, then let go of those no longer wanted."""
        tensors = optimizer_tensors(self.model, self.optimizer)
        write = partial(self.save_model, weights=self._weights())
        on_main(self.accelerator, lambda: self._write_checkpoint(tensors, write))

    def _write_checkpoint(self, tensors: dict[str, torch.Tensor], write_model: Callable[[Path], None]) -> None:
        if self.log is not None:
            self.state.log_size, self.state.log_rows = self.log.sync()
        folder = self.run.checkpoints / f"step-{self.state.step}"
        checkpoint.save_checkpoint(folder, self.state, tensors, write_model)
        checkpoint.prune(folder, self.config.keep_last, self.config.save_every)

    def _weights(self) -> dict[str, torch.Tensor]:
        """The whole model's weights; every process must call it, the main one gets them all."""
        if self.accelerator.distributed_type == DistributedType.FSDP:
            return self.accelerator.get_state_dict(self.model)
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False).state_dict()

    def _updates(self) -> Iterator[Update]:
        """What is left of the current epoch, this process's parts of it."""
        config, state = self.config, self.state
        what = (config.max_source_tokens, config.max_target_tokens, config.seed, state.epoch, state.parts)
        where = (state.update, self.accelerator.process_index, self.accelerator.num_processes)
        if isinstance(self.examples, StreamedPairs):
            self.counters = self.examples.counters
            return self.examples.updates(*what, *where, pad_id=self.pad_id, cursor=state.cursor)
        plan = plan_epoch(*pair_lengths(self.examples), *what)
        self.counters = plan.counters
        if len(plan.over_budget) and self.accelerator.is_main_process and not self._warned:
            self._warned = True
            logger.warning(
                f"{len(plan.over_budget):,} pairs are longer than a whole update may be (training.max_source_tokens, "
                "training.max_target_tokens) and are left out."
            )
        return micro_batches(self.examples, plan, *where, config.num_workers, pad_id=self.pad_id)

    def _limit_reached(self) -> str | None:
        """The recipe key of the limit that ends the run here, a function of the state alone."""
        state, config = self.state, self.config
        if state.step >= config.max_steps:
            return "max_steps"
        if config.max_epochs is not None and state.epoch > config.max_epochs:
            return "max_epochs"
        if config.max_minutes is not None and state.seconds >= config.max_minutes * 60:
            return "max_minutes"
        if config.patience is not None and state.validations_since_best >= config.patience:
            return "patience"
        return None


def part_seed(seed: int, step: int, part: int) -> int:
    """The seed of all that is random in one part of one update, whichever process computes it and in which session."""
    return int(np.random.SeedSequence((seed, step, part)).generate_state(1, np.uint64)[0])


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the CPU's generator and the device's.

    torch.manual_seed, without a GPU in use, notes each call and its stack for the day when there is one: a millisecond
    and a piece of memory for every micro-batch.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)

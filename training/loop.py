"""Training itself: for each update forward, backward, Adam; between updates log, validate, keep checkpoints, stop.

An update is a global batch. Its parts, one micro-batch each, are shared out over processes and accumulation steps, and
neither of these numbers changes the update: the loss is a sum over target tokens divided by the whole update's number
of them, and dropout is seeded by the update and the part.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
from vanilla_transformer.training.batching import Update, micro_batches, plan_epoch
from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.gradients import Gradients
from vanilla_transformer.training.memory import split
from vanilla_transformer.training.metrics_log import MetricsLog, numbers
from vanilla_transformer.training.optimizer import optimizer_tensors
from vanilla_transformer.training.processes import lost_process_said, said_once
from vanilla_transformer.training.progress import ProgressBar
from vanilla_transformer.training.recipe import TrainingConfig
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.schedule import lr_at
from vanilla_transformer.training.stopping import Preempted, PreemptionSignal
from vanilla_transformer.training.streaming import StreamedPairs
from vanilla_transformer.training.token_columns import pair_lengths
from vanilla_transformer.training.write_retries import write_on_main

logger = logging.getLogger(__name__)


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
        self._gradients = Gradients(self.accelerator, self.model, self.config.seed, self.pad_id)
        self._seconds_before, self._started = self.state.seconds, time.perf_counter()
        self._preempted, self._warned = False, set[str]()
        self._signal, self._bar = PreemptionSignal(), ProgressBar(self.config, self.state, self.log is not None)
        self.model.train()
        with self._signal, self._bar, lost_process_said():
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
        loss, norm, split_lines = self._gradient(update)
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
            state.skipped_in_a_row = 0
            row = {"loss": loss, "learning_rate": rate, "gradient_norm": norm}
        else:
            state.skipped += 1
            state.skipped_in_a_row += 1
            row = {"loss": None, "learning_rate": rate, "skipped": state.skipped, "lines": update.lines.tolist()}
        if split_lines:
            lines = np.unique(np.concatenate(split_lines))
            row = {"split_batches": state.split_batches, "lines": lines.tolist()} | row
        state.source_tokens += update.source_tokens
        state.target_tokens += update.target_tokens
        state.interval_tokens += update.source_tokens + update.target_tokens
        state.interval_seconds += time.perf_counter() - started
        return row | {"tokens_per_second": round(state.interval_tokens / state.interval_seconds, 1)}

    def _gradient(self, update: Update) -> tuple[float, float, list[np.ndarray]]:
        """Compute the update's gradient; its loss, the gradient's norm, the lines of batches that had to be split.

        Where one process runs out of memory, all of them begin again, that one with smaller batches.
        """
        pieces, split_lines = self._gradients.pieces(update), list[np.ndarray]()
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            loss, too_large = self._gradients.add(pieces, self.state.step, update.target_tokens)
            agreed = self._agree(loss, self._gradients.norm(self.config.max_grad_norm), too_large is not None)
            if not self._out_of_memory:
                return *agreed, split_lines
            pieces, lines = split(self.accelerator, pieces, too_large)
            split_lines += lines
            self.state.split_batches += len(lines)
            self._warn_once(
                "memory",
                f"Out of memory in update {self.state.step}: a batch of {len(lines[0])} pairs was split in two, which "
                "changes nothing but the time and the dropout. metrics.jsonl names the lines of all such batches. A "
                "larger training.gradient_accumulation_steps would make batches smaller from the start.",
            )

    def _agree(self, loss: torch.Tensor, norm: torch.Tensor, out_of_memory: bool) -> tuple[float, float]:
        """The update's loss over all processes and its gradient's norm; also agrees on the clock, on pre-emption, and
        on whether the memory held everything.

        The one place in an update that waits for the device and, where there are several, for the other processes.
        """
        seconds = self._seconds_before + time.perf_counter() - self._started
        if self.accelerator.num_processes == 1:
            self.state.seconds, self._preempted = seconds, self._signal.received
            self._out_of_memory = out_of_memory
            return loss.item(), norm.item()
        clock = seconds if self.accelerator.is_main_process else 0.0
        said = [0.0, clock, self._signal.received, out_of_memory]
        shares = torch.tensor(said, dtype=torch.float64, device=loss.device)
        shares[0] = loss
        total, self.state.seconds, signals, failures = self.accelerator.reduce(shares, "sum").tolist()
        self._preempted, self._out_of_memory = signals > 0, failures > 0
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
            if validate or "lines" in row or state.step % config.log_every == 0:
                self._write(row)
        self._bar.show(row)
        if state.skipped_in_a_row >= config.max_skipped_in_a_row:
            diverged = UserError(
                f"The loss or its gradient was not a finite number in {state.skipped_in_a_row} updates in a row, up to "
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
            write = self._model_writer()
            self._keep(lambda: checkpoint.save_best(self.run.best, state.step, scores, write))
        else:
            state.validations_since_best += 1
        return scores

    def _write(self, row: dict[str, Any]) -> None:
        """Log a row, and give the trackers its numbers."""
        self.state.interval_tokens, self.state.interval_seconds = 0, 0.0
        if self.log is not None:
            self.log.write(row)
        try:
            self.accelerator.log(numbers(row), step=row["step"])
        except Exception as error:  # of whatever kind: the rows are in metrics.jsonl, and no run shall end by a tracker
            self._warn_once("trackers", f"A tracker lacks step {row['step']} and may lack later ones: {error!r}")

    def _save(self) -> None:
        """Write a checkpoint, then let go of those no longer wanted."""
        tensors = optimizer_tensors(self.model, self.optimizer)
        write = self._model_writer()
        self._keep(lambda: self._write_checkpoint(tensors, write))

    def _keep(self, write: Callable[[], None]) -> None:
        """Write to the run's folder, as long as it is the run's; try again for as long as the recipe says."""

        def write_to_own_folder() -> None:
            self.run.require()
            write()

        minutes = self.config.write_retry_minutes
        write_on_main(self.accelerator, write_to_own_folder, minutes, lambda: self._signal.received)

    def _write_checkpoint(self, tensors: dict[str, torch.Tensor], write_model: Callable[[Path], None]) -> None:
        if self.log is not None:
            self.state.log_size, self.state.log_rows = self.log.sync()
        folder = self.run.checkpoints / f"step-{self.state.step}"
        checkpoint.save_checkpoint(folder, self.state, tensors, write_model)
        checkpoint.prune(folder, self.config.keep_last, self.config.save_every)

    def _model_writer(self) -> Callable[[Path], None]:
        """What writes the model as it is now to a folder, as often as is tried; every process must call this method."""
        if self.accelerator.distributed_type == DistributedType.FSDP:
            weights = self.accelerator.get_state_dict(self.model)
        else:
            weights = self.accelerator.unwrap_model(self.model, keep_torch_compile=False).state_dict()
        # save_pretrained takes the tensors out of the dictionary that it is given.
        return lambda folder: self.save_model(folder, weights=dict(weights))

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
        if len(plan.over_budget):
            self._warn_once(
                "budget",
                f"{len(plan.over_budget):,} pairs are longer than a whole update may be (training.max_source_tokens, "
                "training.max_target_tokens) and are left out.",
            )
        return micro_batches(self.examples, plan, *where, config.num_workers, pad_id=self.pad_id)

    def _warn_once(self, topic: str, message: str) -> None:
        """Warn on the main process, the first time in this session that the topic comes up."""
        if self.accelerator.is_main_process and topic not in self._warned:
            self._warned.add(topic)
            logger.warning(message)

    def progress(self) -> dict[str, Any]:
        """How far the run is, for its manifest."""
        state = self.state
        return {
            "step": state.step,
            "training_seconds": round(state.seconds, 3),
            "tokens_seen": {"source": state.source_tokens, "target": state.target_tokens},
            "epoch_plan": self.counters,
        }

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

"""transformers' Seq2SeqTrainer set up for fine-tuning: arguments, order of pairs, BLEU of dev, and the log."""

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Sampler
from transformers import (
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from vanilla_transformer.training.durable import write_text
from vanilla_transformer.training.evaluation import corpus_scores
from vanilla_transformer.training.finetune_data import LENGTH, LengthGroupedEpochs
from vanilla_transformer.training.finetune_recipe import FinetuneRecipe

# Written last into a checkpoint: one without it was being written when its process died.
TRAINER_STATE = "trainer_state.json"


class FinetuneTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer that learns from pairs of like length together, in an order that a resumed run repeats."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        arguments = self.args
        update_size = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        lengths = self.train_dataset[LENGTH]
        # The state's epoch is a fraction inside an epoch, and also where a run goes on from there.
        return LengthGroupedEpochs(lengths, update_size, arguments.seed, lambda: math.floor(self.state.epoch or 0))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Weights that are one matrix with another are stored once, and Trainer takes them for missing.
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))


def make_trainer(
    recipe: FinetuneRecipe,
    folder: Path,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    train: datasets.Dataset,
    dev: tuple[datasets.Dataset, list[str]] | None,
    callbacks: Sequence[TrainerCallback],
) -> FinetuneTrainer:
    """The trainer of these pairs; `folder` gets its checkpoints, `dev` is as `validation_pairs` gives it."""
    callbacks = list(callbacks)
    if dev is not None:
        callbacks.append(EarlyStoppingCallback(recipe.finetuning.patience))
    return FinetuneTrainer(
        model,
        training_arguments(recipe, folder, validates=dev is not None),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        train_dataset=train,
        eval_dataset=dev[0] if dev else None,
        processing_class=tokenizer,
        compute_metrics=bleu_metric(tokenizer, dev[1], recipe) if dev and recipe.evaluation.decode else None,
        callbacks=callbacks,
    )


def training_arguments(recipe: FinetuneRecipe, folder: Path, validates: bool) -> Seq2SeqTrainingArguments:
    """Trainer's arguments; without validation the newest checkpoint counts, else the best by BLEU, or by loss."""
    config, decodes = recipe.finetuning, recipe.evaluation.decode
    every = config.eval_every
    rhythm = "epoch" if every is None else "steps"
    return Seq2SeqTrainingArguments(
        str(folder),
        use_cpu=not torch.accelerator.is_available(),
        seed=config.seed,
        # --- what is learned ---
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        warmup_steps=0.1,
        lr_scheduler_type="linear",
        adam_beta1=0.9,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        bf16=config.precision == "bfloat16",
        # --- what is judged and kept ---
        eval_strategy=rhythm if validates else "no",
        eval_steps=every,
        per_device_eval_batch_size=config.batch_size,
        predict_with_generate=validates and decodes,
        prediction_loss_only=not decodes,
        save_strategy=rhythm,
        save_steps=every or 500,
        save_total_limit=2,  # with 1, Trainer ends by deleting the newest, and a resumed run would learn it all again
        load_best_model_at_end=validates,
        metric_for_best_model=("bleu" if decodes else "loss") if validates else None,
        greater_is_better=decodes if validates else None,
        restore_callback_states_from_checkpoint=True,  # how long early stopping has waited
        # --- what is said ---
        logging_steps=10,
        report_to="none",
    )


def bleu_metric(
    tokenizer: PreTrainedTokenizerBase, references: list[str], recipe: FinetuneRecipe
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Corpus BLEU of generated token ids, in the order of the references: text, not tokens put together again."""

    def bleu(prediction: EvalPrediction) -> dict[str, float]:
        ids = prediction.predictions[: len(references)]  # several processes repeat the first rows, to come out even
        ids = np.where(ids < 0, tokenizer.pad_token_id, ids)  # -100 where processes or batches differ in length
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        scores = corpus_scores(
            texts, references, recipe.data.target_lang, metrics=["bleu"], tokenize=recipe.evaluation.tokenize
        )
        return {"bleu": scores["bleu"]["score"]}

    return bleu


class Progress(TrainerCallback):
    """Updates and seconds of the run so far, and its log: a row a logged step, under the names that `train` uses."""

    def __init__(self, metrics: Path, step: int, seconds: float):
        """A run that goes on from update `step`, after `seconds` of training in earlier sessions."""
        self.step, self.seconds = step, seconds
        self._metrics, self._since = metrics, 0.0

    def facts(self) -> dict[str, Any]:
        """How far the run is, for its manifest."""
        return {"step": self.step, "training_seconds": round(self.seconds, 3)}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._since = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.perf_counter()
        self.step, self.seconds, self._since = state.global_step, self.seconds + now - self._since, now
        self._log_what_is_saved(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._log_what_is_saved(control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the whole log, as the checkpoint holds it: a run that goes on from there repeats no row."""
        if state.is_world_process_zero:
            rows = [_row(logged) for logged in state.log_history if "train_runtime" not in logged]
            write_text(self._metrics, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))

    def _log_what_is_saved(self, control: Any) -> None:
        # Trainer's log is a mean since the last row, which a run that is cut off forgets.
        control.should_log = control.should_log or control.should_save


def _row(logged: dict[str, float]) -> dict[str, float | None]:
    values = {name.replace("eval_", "validation_"): value for name, value in logged.items()}
    shown = {name: value for name, value in values.items() if not name.endswith(("_runtime", "_per_second"))}
    return {name: value if math.isfinite(value) else None for name, value in shown.items()}


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint whose writing came to its end; None where there is none."""
    whole = [path for path in folder.glob("checkpoint-*") if _is_whole(path / TRAINER_STATE)]
    return max(whole, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """The update after which Trainer wrote a checkpoint folder."""
    return int(checkpoint.name.rpartition("-")[2])


def _is_whole(state: Path) -> bool:
    try:
        return bool(json.loads(state.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False

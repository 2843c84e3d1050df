"""Training and decoding of one model by three sides on one device, for gpu_check.py."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from bench_train_figures import Dimensions, Work, operations
from bench_train_weights import config_of
from side_torch_transformer import Translator
from transformers import MarianConfig, MarianMTModel
from transformers.trainer_pt_utils import LabelSmoother
from worker import BETAS, BOS, EOS, EPSILON, LEARNING_RATE, PAD, Batch, Setup

from vanilla_transformer.modeling.loss_vanilla_transformer import shifted_right
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.acceleration import close_accelerator, make_accelerator
from vanilla_transformer.training.batching import IGNORED_LABEL, EpochPlan, micro_batches, plan_epoch
from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.loop import Loop
from vanilla_transformer.training.metrics_log import MetricsLog
from vanilla_transformer.training.optimizer import build_adam
from vanilla_transformer.training.recipe import DataConfig, Recipe, TrainingConfig
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.token_columns import pair_lengths

SEED, SMOOTHING, NEVER = 1, 0.1, 10**9
FIRST_WORD = 4
MEAN_LENGTH, LONGEST = 27, 200  # tokens of a sentence of news with </s>


@dataclass(frozen=True)
class Size:
    """A model, and how long it is measured. tokens: padded, a side, of an update."""

    model: Dimensions
    tokens: int
    warm_up: int
    updates: int
    goal: float  # share of the peak


def random_corpus(vocabulary: int, pairs: int) -> datasets.Dataset:
    """Pairs of random words in lengths that spread as those of sentences do, the two of a pair alike."""
    draw = np.random.default_rng(SEED)
    source = np.clip(draw.lognormal(math.log(MEAN_LENGTH * 0.85), 0.6, pairs), 2, LONGEST).astype(int)
    target = np.clip(source * draw.normal(1.0, 0.15, pairs), 2, LONGEST).astype(int)
    sides = [
        [[*draw.integers(FIRST_WORD, vocabulary, length - 1).tolist(), EOS] for length in lengths]
        for lengths in (source, target)
    ]
    ids = datasets.List(datasets.Value("int32"))
    features = datasets.Features(source_ids=ids, target_ids=ids, line=datasets.Value("int64"))
    rows = {"source_ids": sides[0], "target_ids": sides[1], "line": list(range(1, pairs + 1))}
    return datasets.Dataset.from_dict(rows, features=features)


@dataclass(frozen=True)
class Updates:
    """The same updates for every side: those that the loop makes of this corpus."""

    corpus: datasets.Dataset
    plan: EpochPlan
    size: Size

    @classmethod
    def make(cls, size: Size) -> "Updates":
        wanted = (size.warm_up + size.updates + 2) * size.tokens
        corpus = random_corpus(size.model.vocabulary, 2 + wanted // (MEAN_LENGTH // 2))
        plan = plan_epoch(*pair_lengths(corpus), size.tokens, size.tokens, SEED, TrainerState().epoch)
        return cls(corpus, plan, size)

    def work(self, update: int) -> Work:
        source, target = (lengths[self.plan.rows[self._rows(update)]] for lengths in pair_lengths(self.corpus))
        longest = int(source.max()), int(target.max())
        model = self.size.model
        return Work(
            tokens=int(source.sum() + target.sum()),
            padded_tokens=len(source) * sum(longest),
            operations=sum(operations(model, int(s), int(t)) for s, t in zip(source, target, strict=True)),
            padded_operations=len(source) * operations(model, *longest),
        )

    def measured(self) -> Work:
        """The work of the updates behind the warm-up."""
        first = self.size.warm_up
        works = (self.work(number) for number in range(first, first + self.size.updates))
        return sum(works, Work(0, 0, 0, 0))

    def _rows(self, update: int) -> slice:
        return slice(*self.plan.bounds[update])

    def batches(self, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
        count = self.size.warm_up + self.size.updates
        for number, update in enumerate(micro_batches(self.corpus, self.plan, pad_id=PAD)):
            if number == count:
                return
            yield {name: tensor.to(device) for name, tensor in update.batches[0].items()}


class Enough(Exception):
    """Ends the loop before it would write a checkpoint."""


class TimedLog(MetricsLog):
    """Notes when each update was logged, which the loop does when the device has finished it; ends after `updates`."""

    def __init__(self, path: Path, updates: int):
        super().__init__(path)
        self.times: list[float] = []
        self.losses: list[float] = []
        self._updates = updates

    def write(self, row: dict[str, Any]) -> None:
        super().write(row)
        self.times.append(time.perf_counter())
        self.losses.append(row["loss"])
        if len(self.times) == self._updates:
            raise Enough


def train_ours(updates: Updates, device: torch.device, compiled: bool) -> tuple[list[float], list[float]]:
    """Seconds of each measured update of training/loop.py in bfloat16, and the losses of all."""
    size = updates.size
    config = TrainingConfig(
        seed=SEED,
        max_steps=NEVER,
        max_source_tokens=size.tokens,
        max_target_tokens=size.tokens,
        precision="bfloat16",
        compile=compiled,
        log_every=1,
        save_every=NEVER,
        eval_every=NEVER,
    )
    data = DataConfig(corpus="random", source_lang="a", target_lang="b")
    accelerator = make_accelerator(Recipe(data=data, training=config))
    if accelerator.device.type != device.type:
        raise RuntimeError(f"training runs on {accelerator.device.type}, and {device.type} was asked for")
    torch.manual_seed(SEED)
    model = VanillaTransformerForConditionalGeneration(config_of(size.model, SMOOTHING))
    wrapped, adam = accelerator.prepare(model, build_adam(model.to(accelerator.device).parameters()))
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        run = RunFolder(Path(folder))
        with TimedLog(run.metrics, size.warm_up + size.updates) as log, suppress(Enough):
            Loop(
                config=config,
                accelerator=accelerator,
                model=wrapped,
                optimizer=adam.optimizer,
                examples=updates.corpus,
                d_model=size.model.d_model,
                pad_id=PAD,
                state=TrainerState(),
                run=run,
                log=log,
                save_model=lambda path, weights: None,  # never called
            ).train()
    close_accelerator(accelerator)
    times = log.times[size.warm_up - 1 :]
    return [after - before for before, after in zip(times[:-1], times[1:], strict=True)], log.losses


def train_marian(updates: Updates, device: torch.device) -> tuple[list[float], list[float]]:
    """transformers' MarianMTModel of the same size as Trainer trains it: autocast, its smoother, fused AdamW."""
    model = marian(updates.size.model).to(device)
    smoother = LabelSmoother(epsilon=SMOOTHING)

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {**batch, "decoder_input_ids": shifted_right(batch["labels"], PAD, BOS)}
        labels = inputs.pop("labels")
        return smoother(model(**inputs, use_cache=False), labels)

    parameters = [each for name, each in model.named_parameters() if "embed_positions" not in name]
    adam = torch.optim.AdamW(parameters, LEARNING_RATE, BETAS, EPSILON, weight_decay=0.0, fused=True)
    return _trained(updates, device, model, loss, adam)


def marian(model: Dimensions) -> MarianMTModel:
    sizes: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sizes |= {
            f"{side}_layers": model.layers,
            f"{side}_attention_heads": model.heads,
            f"{side}_ffn_dim": model.d_ff,
            f"{side}_layerdrop": 0.0,
        }
    torch.manual_seed(SEED)
    return MarianMTModel(
        MarianConfig(
            vocab_size=model.vocabulary,
            d_model=model.d_model,
            dropout=model.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=1024,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=BOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
            **sizes,
        )
    )


def train_torch(updates: Updates, device: torch.device) -> tuple[list[float], list[float]]:
    """torch.nn.Transformer between one matrix for embeddings and softmax, with torch's loss and fused Adam."""
    size = updates.size
    fields = {name: getattr(size.model, name) for name in ("layers", "d_model", "d_ff", "heads", "vocabulary")}
    setup = Setup(**fields, dropout=size.model.dropout, label_smoothing=SMOOTHING, threads=0, weights="")
    torch.manual_seed(SEED)
    model = Translator(setup).to(device)

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch["labels"]
        with torch.device(device):
            logits = model(Batch(batch["input_ids"], shifted_right(labels, PAD, BOS), labels, 0))
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED_LABEL, label_smoothing=SMOOTHING
        )

    adam = torch.optim.Adam(model.parameters(), LEARNING_RATE, BETAS, EPSILON, fused=True)
    return _trained(updates, device, model, loss, adam)


def _trained(
    updates: Updates,
    device: torch.device,
    model: torch.nn.Module,
    loss_of: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    adam: torch.optim.Optimizer,
) -> tuple[list[float], list[float]]:
    model.train()
    seconds, losses = [], []
    for batch in updates.batches(device):
        began = time.perf_counter()
        adam.zero_grad(set_to_none=True)
        with bfloat16(device):
            loss = loss_of(batch)
        loss.backward()
        adam.step()
        losses.append(loss.item())  # waits for the loss; the rest of the update may still be under way
        wait(device)
        seconds.append(time.perf_counter() - began)
    return seconds[updates.size.warm_up :], losses


def bfloat16(device: torch.device) -> AbstractContextManager:
    return torch.autocast(device.type, torch.bfloat16)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def figures(seconds: list[float], work: Work, peak: float | None) -> dict[str, Any]:
    """Tokens a second and shares of the peak over all measured updates; the shares are None without a peak."""
    taken = sum(seconds)
    return {
        "tokens_per_second": work.tokens / taken,
        "padded_tokens_per_second": work.padded_tokens / taken,
        "seconds_of_an_update": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
        "mfu": peak and work.operations / taken / peak,
        "mfu_with_padding": peak and work.padded_operations / taken / peak,
    }


def decode(
    model: torch.nn.Module, rows: int, length: int, device: torch.device, beams: int, rounds: int, **options: Any
) -> dict[str, Any]:
    """Output tokens a second of `generate`, every hypothesis exactly `length` tokens long; the first round warms up."""
    vocabulary = model.config.vocab_size
    ids = torch.randint(FIRST_WORD, vocabulary, (rows, length), generator=torch.Generator().manual_seed(SEED))
    inputs = {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids, device=device)}
    rates = []
    for _ in range(rounds + 1):
        wait(device)
        began = time.perf_counter()
        model.generate(**inputs, num_beams=beams, min_new_tokens=length, max_new_tokens=length, **options)
        wait(device)
        rates.append(rows * length / (time.perf_counter() - began))
    return {"rows": rows, "beams": beams, "length": length, "tokens_per_second": statistics.median(rates[1:])}

"""What checkpoints cost: time per update with one every 50 updates against none, side by side, on the base model.

    python benchmarks/checkpoint_overhead.py                 # about ten minutes on two cores
    python benchmarks/checkpoint_overhead.py --blocks 2 --every 5 --preset C-n2 --vocabulary 2000   # a look at it

One run of the training loop is cut into blocks of 50 updates; in every other pair of them (with, without, without,
with, ...) the loop saves as training.save_every asks it to, on the path that a real run takes: weights and Adam's state
gathered, written, hashed, forced to disk, renamed, older checkpoints deleted. The updates are of 128 + 128 tokens
instead of the paper's 25,000 + 25,000, which would take minutes each here: a checkpoint costs the same whatever the
update, so the shares below are upper bounds for larger ones. Writes benchmarks/results/checkpoint_overhead.json.
"""

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.durable import listed, write_json
from vanilla_transformer.training.loop import Loop
from vanilla_transformer.training.manifest import LIBRARIES, code_version, hardware
from vanilla_transformer.training.metrics_log import MetricsLog
from vanilla_transformer.training.model_folder import build_model, save_model
from vanilla_transformer.training.optimizer import build_adam
from vanilla_transformer.training.recipe import DataConfig, ModelConfig, Recipe, TokenizerConfig, TrainingConfig
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.tokenizer import train_tokenizer

RESULT = Path(__file__).resolve().parent / "results" / "checkpoint_overhead.json"
TOKENS = 128  # padded, a side, of an update
NEVER = 10**9


class Clock(MetricsLog):
    """The run's log: notes when each update was logged, and with a block's first row turns its checkpoint on or off.

    The loop logs an update before it saves: between the last row of a block and the first row of the next one lie that
    block's checkpoint and one update.
    """

    def __init__(self, path: Path, every: int, saves: list[bool]):
        super().__init__(path)
        self.times: list[float] = []
        self.loop: Loop | None = None
        self._every, self._saves = every, saves

    def write(self, row: dict[str, Any]) -> None:
        super().write(row)
        block, rest = divmod(row["step"], self._every)
        if rest == 1 and block < len(self._saves) and self.loop is not None:
            every = self._every if self._saves[block] else NEVER
            self.loop.config = dataclasses.replace(self.loop.config, save_every=every)
        self.times.append(time.perf_counter())


def words_tokenizer(vocabulary: int) -> PreTrainedTokenizerBase:
    """A tokenizer of that many entries, saved with every checkpoint as a real one is."""
    words = [f"word{number}" for number in range(vocabulary)]
    return train_tokenizer(words, TokenizerConfig(type="words", vocab_size=vocabulary))


def random_pairs(count: int, vocabulary: int) -> datasets.Dataset:
    """Pairs of 10 to 40 tokens a side; the first four entries of a vocabulary are special."""
    draw = np.random.default_rng(1)
    sides = [[draw.integers(4, vocabulary, draw.integers(10, 41)).tolist() for _ in range(count)] for _ in range(2)]
    ids = datasets.List(datasets.Value("int32"))
    features = datasets.Features(source_ids=ids, target_ids=ids, line=datasets.Value("int64"))
    rows = {"source_ids": sides[0], "target_ids": sides[1], "line": list(range(1, count + 1))}
    return datasets.Dataset.from_dict(rows, features=features)


def measure(folder: Path, preset: str, vocabulary: int, every: int, saves: list[bool]) -> tuple[Clock, dict[str, Any]]:
    """Train a block for each of `saves`; when every update was logged, and facts about the model and the machine."""
    tokenizer = words_tokenizer(vocabulary)
    config = TrainingConfig(
        max_steps=every * len(saves) + 1,
        max_source_tokens=TOKENS,
        max_target_tokens=TOKENS,
        log_every=1,
        save_every=NEVER,
        eval_every=NEVER,
    )
    data = DataConfig(corpus="random", source_lang="a", target_lang="b")
    model = build_model(Recipe(data=data, model=ModelConfig(preset=preset), training=config), tokenizer)
    accelerator = Accelerator(cpu=True)
    wrapped, adam = accelerator.prepare(model, build_adam(model.parameters()))
    run = RunFolder(folder)
    saved: list[int] = []

    def save(path: Path, weights: dict[str, torch.Tensor]) -> None:
        saved.append(clock.loop.state.step)
        save_model(model, tokenizer, path, weights)

    with Clock(run.metrics, every, saves) as clock:
        clock.loop = Loop(
            config=config,
            accelerator=accelerator,
            model=wrapped,
            optimizer=adam.optimizer,
            examples=random_pairs(2000, len(tokenizer)),
            d_model=model.config.d_model,
            pad_id=tokenizer.pad_token_id,
            state=TrainerState(),
            run=run,
            log=clock,
            save_model=save,
        )
        clock.loop.train()
    expected = [every * number for number, kind in enumerate(saves, start=1) if kind]
    if saved != [*expected, config.max_steps]:  # a run saves at its end too
        sys.exit(f"The loop saved after the updates {saved}, not after {expected}.")
    newest = max(run.checkpoints.iterdir(), key=lambda path: path.stat().st_mtime)
    sizes = {name: size for name, (size, _) in sorted(listed(newest).items())}
    facts = {
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "checkpoint_bytes": sum(sizes.values()),
        "largest_files": dict(sorted(sizes.items(), key=lambda item: -item[1])[:3]),
        "hardware": hardware(accelerator),
    }
    return clock, facts


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(times: list[float], every: int, saves: list[bool]) -> dict[str, Any]:
    """Seconds per update of both kinds of blocks, of a checkpoint, and its share of training time.

    The first block, a warm-up, is left out. `times` are those of the updates' rows, from the first update on.
    """
    blocks = range(1, len(saves))
    per_update = [(times[(block + 1) * every] - times[block * every]) / every for block in range(len(saves))]
    updates = np.diff(times)
    plain = [float(updates[step]) for block in blocks for step in range(block * every, (block + 1) * every - 1)]
    update = statistics.median(plain)
    checkpoints = [float(updates[(block + 1) * every - 1]) - update for block in blocks if saves[block]]
    with_, without = ([per_update[block] for block in blocks if saves[block] is kind] for kind in (True, False))
    checkpoint, default = statistics.median(checkpoints), TrainingConfig().save_every
    return {
        "seconds_per_update_with": spread(with_),
        "seconds_per_update_without": spread(without),
        "overhead_percent": 100 * (statistics.median(with_) / statistics.median(without) - 1),
        "seconds_of_an_update_alone": spread(plain),
        "seconds_of_a_checkpoint": spread(checkpoints),
        "default_save_every": default,
        "share_of_training_time_at_default_percent": 100 * checkpoint / (checkpoint + default * update),
        # A GPU's updates are shorter; whoever knows theirs can tell from this.
        "share_at_default_is_below_5_percent_if_an_update_takes_at_least_seconds": 19 * checkpoint / default,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12, help="measured blocks, half of them with a checkpoint")
    parser.add_argument("--every", type=int, default=50, help="updates of a block")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to be measured; default: the temporary one")
    parser.add_argument("--output", type=Path, help="write the result here; default for the full size: results/")
    arguments = parser.parse_args()
    saves = [True, *([True, False, False, True] * arguments.blocks)[: arguments.blocks]]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        clock, facts = measure(Path(folder), arguments.preset, arguments.vocabulary, arguments.every, saves)
    result = {
        "name": "checkpoint_overhead",
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/checkpoint_overhead.py", *sys.argv[1:]]),
        "setting": {
            "preset": arguments.preset,
            "checkpoint_every": arguments.every,
            "blocks": saves[1:],
            "tokens_of_an_update": [TOKENS, TOKENS],
            "remark": "the paper's updates are of about 25,000 + 25,000 tokens: their share is smaller",
        },
        **facts,
        "code": code_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "seconds": round(time.perf_counter() - began, 1),
        "result": summary(clock.times, arguments.every, saves),
    }
    print(json.dumps(result, indent=1))
    defaults = (arguments.blocks, arguments.every, arguments.preset, arguments.vocabulary) == (12, 50, "base", 37_000)
    if output := arguments.output or (RESULT if defaults else None):
        write_json(output, result)


if __name__ == "__main__":
    main()

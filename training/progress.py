"""The progress bar on stderr: loss, learning rate, tokens a second, time left."""

import sys
from typing import Any

from tqdm import tqdm

from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.recipe import TrainingConfig


class ProgressBar:
    """A bar over updates; one made with `visible` false does nothing."""

    def __init__(self, config: TrainingConfig, state: TrainerState, visible: bool):
        self._config, self._state = config, state
        self._bar = tqdm(
            total=config.max_steps,
            initial=state.step,
            unit="update",
            file=sys.stderr,
            disable=not visible,
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 30.0,  # a log file gets a line each half minute
        )

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def show(self, row: dict[str, Any]) -> None:
        """Advance to the state's step; `row` is what the log says, or would say, about it."""
        if self._bar.disable:
            return
        state, config = self._state, self._config
        if config.max_minutes is not None and state.seconds > 0:
            # The time limit may come first; tqdm reckons the time left from the number of updates.
            expected = int(state.step * config.max_minutes * 60 / state.seconds)
            self._bar.total = min(config.max_steps, max(state.step, expected))
        parts = {
            "epoch": row["epoch"],
            "loss": "not finite" if row["loss"] is None else f"{row['loss']:.3f}",
            "lr": f"{row['learning_rate']:.2e}",
            "tok/s": f"{row['tokens_per_second']:,.0f}",
        }
        if "validation_bleu" in row:
            parts["BLEU"] = f"{row['validation_bleu']:.2f}"
        self._bar.set_postfix(parts, refresh=False)
        self._bar.update(state.step - self._bar.n)

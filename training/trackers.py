"""Trackers beside metrics.jsonl: every number of a run once, however often the run was killed and continued.

metrics.jsonl is cut back to the rows that the checkpoint counts. What a killed session gave a tracker after that
checkpoint cannot be cut off: TensorBoard hides it when told to, and trackio, which keeps it, is not given it again.
trackio also writes in the background, so a kill loses its last half second of rows; metrics.jsonl gives them back.
"""

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, TensorBoardTracker, TrackioTracker

from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.durable import write_text
from vanilla_transformer.training.metrics_log import numbers
from vanilla_transformer.training.recipe import Recipe
from vanilla_transformer.training.run_folder import RunFolder, flat


def start_trackers(accelerator: Accelerator, recipe: Recipe, run: RunFolder, state: TrainerState) -> None:
    """Open the recipe's trackers for a session that goes on from `state`; on the main process only.

    metrics.jsonl must have been cut back to that state before. trackio is exact where its database lies on this
    machine; on a Space, on a server (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL) or on a network file system, where it
    cannot be read back, updates that a kill made the run repeat are there twice.
    """
    if not recipe.tracking.trackers:
        return
    # A row that waits for its validation is logged by this session.
    first_step = state.step + (state.pending_row is None)
    project, trackers = recipe.tracking.project, list[GeneralTracker]()
    if "tensorboard" in recipe.tracking.trackers:
        trackers.append(_TensorBoard(project, str(run.trackers), purge_step=first_step))
    if "trackio" in recipe.tracking.trackers:
        trackers.append(_Trackio(project, run))
    # TensorBoard's hyper-parameters are numbers, booleans and text.
    config = {
        key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in flat(recipe).items()
    }
    accelerator.log_with = trackers
    with redirect_stdout(sys.stderr):  # trackio greets; stdout is for results
        accelerator.init_trackers(project, config=config)


class _TensorBoard(TensorBoardTracker):
    """Events under RUN/trackers/PROJECT, one file a session."""

    def start(self) -> None:
        super().start()
        self.writer.flush()  # what is to be hidden is so from now on, and not from the first row on

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Only those of the first session: each would be shown as a run of its own."""
        if not any(Path(self.logging_dir).glob("*/hparams.yml")):
            super().store_init_configuration(values)


class _Trackio(TrackioTracker):
    """A trackio run that is given only the numbers that it does not hold yet."""

    def __init__(self, project: str, run: RunFolder):
        super().__init__(project, name=_trackio_name(project, run), resume="allow")
        self._metrics, self._held = run.metrics, set[tuple[int, str]]()

    def start(self) -> None:
        super().start()
        if not _readable():
            return
        from trackio.sqlite_storage import SQLiteStorage

        logged = SQLiteStorage.get_logs(self.run_name, self.run.name)
        self._held = {(row["step"], name) for row in logged for name in row}
        for line in self._metrics.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            self.log(numbers(row), step=row["step"])

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        missing = {name: value for name, value in values.items() if (step, name) not in self._held}
        if missing:
            super().log(missing, step=step, **options)


def _trackio_name(project: str, run: RunFolder) -> str:
    """The run's name in the project, kept in RUN/trackers: the folder's, with a number where another run has it."""
    kept = run.trackers / "trackio.txt"
    if not kept.exists():
        from trackio.sqlite_storage import SQLiteStorage

        taken, base = set(SQLiteStorage.get_runs(project)), run.path.resolve().name
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        run.trackers.mkdir(exist_ok=True)
        write_text(kept, name + "\n")
    return kept.read_text(encoding="utf-8").strip()


def _readable() -> bool:
    """Whether all that trackio was given can be read back on this machine."""
    from trackio.utils import get_storage_mode

    remote = os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL")
    return not remote and get_storage_mode() == "sqlite"

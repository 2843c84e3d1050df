"""What trackers hold after a run was killed and continued, read back with their own libraries."""

import time
import uuid

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from vanilla_transformer.training import trackers
from vanilla_transformer.training.checkpoint import TrainerState
from vanilla_transformer.training.metrics_log import MetricsLog, numbers
from vanilla_transformer.training.recipe import DataConfig, Recipe, TrackingConfig
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.trackers import start_trackers


def row(step, **scores):
    return {"step": step, "epoch": 1, "loss": 5.0 - step, "lines": [1], **scores}


class Session:
    """One session of a run: from `state` on, it logs rows as the loop does, and may be killed."""

    def __init__(self, folder, tracker, project, state, log_size=0):
        folder.mkdir(exist_ok=True)
        run = RunFolder(folder)
        recipe = Recipe(
            data=DataConfig(corpus="reverse", source_lang="fwd", target_lang="rev"),
            tracking=TrackingConfig(trackers=[tracker], project=project),
        )
        if tracker == "tensorboard":
            time.sleep(1 - time.time() % 1)  # it orders the sessions' files by the second in which they begin
        AcceleratorState._reset_state()
        self.accelerator = Accelerator(cpu=True)
        self.log = MetricsLog(run.metrics, log_size)
        start_trackers(self.accelerator, recipe, run, state)

    def write(self, *rows, tracked=True):
        for some_row in rows:
            self.log.write(some_row)
            if tracked:  # or the kill came before
                self.accelerator.log(numbers(some_row), step=some_row["step"])
        return self.log.size

    def close(self):
        self.accelerator.end_training()


@pytest.fixture
def events(tmp_path):
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(name):
        accumulator = module.EventAccumulator(str(tmp_path / "run" / "trackers" / "demo")).Reload()
        return [(event.step, event.value) for event in accumulator.Scalars(name)]

    return read


def test_tensorboard_shows_each_row_once_after_a_kill(tmp_path, events):
    start = (tmp_path / "run", "tensorboard", "demo")
    first = Session(*start, TrainerState())
    size = first.write(row(1), row(2), row(3, validation_loss=7.0))
    first.write(row(4), row(5), row(6, validation_loss=6.0))  # after the checkpoint of step 3
    second = Session(*start, TrainerState(step=3), size)
    assert events("loss") == [(1, 4.0), (2, 3.0), (3, 2.0)]
    second.write(row(4), row(5), row(6, validation_loss=6.0), row(7))
    assert events("loss") == [(step, 5.0 - step) for step in range(1, 8)]
    assert events("validation_loss") == [(3, 7.0), (6, 6.0)]
    assert len(list((tmp_path / "run" / "trackers").rglob("hparams.yml"))) == 1
    for session in (first, second):
        session.close()


def test_a_row_that_waited_for_its_validation_is_shown_once(tmp_path, events):
    start = (tmp_path / "run", "tensorboard", "demo")
    size = Session(*start, TrainerState()).write(row(1))
    waiting = TrainerState(step=2, pending_row=row(2))  # told to stop at step 2
    Session(*start, waiting, size).write(row(2, validation_loss=7.0), row(3))  # and killed after that
    Session(*start, waiting, size).write(row(2, validation_loss=7.0), row(3), row(4))
    assert events("loss") == [(step, 5.0 - step) for step in range(1, 5)]
    assert events("validation_loss") == [(2, 7.0)]


def trackio_rows(project, run="run"):
    from trackio.sqlite_storage import SQLiteStorage

    return [
        {name: value for name, value in row.items() if name != "timestamp"}
        for row in sorted(SQLiteStorage.get_logs(project, run), key=lambda row: row["step"])
    ]


@pytest.fixture
def project():
    pytest.importorskip("trackio")
    return f"test-{uuid.uuid4().hex}"  # its database is the user's, here that of all tests


def test_trackio_holds_each_number_once_and_none_is_lost(tmp_path, project):
    start = (tmp_path / "run", "trackio", project)
    first = Session(*start, TrainerState())
    first.write(row(1))
    size = first.write(row(2), tracked=False)  # a kill takes the rows that wait in trackio's queue
    first.write(row(3), row(4))  # after the checkpoint of step 2
    first.close()
    second = Session(*start, TrainerState(step=2), size)
    second.write(row(3), row(4, validation_loss=7.0), row(5))  # this session validates more often
    second.close()
    rows = trackio_rows(project)
    names = [(found["step"], name) for found in rows for name in found if name != "step"]
    assert len(names) == len(set(names))
    assert [(found["step"], found["loss"]) for found in rows if "loss" in found] == [(s, 5.0 - s) for s in range(1, 6)]
    assert [(found["step"], found["validation_loss"]) for found in rows if "validation_loss" in found] == [(4, 7.0)]


def test_trackio_keeps_runs_of_the_same_name_apart(tmp_path, project):
    for number in ("a", "b"):
        (tmp_path / number).mkdir()
        session = Session(tmp_path / number / "run", "trackio", project, TrainerState())
        session.write(row(1), row(2))
        session.close()
    size = (tmp_path / "a" / "run" / "metrics.jsonl").stat().st_size
    session = Session(tmp_path / "a" / "run", "trackio", project, TrainerState(step=2), size)
    session.write(row(3))
    session.close()
    assert [found["step"] for found in trackio_rows(project)] == [1, 2, 3]
    assert [found["step"] for found in trackio_rows(project, "run-2")] == [1, 2]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TRACKIO_SPACE_ID", "user/space"), ("TRACKIO_SERVER_URL", "http://h"), ("TRACKIO_STORAGE_MODE", "jsonl")],
)
def test_what_trackio_keeps_elsewhere_is_not_taken_for_missing(project, monkeypatch, variable, value):
    assert trackers._readable()
    monkeypatch.setenv(variable, value)
    assert not trackers._readable()

"""A run that goes on with another number of processes, and one whose processes torchrun starts again."""

import json
from pathlib import Path

import pytest
from forked import Session, settings
from kill_at import KillPoint
from launching import rows, start
from tiny_run import RECIPE, write_corpus

from vanilla_transformer.training.checkpoint import newest_whole

pytestmark = pytest.mark.integration

EVERY_CHECKPOINT = ("training.save_every=8", "training.keep_last=4", "training.average_last=1")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    """Training pairs alone, no validation and no test: what is compared is the training."""
    folder = tmp_path_factory.mktemp("recipe")
    path = folder / "tiny.yaml"
    path.write_text(RECIPE.replace("CORPUS", str(write_corpus(folder / "pairs", "tsv") / "train.tsv")))
    return path


def train(recipe: Path, folder: Path, processes: int, steps: int, *values: str) -> None:
    """Begin the run, or go on with it, up to that update."""
    options = settings(f"training.max_steps={steps}", *EVERY_CHECKPOINT, *values)
    with Session(recipe, folder, *options, "--resume", processes=processes) as session:
        assert session.exit_codes() == [0] * processes, session.errors()


def tokens_seen(folder: Path) -> dict[int, tuple[int, int]]:
    """Source and target tokens up to each checkpoint: other batches would hold other numbers of them."""
    states = [json.loads(path.read_text()) for path in folder.glob("checkpoints/*/trainer_state.json")]
    return {state["step"]: (state["source_tokens"], state["target_tokens"]) for state in states}


def weights(folder: Path) -> dict[str, bytes]:
    """Of the model and of the optimiser, in every checkpoint and at the end."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}


def parts(folder: Path) -> int:
    newest, _ = newest_whole(folder / "checkpoints")
    return json.loads((newest / "trainer_state.json").read_text())["parts"]


def assert_same_curve(folder: Path, whole: Path) -> None:
    assert tokens_seen(folder) == tokens_seen(whole)
    for row, expected in zip(rows(folder), rows(whole), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)


def test_four_processes_then_two_then_one_then_four_compute_what_one_does(recipe, tmp_path):
    # Dropout too: it belongs to an update's parts, and there are four of them whoever computes them.
    train(recipe, tmp_path / "whole", 1, 32, "training.gradient_accumulation_steps=4")
    for processes, steps in ((4, 8), (2, 16), (1, 24), (4, 32)):
        train(recipe, tmp_path / "run", processes, steps)
    assert parts(tmp_path / "run") == 4
    assert_same_curve(tmp_path / "run", tmp_path / "whole")


def test_parts_that_the_processes_cannot_share_evenly_are_cut_anew(recipe, tmp_path):
    # The batches stay the same, and without dropout the curve: one part for one process, two for two, three for three.
    whole, run, plain = tmp_path / "whole", tmp_path / "run", "model.dropout=0"
    train(recipe, whole, 1, 24, plain)
    for processes, steps in ((1, 8), (2, 16), (3, 24)):
        train(recipe, run, processes, steps, plain)
        assert parts(run) == processes
    assert_same_curve(run, whole)


def test_a_group_that_torchrun_starts_again_goes_on_where_the_killed_one_stood(recipe, tmp_path):
    # The command says --resume from the beginning: the first group begins the run, the second one goes on with it.
    point = KillPoint("torch.Tensor.backward", 12, "after")
    script = Path(__file__).with_name("killed_training.py")
    program = ("--max-restarts=1", str(script), "1", json.dumps(point))
    options = settings("training.max_steps=32", *EVERY_CHECKPOINT)
    run = start(recipe.read_text(), tmp_path / "run", *options, "--resume", processes=2, program=program)
    assert run.finish() == [0], run.stderr()[-3000:]
    sessions = json.loads((tmp_path / "run" / "manifest.json").read_text())["sessions"]
    assert [session["first_step"] for session in sessions] == [0, 8]
    assert sessions[1]["outcome"] == "finished"
    train(recipe, tmp_path / "whole", 2, 32)
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")

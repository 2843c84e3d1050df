import resource

import pytest
import torch
from safetensors.torch import load_file
from toy_training import toy_model

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.checkpoint import TRAINING_FILES, TrainerState, save_best, save_checkpoint
from vanilla_transformer.training.final import write_final
from vanilla_transformer.training.run_folder import RunFolder
from vanilla_transformer.training.write_errors import WriteError


@pytest.fixture
def run(tmp_path):
    """Checkpoints every 10 updates up to 30 and one at 34, where the run ended; each weight is the step's number."""
    run, model = RunFolder(tmp_path), toy_model()
    for step in (10, 20, 30, 34):
        fill(model, step)
        save_checkpoint(run.checkpoints / f"step-{step}", TrainerState(step=step), {}, model.save_pretrained)
    fill(model, 25)
    save_best(run.best, 25, {"validation_loss": 1.0}, model.save_pretrained)
    return run


def fill(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def value_of(folder):
    (value,) = {float(v) for tensor in load_file(folder / "model.safetensors").values() for v in tensor.unique()}
    return value


def test_the_last_scheduled_checkpoints_are_averaged(run):
    said = write_final(run, average_last=2, save_every=10)
    assert value_of(run.final) == 25  # (20 + 30) / 2; 34 was not on schedule
    assert said.endswith("is the average of step-20, step-30.")
    assert not TRAINING_FILES & {path.name for path in run.final.iterdir()}


def test_a_damaged_checkpoint_is_passed_over(run):
    (run.checkpoints / "step-30" / "model.safetensors").unlink()
    write_final(run, average_last=2, save_every=10)
    assert value_of(run.final) == 15


def test_too_few_checkpoints_give_the_best_model_or_else_the_last(run):
    said = write_final(run, average_last=4, save_every=10)
    assert value_of(run.final) == 25 and "average_last = 4 checkpoints" in said and said.endswith("there are 3.")
    assert not TRAINING_FILES & {path.name for path in run.final.iterdir()}
    (run.best / "config.json").unlink()
    assert write_final(run, average_last=4, save_every=10).endswith("is the last checkpoint, step-34.")
    assert value_of(run.final) == 34


def test_an_earlier_final_model_is_replaced(run):
    write_final(run, average_last=1, save_every=10)
    write_final(run, average_last=3, save_every=10)
    assert value_of(run.final) == 20


def test_nothing_to_make_it_of_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no checkpoint"):
        write_final(RunFolder(tmp_path), average_last=1, save_every=10)


@pytest.mark.parametrize("average_last", [2, 9], ids=["average", "copy"])
def test_an_earlier_final_model_stays_where_the_next_cannot_be_written(run, average_last):
    write_final(run, average_last=1, save_every=10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # as on a full disk, but only for this process
    try:
        with pytest.raises(WriteError, match="final model .*final could not be written: File too large.*--resume"):
            write_final(run, average_last, save_every=10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert value_of(run.final) == 30
    assert {path.name for path in run.path.iterdir()} == {"best", "checkpoints", "final"}

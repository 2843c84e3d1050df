import dataclasses
import json
import resource

import pytest
import torch
from safetensors.torch import load_file
from toy_training import toy_loop, toy_model

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training import checkpoint
from vanilla_transformer.training.checkpoint import (
    TrainerState,
    begin_or_continue,
    newest_whole,
    save_best,
    save_checkpoint,
)
from vanilla_transformer.training.durable import fault


def save(parent, step, model=None):
    model = model or toy_model()
    tensors = {"w.exp_avg": torch.tensor([float(step)])}
    save_checkpoint(parent / f"step-{step}", TrainerState(step=step, data="d"), tensors, model.save_pretrained)


def names(parent):
    return sorted(folder.name for folder in parent.iterdir())


def test_a_checkpoint_gives_back_state_weights_and_optimizer_bit_for_bit(tmp_path):
    model = toy_model(seed=1)
    state = TrainerState(step=7, epoch=2, update=3, data="d", best_score=-0.1, pending_row={"loss": 1 / 3})
    optimizer = {"a.b.exp_avg": torch.randn(3), "a.b.step": torch.tensor(7.0)}
    save_checkpoint(tmp_path / "step-7", state, optimizer, model.save_pretrained)
    other = toy_model(seed=2)
    assert begin_or_continue(tmp_path / "step-7", other, "d", accumulation=1, processes=1) == state
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert other.lm_head.weight is other.model.encoder.embed_tokens.weight  # still tied
    loaded = checkpoint.load_optimizer(tmp_path / "step-7")
    assert loaded.keys() == optimizer.keys() and all(torch.equal(loaded[k], optimizer[k]) for k in optimizer)


def test_a_checkpoint_is_a_model_folder_and_holds_no_pickle(tmp_path):
    model = toy_model()
    save(tmp_path, 3, model)
    loaded = type(model).from_pretrained(tmp_path / "step-3")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert {path.suffix for path in (tmp_path / "step-3").iterdir()} == {".json", ".safetensors", ".py"}


def test_the_newest_whole_checkpoint_is_found_and_the_damaged_ones_are_named(tmp_path):
    for step in (2, 10, 9):
        save(tmp_path, step)
    assert newest_whole(tmp_path) == (tmp_path / "step-10", [])
    weights = tmp_path / "step-10" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (tmp_path / "step-9" / "optimizer.safetensors").unlink()
    (tmp_path / "step-x").mkdir()
    found, skipped = newest_whole(tmp_path)
    assert found == tmp_path / "step-2"
    assert [line.split("/")[-1] for line in skipped] == [
        "step-10 is skipped: model.safetensors differs from its recorded SHA-256.",
        "step-9 is skipped: optimizer.safetensors is missing.",
    ]


def test_without_checkpoints_a_run_begins_but_not_when_all_are_damaged(tmp_path):
    assert newest_whole(tmp_path / "checkpoints") == (None, [])
    save(tmp_path, 2)
    (tmp_path / "step-2" / "manifest.json").unlink()
    with pytest.raises(UserError, match="no whole checkpoint.*1 problem\n.*step-2 is skipped: it has no manifest.json"):
        newest_whole(tmp_path)


def test_an_error_of_the_file_system_keeps_earlier_checkpoints(tmp_path):
    save(tmp_path, 2)

    def disk_full(folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="step-4 could not be written: .*No space left.*--resume"):
        save_checkpoint(tmp_path / "step-4", TrainerState(step=4), {}, disk_full)
    assert names(tmp_path) == ["step-2"]
    assert newest_whole(tmp_path)[0] == tmp_path / "step-2"


def test_a_file_that_may_not_grow_is_an_error_of_the_users_and_leaves_the_former_best(tmp_path):
    model, (soft, hard) = toy_model(), resource.getrlimit(resource.RLIMIT_FSIZE)
    save_best(tmp_path / "best", 1, {"validation_loss": 2.0}, model.save_pretrained)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # as on a full disk, but only for this process
    try:
        with pytest.raises(UserError, match="best model could not be written to"):
            save_best(tmp_path / "best", 2, {"validation_loss": 1.0}, model.save_pretrained)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["best"] and fault(tmp_path / "best") is None
    assert json.loads((tmp_path / "best" / "manifest.json").read_text())["step"] == 1


def test_the_last_scheduled_checkpoints_are_kept_and_always_the_newest(tmp_path):
    for step in (10, 20, 30, 35):
        (tmp_path / f"step-{step}").mkdir()
    checkpoint.prune(tmp_path / "step-35", keep_last=2, save_every=10)
    assert names(tmp_path) == ["step-20", "step-30", "step-35"]
    (tmp_path / "step-40").mkdir()
    checkpoint.prune(tmp_path / "step-40", keep_last=2, save_every=10)
    assert names(tmp_path) == ["step-30", "step-40"]  # 35 ended or interrupted a session and has been overtaken
    checkpoint.prune(tmp_path / "step-40", keep_last=1, save_every=7)
    assert names(tmp_path) == ["step-40"]


def test_damaged_later_checkpoints_do_not_push_out_the_one_just_saved(tmp_path):
    for step in (10, 20, 30):
        (tmp_path / f"step-{step}").mkdir()
    checkpoint.prune(tmp_path / "step-10", keep_last=1, save_every=10)
    assert names(tmp_path) == ["step-10", "step-20", "step-30"]


def test_another_architecture_other_data_or_another_version_is_refused(tmp_path):
    save(tmp_path, 2)
    with pytest.raises(
        UserError, match=r"(?s)holds another model: .*: \(\d+, 16\) in the checkpoint, \(\d+, 8\).*more"
    ):
        begin_or_continue(tmp_path / "step-2", toy_model(d_model=8), "d", 1, 1)
    with pytest.raises(UserError, match="data is not what it was"):
        begin_or_continue(tmp_path / "step-2", toy_model(), "other", 1, 1)
    path = tmp_path / "step-2" / "trainer_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "new_field": 1}))
    with pytest.raises(UserError, match="another version"):
        begin_or_continue(tmp_path / "step-2", toy_model(), "d", 1, 1)


@pytest.mark.parametrize(
    ("parts", "accumulation", "processes", "then"),
    [(4, 1, 2, 4), (4, 1, 1, 4), (4, 1, 3, 3), (4, 1, 8, 8), (4, 2, 1, 2)],
    # four processes -> two and one keep the parts; three and eight cannot; another accumulation is the user's wish
)
def test_parts_are_kept_over_another_number_of_processes(tmp_path, parts, accumulation, processes, then):
    state = TrainerState(step=1, parts=parts, accumulation=1)
    save_checkpoint(tmp_path / "step-1", state, {}, toy_model().save_pretrained)
    assert begin_or_continue(tmp_path / "step-1", toy_model(), "", accumulation, processes).parts == then


def test_the_optimizer_file_is_named_by_parameters(tmp_path):
    toy_loop(tmp_path, max_steps=2).train()
    tensors = load_file(tmp_path / "checkpoints" / "step-2" / "optimizer.safetensors")
    parameters = [name for name, _ in toy_model().named_parameters()]
    assert sorted(tensors) == sorted(f"{p}.{q}" for p in parameters for q in ("exp_avg", "exp_avg_sq", "step"))
    assert all(value.item() == 2 for name, value in tensors.items() if name.endswith(".step"))


def test_the_state_is_plain_json(tmp_path):
    toy_loop(tmp_path, max_steps=2).train()
    state = json.loads((tmp_path / "checkpoints" / "step-2" / "trainer_state.json").read_text())
    assert set(state) == {field.name for field in dataclasses.fields(TrainerState)}
    assert state["log_size"] == (tmp_path / "metrics.jsonl").stat().st_size and state["log_rows"] == 2

import dataclasses
import json
import os
import resource
import shutil

import pytest
import torch
from safetensors.torch import load_file
from toy_training import toy_loop, toy_model

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training import checkpoint
from vanilla_transformer.training.checkpoint import (
    TrainerState,
    begin_or_continue,
    damage,
    newest_whole,
    save_best,
    save_checkpoint,
)
from vanilla_transformer.training.durable import fault, whole_folder, write_manifest
from vanilla_transformer.training.write_errors import WriteError


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


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def unlist(folder, name):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][name]
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: os.truncate(f / "optimizer.safetensors", 9), "optimizer.safetensors has 9 bytes instead of"),
        (lambda f: flip(f / "trainer_state.json"), "trainer_state.json differs from its recorded SHA-256"),
        (lambda f: flip(f / "config.json"), "config.json differs from its recorded SHA-256"),
        (lambda f: (f / "manifest.json").unlink(), "it has no manifest.json"),
        (lambda f: os.truncate(f / "manifest.json", 100), "its manifest.json cannot be read"),
        (lambda f: os.truncate(f / "manifest.json", 0), "its manifest.json cannot be read"),
        (lambda f: [path.unlink() for path in f.iterdir()], "it has no manifest.json"),
        (lambda f: unlist(f, "model.safetensors"), "model.safetensors is not in its manifest.json"),
        (lambda f: unlist(f, "optimizer.safetensors"), "optimizer.safetensors is not in its manifest.json"),
        (lambda f: unlist(f, "trainer_state.json"), "trainer_state.json is not in its manifest.json"),
        (lambda f: unlist(f, "config.json"), "config.json is not in its manifest.json"),
        (lambda f: shutil.copy(f / "model.safetensors", f / "x.safetensors"), "x.safetensors is not in its manifest"),
    ],
)
def test_the_checkpoint_before_a_damaged_one_is_taken(tmp_path, harm, reason):
    save(tmp_path, 1)
    save(tmp_path, 2)
    harm(tmp_path / "step-2")
    found, skipped = newest_whole(tmp_path)
    assert found == tmp_path / "step-1"
    assert len(skipped) == 1 and f"step-2 is skipped: {reason}" in skipped[0]


def test_a_note_beside_the_files_does_no_harm(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "step-1" / "note.txt").write_text("the one we published")
    assert damage(tmp_path / "step-1") is None


def test_weights_of_the_same_shapes_under_another_config_are_another_model(tmp_path):
    save(tmp_path, 1, toy_model(activation="gelu"))
    with pytest.raises(UserError, match="another model: 1 problem\n  activation: gelu in the checkpoint, relu in the"):
        begin_or_continue(tmp_path / "step-1", toy_model(), "d", 1, 1)
    path = tmp_path / "step-1" / "config.json"
    path.write_text(path.read_text().replace('"vanilla_transformer"', '"marian"'))
    with pytest.raises(UserError, match="another model: 1 problem\n  model_type: marian in the checkpoint, vanilla_tr"):
        begin_or_continue(tmp_path / "step-1", toy_model(), "d", 1, 1)


def test_an_error_of_the_file_system_keeps_earlier_checkpoints(tmp_path):
    save(tmp_path, 2)

    def disk_full(folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(WriteError, match="step-4 could not be written: No space left.*--resume"):
        save_checkpoint(tmp_path / "step-4", TrainerState(step=4), {}, disk_full)
    assert names(tmp_path) == ["step-2"]
    assert newest_whole(tmp_path)[0] == tmp_path / "step-2"


def test_a_file_that_may_not_grow_is_an_error_of_the_users_and_leaves_the_former_best(tmp_path):
    model, (soft, hard) = toy_model(), resource.getrlimit(resource.RLIMIT_FSIZE)
    save_best(tmp_path / "best", 1, {"validation_loss": 2.0}, model.save_pretrained)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # as on a full disk, but only for this process
    try:
        with pytest.raises(WriteError, match="best model .*best could not be written: File too large"):
            save_best(tmp_path / "best", 2, {"validation_loss": 1.0}, model.save_pretrained)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["best"] and fault(tmp_path / "best") is None
    assert json.loads((tmp_path / "best" / "manifest.json").read_text())["step"] == 1


def saved(parent, *steps):
    """Folders that are whole and hold next to nothing: pruning opens none of the files."""
    for step in steps:
        with whole_folder(parent / f"step-{step}") as folder:
            (folder / "weights").write_text("abc")
            write_manifest(folder)


def test_the_last_scheduled_checkpoints_are_kept_and_always_the_newest(tmp_path):
    saved(tmp_path, 10, 20, 30, 35)
    checkpoint.prune(tmp_path / "step-35", keep_last=2, save_every=10)
    assert names(tmp_path) == ["step-20", "step-30", "step-35"]
    saved(tmp_path, 40)
    checkpoint.prune(tmp_path / "step-40", keep_last=2, save_every=10)
    assert names(tmp_path) == ["step-30", "step-40"]  # 35 ended or interrupted a session and has been overtaken
    checkpoint.prune(tmp_path / "step-40", keep_last=1, save_every=7)
    assert names(tmp_path) == ["step-40"]


def test_damaged_later_checkpoints_do_not_push_out_the_one_just_saved(tmp_path):
    saved(tmp_path, 10, 20, 30)
    checkpoint.prune(tmp_path / "step-10", keep_last=1, save_every=10)
    assert names(tmp_path) == ["step-10", "step-20", "step-30"]


def test_a_damaged_checkpoint_does_not_count_among_the_last(tmp_path):
    saved(tmp_path, 10, 20, 30, 40, 50)
    (tmp_path / "step-20" / "weights").unlink()
    (tmp_path / "step-40" / "weights").write_text("ab")
    checkpoint.prune(tmp_path / "step-50", keep_last=2, save_every=10)
    # 30 and 50 are the last two whole ones; 40 may only look damaged, 20 is older than all that is kept
    assert names(tmp_path) == ["step-30", "step-40", "step-50"]


def test_nothing_is_deleted_where_the_newest_was_damaged_after_it_was_saved(tmp_path, caplog):
    saved(tmp_path, 10, 20)
    (tmp_path / "step-20" / "weights").unlink()
    checkpoint.prune(tmp_path / "step-20", keep_last=1, save_every=10)
    assert names(tmp_path) == ["step-10", "step-20"]
    assert "step-20 was damaged after it was saved; older checkpoints are kept." in caplog.text
    shutil.rmtree(tmp_path / "step-20")
    checkpoint.prune(tmp_path / "step-20", keep_last=1, save_every=10)
    assert names(tmp_path) == ["step-10"]


def test_what_cannot_be_deleted_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    saved(tmp_path, 10, 20)

    def read_only(*arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", read_only)
    checkpoint.prune(tmp_path / "step-20", keep_last=1, save_every=10)
    assert names(tmp_path) == ["step-10", "step-20"]
    assert "could not be deleted: Read-only file system" in caplog.text


def test_another_architecture_other_data_or_another_version_is_refused(tmp_path):
    save(tmp_path, 2)
    with pytest.raises(
        UserError, match=r"(?s)holds another model: .*: \(\d+, 16\) in the checkpoint, \(\d+, 8\).*more"
    ):
        begin_or_continue(tmp_path / "step-2", toy_model(d_model=8), "d", 1, 1)
    with pytest.raises(UserError, match="data or the tokenizer is not what it was"):
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

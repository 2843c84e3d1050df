import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_training import toy_model

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.averaging import average_checkpoints


def model_folder(path, tensors, config=None):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config or {"d_model": 4}))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_the_average_of_numbers_worked_by_hand(tmp_path):
    folders = [
        model_folder(tmp_path / "a", {"w": torch.tensor([1.0, 0.0]), "n": torch.tensor([3])}),
        model_folder(tmp_path / "b", {"w": torch.tensor([2.0, 0.5]), "n": torch.tensor([4])}),
        model_folder(tmp_path / "c", {"w": torch.tensor([6.0, -2.0]), "n": torch.tensor([5])}),
    ]
    (folders[2] / "tokenizer.json").write_text("last")
    (folders[0] / "tokenizer.json").write_text("first")
    for name in ("optimizer.safetensors", "trainer_state.json", "manifest.json"):
        (folders[2] / name).write_bytes(b"no part of a model")
    output = average_checkpoints([str(folder) for folder in folders], str(tmp_path / "mean"))
    weights = load_file(output / "model.safetensors")
    assert weights["w"].tolist() == [3.0, -0.5]
    assert weights["n"].tolist() == [5]
    assert sorted(p.name for p in output.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (output / "tokenizer.json").read_text() == "last"


def test_sums_are_made_in_float64(tmp_path):
    # In float32 1e8 + 1 is 1e8, so a float32 sum would give (1e8 - 1e8 + 0) / 3 = 0 instead of 1 / 3.
    values = [1e8, 1.0, -1e8]
    folders = [model_folder(tmp_path / f"{i}", {"w": torch.tensor([value])}) for i, value in enumerate(values)]
    weights = load_file(average_checkpoints(folders, tmp_path / "mean") / "model.safetensors")
    assert weights["w"].item() == pytest.approx(1 / 3)


def test_bfloat16_weights_stay_bfloat16(tmp_path):
    folders = [
        model_folder(tmp_path / f"{i}", {"w": torch.tensor([value], dtype=torch.bfloat16)})
        for i, value in enumerate([1.0, 1.5])
    ]
    weights = load_file(average_checkpoints(folders, tmp_path / "mean") / "model.safetensors")
    assert weights["w"].dtype == torch.bfloat16 and weights["w"].item() == 1.25


def test_the_average_loads_as_a_model(tmp_path):
    models = [toy_model(seed) for seed in (1, 2)]
    for index, model in enumerate(models):
        model.save_pretrained(tmp_path / f"{index}")
    loaded = type(models[0]).from_pretrained(average_checkpoints([tmp_path / "0", tmp_path / "1"], tmp_path / "mean"))
    for mean, first, second in zip(loaded.parameters(), models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mean, (first + second) / 2)


def test_folders_of_different_models_are_named_together(tmp_path):
    first = model_folder(tmp_path / "a", {"w": torch.zeros(2)})
    other = model_folder(tmp_path / "b", {"w": torch.zeros(2)}, {"d_model": 8})
    with pytest.raises(
        UserError, match="(?s)2 problems.*b: its config differs .* in d_model.*none: not a model folder"
    ):
        average_checkpoints([first, other, tmp_path / "none"], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"w": torch.zeros(3)}, "only checkpoints of one model"),
        ({"w": torch.zeros(2, dtype=torch.float64)}, "only checkpoints of one model"),
        ({"v": torch.zeros(2)}, "does not hold the same weights"),
    ],
)
def test_weights_that_do_not_fit_leave_nothing_behind(tmp_path, tensors, message):
    folders = [model_folder(tmp_path / "a", {"w": torch.zeros(2)}), model_folder(tmp_path / "b", tensors)]
    with pytest.raises(UserError, match=message):
        average_checkpoints(folders, tmp_path / "mean")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_nothing_is_overwritten_and_nothing_to_average_is_an_error(tmp_path):
    folder = model_folder(tmp_path / "a", {"w": torch.zeros(2)})
    shutil.copytree(folder, tmp_path / "mean")
    with pytest.raises(UsageError, match="already exists"):
        average_checkpoints([folder], tmp_path / "mean")
    with pytest.raises(UsageError, match="at least one"):
        average_checkpoints([], tmp_path / "new")

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
    (folders[2] / "tokenizer.json").write_text('"last"')
    (folders[0] / "tokenizer.json").write_text('"first"')
    for name in ("optimizer.safetensors", "trainer_state.json", "manifest.json"):
        (folders[2] / name).write_bytes(b"no part of a model")
    output = average_checkpoints([str(folder) for folder in folders], str(tmp_path / "mean"))
    weights = load_file(output / "model.safetensors")
    assert weights["w"].tolist() == [3.0, -0.5]
    assert weights["n"].tolist() == [5]
    assert sorted(p.name for p in output.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (output / "tokenizer.json").read_text() == '"last"'


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


# Small multiples of 1/8: every type holds them exactly, and so does float64 their sums, in whatever order.
TYPES = {torch.float64: np.float64, torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: None}


@st.composite
def checkpoints(draw):
    """Of 1 to 5 checkpoints the same weights: names, types and shapes drawn, scalars and empty ones among them."""
    shapes = draw(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=3))
    types = [draw(st.sampled_from(list(TYPES))) for _ in shapes]
    eighths = st.integers(-128, 128)
    return [
        {
            f"w{number}": torch.tensor([draw(eighths) / 8 for _ in range(int(np.prod(shape)))], dtype=kind).reshape(
                shape
            )
            for number, (shape, kind) in enumerate(zip(shapes, types, strict=True))
        }
        for _ in range(draw(st.integers(1, 5)))
    ]


@settings(max_examples=40, deadline=None)
@given(checkpoints(), st.randoms(use_true_random=False))
def test_an_average_is_the_mean_in_float64_whatever_the_order(tmp_path_factory, tensors, random):
    tmp_path = tmp_path_factory.mktemp("average")
    folders = [model_folder(tmp_path / f"{number}", each) for number, each in enumerate(tensors)]
    weights = load_file(average_checkpoints(folders, tmp_path / "mean") / "model.safetensors")
    assert weights.keys() == tensors[0].keys()
    for name, mean in weights.items():
        kind = tensors[0][name].dtype
        exact = np.mean([each[name].double().numpy() for each in tensors], axis=0)
        assert mean.dtype == kind and mean.shape == exact.shape
        if TYPES[kind]:
            assert mean.numpy().tolist() == exact.astype(TYPES[kind]).tolist()
        else:  # bfloat16 has eight bits: half of the last one is 2 ** -8 of the value, or a little less
            assert (np.abs(mean.double().numpy() - exact) <= 1.001 * 2**-8 * np.abs(exact)).all()
    random.shuffle(folders)
    again = load_file(average_checkpoints(folders, tmp_path / "again") / "model.safetensors")
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_the_average_of_one_checkpoint_is_that_checkpoint_bit_for_bit(tmp_path):
    tensors = {"w": torch.tensor([-0.0, 0.1, 3e-45, torch.inf]), "h": torch.tensor([-0.0, 0.1], dtype=torch.bfloat16)}
    folder = model_folder(tmp_path / "only", tensors)
    mean = average_checkpoints([folder], tmp_path / "mean")
    assert (mean / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_tied_weights_are_averaged_once_and_stay_tied(tmp_path):
    models = [toy_model(seed) for seed in (1, 2, 3)]
    for index, model in enumerate(models):
        model.save_pretrained(tmp_path / f"{index}")
    mean = average_checkpoints([tmp_path / f"{index}" for index in range(3)], tmp_path / "mean")
    assert load_file(mean / "model.safetensors").keys() == load_file(tmp_path / "0" / "model.safetensors").keys()
    loaded = type(models[0]).from_pretrained(mean)
    tied = loaded.model.encoder.embed_tokens.weight
    assert loaded.lm_head.weight is tied and loaded.model.decoder.embed_tokens.weight is tied
    expected = sum(model.lm_head.weight.double() for model in models) / 3
    torch.testing.assert_close(tied, expected.float(), rtol=0, atol=0)


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
        UserError, match="(?s)2 problems.*b: its config differs .* in d_model.*none: no such model folder"
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

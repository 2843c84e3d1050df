"""A trained JoeyNMT 2.3.0 checkpoint, converted, against what JoeyNMT itself decoded and computed with it."""

import gzip
import io

import pytest
import torch

from vanilla_transformer.modeling.converters import joeynmt


@pytest.fixture(scope="module")
def folder(shared_data):
    return shared_data("pretrained/joeynmt_reverse")


@pytest.fixture(scope="module")
def converted(folder):
    return joeynmt.read(folder)


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_sinusoids_equal_the_ones_in_the_checkpoint(converted, folder):
    checkpoint = io.BytesIO(gzip.decompress((folder / "300.ckpt.gz").read_bytes()))
    weights = torch.load(checkpoint, weights_only=True)["model_state"]
    for side in ("encoder", "decoder"):
        positions = getattr(converted.model.model, side).positions(torch.arange(200)).float()
        # JoeyNMT's angles are float32: near position 200 they are off by 1e-5.
        torch.testing.assert_close(positions, weights[f"{side}.pe.pe"][0, :200], atol=5e-5, rtol=0)


@pytest.mark.parametrize("batch_size", [1, 20])
def test_greedy_outputs_are_joeynmt_s(converted, folder, batch_size):
    sources, expected = lines(folder / "dev.src"), lines(folder / "300.greedy.hyps")
    assert len(sources) == len(expected) == 20
    # Greedy and at most 30 tokens come from config.yaml; JoeyNMT's search writes at least one token.
    hypotheses = []
    for start in range(0, len(sources), batch_size):
        batch = converted.tokenizer(sources[start : start + batch_size], padding=True, return_tensors="pt")
        outputs = converted.model.generate(**batch, min_new_tokens=1)
        hypotheses += converted.tokenizer.batch_decode(outputs, skip_special_tokens=True)
    assert hypotheses == expected

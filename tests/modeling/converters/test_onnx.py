"""What onnxruntime computes with the two graphs against what the model computes, in one go and token by token."""

import numpy as np
import onnxruntime
import pytest
import torch
from small_models import random_tokens, small_model

from vanilla_transformer.modeling.converters import onnx
from vanilla_transformer.modeling.converters.words_tokenizer import words_tokenizer

pytestmark = pytest.mark.integration  # tracing both graphs takes ten seconds

PAD = 1
KINDS = {
    "paper": {},
    "others": {
        "norm_position": "pre",
        "positional_encoding": "learned",
        "max_source_positions": 30,
        "max_target_positions": 40,
        "attention_bias": True,
        "output_bias": True,
        "activation": "gelu",
        "embedding_sharing": "none",
        "d_k": 3,
        "d_v": 5,
    },
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """The model, and its graphs as onnxruntime runs them."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(19))]
    tokenizer = words_tokenizer(tokens, unk="<unk>", pad="<pad>", bos="<s>", eos="</s>")
    model, folder = small_model(**KINDS[request.param]), tmp_path_factory.mktemp("onnx")
    attention = model.config._attn_implementation
    onnx.write(model, tokenizer, folder)
    assert model.config._attn_implementation == attention  # the caller's model stays as it was
    return model, [onnxruntime.InferenceSession(folder / name) for name in (onnx.ENCODER, onnx.DECODER)]


def run(sessions, batch, target, step: int) -> torch.Tensor:
    """Logits of the whole target, `step` tokens at a time."""
    encoder, decoder = sessions
    source = {name: tensor.numpy() for name, tensor in batch.items()}
    states = dict(zip([output.name for output in encoder.get_outputs()], encoder.run(None, source), strict=True))
    for state in decoder.get_inputs():
        if state.name.startswith("past."):
            states[state.name] = np.zeros((len(target), state.shape[1], 0, state.shape[3]), np.float32)
    names = [output.name.replace("present", "past") for output in decoder.get_outputs()[1:]]
    parts = []
    for tokens in target.split(step, 1):
        inputs = {"input_ids": tokens.numpy(), "attention_mask": source["attention_mask"], **states}
        logits, *present = decoder.run(None, inputs)
        states |= dict(zip(names, present, strict=True))
        parts.append(torch.from_numpy(logits))
    return torch.cat(parts, 1)


@pytest.mark.parametrize("rows, source_length, target_length", [(3, 9, 6), (1, 1, 1), (2, 30, 25)])
@pytest.mark.parametrize("step", [1, 4, 100])
def test_logits_equal_for_any_sizes(pair, rows, source_length, target_length, step):
    model, sessions = pair
    source = random_tokens(rows, source_length)
    source[-1, source_length // 2 + 1 :] = PAD
    batch = {"input_ids": source, "attention_mask": source.ne(PAD).long()}
    target = random_tokens(rows, target_length, seed=1)
    with torch.no_grad():
        wanted = model(**batch, decoder_input_ids=target).logits
    torch.testing.assert_close(run(sessions, batch, target, step), wanted, rtol=1e-4, atol=1e-4)


def test_padding_on_the_left_is_padding_too(pair):
    model, sessions = pair
    source = random_tokens(2, 6)
    source[1, :3] = PAD
    batch = {"input_ids": source, "attention_mask": source.ne(PAD).long()}
    target = random_tokens(2, 4, seed=1)
    with torch.no_grad():
        wanted = model(**batch, decoder_input_ids=target).logits
    torch.testing.assert_close(run(sessions, batch, target, 1), wanted, rtol=1e-4, atol=1e-4)

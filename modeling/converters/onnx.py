"""To ONNX, for onnxruntime and other engines: encoder.onnx, run once a sentence, and decoder.onnx, once a token.

encoder.onnx gives the keys and values that every layer of the decoder attends to; decoder.onnx takes them, those of
the earlier target tokens, and any number of further tokens. Batch and lengths are free; the past may be empty.
"""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanilla_transformer.modeling.modeling_vanilla_transformer import (
    Positions,
    VanillaTransformerForConditionalGeneration,
    sinusoids,
)

# Shapes: B sentences, S source positions, T target positions, P earlier target positions, H heads, K d_k, V d_v.
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
OPSET = 20
# A file of protocol buffers ends at 2 GiB; larger weights go beside it.
MOST_BYTES_IN_FILE = 1_500_000_000

USAGE = """\
import numpy as np
import onnxruntime
from transformers import AutoTokenizer, GenerationConfig

folder = "."
tokenizer, settings = AutoTokenizer.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
encoder, decoder = (onnxruntime.InferenceSession(f"{folder}/{name}.onnx") for name in ("encoder", "decoder"))
batch = tokenizer(["A sentence.", "Another one."], padding=True, return_tensors="np")
source = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
names = [output.name for output in encoder.get_outputs()]
states = dict(zip(names, encoder.run(None, source))) | {"attention_mask": source["attention_mask"]}
for state in decoder.get_inputs():  # no earlier tokens yet
    if state.name.startswith("past."):
        states[state.name] = np.zeros((len(source["input_ids"]), state.shape[1], 0, state.shape[3]), np.float32)
tokens = np.full((len(source["input_ids"]), 1), settings.decoder_start_token_id)
for _ in range(source["input_ids"].shape[1] + 50):  # greedy
    logits, *present = decoder.run(None, states | {"input_ids": tokens[:, -1:]})
    states |= dict(zip([output.name.replace("present", "past") for output in decoder.get_outputs()[1:]], present))
    logits[:, -1, settings.suppress_tokens or []] = -np.inf
    tokens = np.concatenate([tokens, logits[:, -1].argmax(-1)[:, None]], 1)
    if (tokens == settings.eos_token_id).any(1).all():
        break
for row in tokens.tolist():
    end = row.index(settings.eos_token_id) if settings.eos_token_id in row[1:] else len(row)
    print(tokenizer.decode(row[1:end], skip_special_tokens=True))
"""


def write(
    model: VanillaTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> list[str]:
    """Write both graphs, generation_config.json and the tokenizer; returns what differs nevertheless.

    Every setting of ours can be expressed. Weights are stored in the model's own type.
    """
    ours = copy.deepcopy(model).eval()
    # The fused kernels are hardware's; plain products are what every engine has.
    ours.set_attn_implementation("eager")
    for part in (ours.model.encoder, ours.model.decoder):
        part.positions = _GraphPositions(part.positions)
    _export_encoder(ours, folder / ENCODER)
    _export_decoder(ours, folder / DECODER)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return [
        "Search: an ONNX graph computes logits. Beam search, the GNMT length penalty and the length limit in "
        "generation_config.json are for the program that runs it; the one below is greedy."
    ]


class _GraphPositions(nn.Module):
    """Positions without a look at the numbers themselves, which no graph of free lengths can take."""

    def __init__(self, positions: Positions):
        super().__init__()
        self.table, self.d_model, self.layout = positions.table, positions.d_model, positions.layout

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return sinusoids(positions, self.d_model, self.layout) if self.table is None else self.table(positions)


class _Encoder(nn.Module):
    def __init__(self, model: VanillaTransformerForConditionalGeneration):
        super().__init__()
        self.encoder = model.model.encoder
        layers: Any = model.model.decoder.layers
        self.projections = nn.ModuleList(layer.cross_attention for layer in layers)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(B, S) twice -> for each decoder layer keys (B, H, S, K) and values (B, H, S, V)."""
        memory_BSD = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        parts: Any = self.projections
        return tuple(state for part in parts for state in part.keys_and_values(memory_BSD))


class _Decoder(nn.Module):
    def __init__(self, model: VanillaTransformerForConditionalGeneration):
        super().__init__()
        self.decoder, self.lm_head = model.model.decoder, model.lm_head

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        cross: list[torch.Tensor],
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """(B, T), (B, S), states as _Encoder's and of P earlier tokens -> logits (B, T, N), states of P + T tokens."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for layer in range(len(cross) // 2):
            cache.self_attention_cache.update(past[2 * layer], past[2 * layer + 1], layer)
            cache.cross_attention_cache.update(cross[2 * layer], cross[2 * layer + 1], layer)
            cache.is_updated[layer] = True
        # The decoder asks for the encoder's states; with the cache above it reads no more than their shape.
        B, S = attention_mask.shape
        states = self.decoder(
            input_ids=input_ids,
            encoder_hidden_states=cross[0].new_zeros(B, S, 1),
            encoder_attention_mask=attention_mask,
            cache=cache,
            use_cache=True,
        ).last_hidden_state
        layers = cache.self_attention_cache.layers
        return self.lm_head(states), *(state for layer in layers for state in (layer.keys, layer.values))


def _state_names(kind: str, layers: int) -> list[str]:
    return [f"{kind}.{layer}.{state}" for layer in range(layers) for state in ("key", "value")]


# Sizes of the tracing example: no two alike, none 0 or 1, which a trace takes for constants.
_B, _S, _T, _P = 2, 5, 3, 4


def _export_encoder(model: VanillaTransformerForConditionalGeneration, path: Path) -> None:
    batch, source = Dim("batch"), Dim("source")
    ids = torch.full((_B, _S), model.config.eos_token_id)
    _export(
        _Encoder(model),
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        {"input_ids": {0: batch, 1: source}, "attention_mask": {0: batch, 1: source}},
        ["input_ids", "attention_mask"],
        _state_names("cross", model.config.num_decoder_layers),
        path,
    )


def _export_decoder(model: VanillaTransformerForConditionalGeneration, path: Path) -> None:
    config: Any = model.config  # whose d_k and d_v are numbers once it is made
    layers = config.num_decoder_layers
    batch, source, target, earlier = Dim("batch"), Dim("source"), Dim("target"), Dim("earlier")
    ids, mask = torch.full((_B, _T), config.eos_token_id), torch.ones(_B, _S, dtype=torch.long)

    def states(length: int) -> list[torch.Tensor]:
        sizes = (config.d_k, config.d_v) * layers
        return [torch.zeros(_B, config.num_heads, length, size, dtype=model.dtype) for size in sizes]

    _export(
        _Decoder(model),
        {"input_ids": ids, "attention_mask": mask, "cross": states(_S), "past": states(_P)},
        {
            "input_ids": {0: batch, 1: target},
            "attention_mask": {0: batch, 1: source},
            "cross": [{0: batch, 2: source}] * (2 * layers),
            "past": [{0: batch, 2: earlier}] * (2 * layers),
        },
        ["input_ids", "attention_mask", *_state_names("cross", layers), *_state_names("past", layers)],
        ["logits", *_state_names("present", layers)],
        path,
    )


def _export(
    graph: nn.Module,
    example: dict,
    shapes: dict,
    inputs: list[str],
    outputs: list[str],
    path: Path,
) -> None:
    size = sum(parameter.numel() * parameter.element_size() for parameter in graph.parameters())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about its insides
        torch.onnx.export(
            graph.eval(),
            kwargs=example,
            f=path,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            external_data=size > MOST_BYTES_IN_FILE,
            verbose=False,
        )

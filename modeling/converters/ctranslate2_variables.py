"""The variables of a CTranslate2 model as fields and weights of ours.

The engine's files have been written from many toolkits. Whatever a file holds must have a place here: a variable that
has none is a part that our model lacks, and a problem.
"""

import math
from typing import Any

import numpy as np
import torch

from vanilla_transformer.modeling.converters.ctranslate2_file import CTranslate2File
from vanilla_transformer.modeling.converters.joint_vocabulary import JointVocabulary
from vanilla_transformer.modeling.modeling_vanilla_transformer import sinusoids

SIDES = ("encoder", "decoder")
# Kinds of model, and the heads of those whose files do not say.
KINDS = {"TransformerBase": 8, "TransformerBig": 16, "TransformerSpec": 8}
# By the engine's number.
ACTIVATIONS = ("relu", "gelu by tanh", "swish", "gelu", "gelu by sigmoid", "tanh", "sigmoid")
OURS = ("relu", "gelu", "swish")
# Settings of a side that must have this value, and others that say nothing about its translations.
ONLY = {
    "alibi": 0,
    "embeddings/multiply_by_sqrt_depth": 1,
    "multi_query_attention": 0,
    "scale_embeddings": 1,
    "start_from_zero_embedding": 0,
}
IRRELEVANT = ("alignment_layer", "alignment_heads", "embeddings_merge", "alibi_use_positive_positions", "scale_alibi")
FLAGS = ("with_source_bos", "with_source_eos", "with_target_bos")
# The engine computes positions of its own without end; a table of ours has one.
MAX_POSITIONS = 1024


def engine_positions(count: int, d_model: int) -> torch.Tensor:
    """The sinusoids that the engine computes where a file has no positions, (count, d_model).

    tensor2tensor's: all sines before all cosines, exponents i / (d_model / 2 - 1), and the first position is 1.
    """
    timescales = torch.arange(d_model // 2, dtype=torch.float64) * (math.log(10000.0) / (d_model // 2 - 1))
    angles = torch.arange(1, count + 1, dtype=torch.float64).unsqueeze(1) * torch.exp(-timescales)
    return torch.cat([angles.sin(), angles.cos()], 1)


class CTranslate2Variables:
    """What of a file is asked for is taken; in the end nothing may be left.

    After construction, `fields` are those of our config that the file decides, `weights` ours by name, and `problems`
    a line for each thing that our model cannot express (then the other two mean nothing).
    """

    def __init__(self, file: CTranslate2File, vocabulary: JointVocabulary):
        self.problems: list[str] = []
        self.fields: dict[str, Any] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self._variables, self._left = file.variables, {*file.variables} - {*FLAGS}
        self._take_settings(KINDS[file.kind])
        if not self.problems:
            try:
                self._take_weights(vocabulary)
            except KeyError as error:
                self.problems.append(f"{error.args[0]}: missing in the file; get the file again")
        names = sorted(self._left)
        self.problems += [f"{name}: our model has no such part; take another model" for name in names[:5]]
        if len(names) > 5:
            self.problems.append(f"and {len(names) - 5} parts more")

    def _take_settings(self, default_heads: int) -> None:
        heads = self._same("num_heads", default_heads)
        pre_norm = self._same("pre_norm", 1)
        activation = ACTIVATIONS[self._same("activation", 0)]
        if activation not in OURS:
            self.problems.append(f"activation = {activation}: take a model with {' or '.join(OURS)}")
        for side in SIDES:
            for name, only in ONLY.items():
                if (value := self._setting(side, name, only)) != only:
                    self.problems.append(f"{side}/{name} = {value:g}: only {only} can be expressed; take another model")
            for name in IRRELEVANT:
                self._setting(side, name, 0)
        self.fields |= {
            "num_heads": heads,
            "norm_position": "pre" if pre_norm else "post",
            "activation": activation,
            "attention_bias": any(name.endswith("attention/linear_0/bias") for name in self._variables),
        }

    def _take_weights(self, vocabulary: JointVocabulary) -> None:
        embeddings = {side: self._need(f"{side}/embeddings/weight", f"{side}/embeddings_0/weight") for side in SIDES}
        softmax = self._need("decoder/projection/weight")
        bias = self._take("decoder/projection/bias")
        tied = torch.equal(embeddings["decoder"], softmax)
        one = vocabulary.is_shared and torch.equal(embeddings["encoder"], embeddings["decoder"])
        self.fields |= {
            "d_model": softmax.shape[1],
            "embedding_sharing": "all" if tied and one else "decoder" if tied else "none",
            "output_bias": bias is not None or not vocabulary.is_shared,
        }
        self.weights["model.encoder.embed_tokens.weight"] = vocabulary.source_rows(embeddings["encoder"])
        self.weights["model.decoder.embed_tokens.weight"] = vocabulary.target_rows(embeddings["decoder"])
        self.weights["lm_head.weight"] = vocabulary.target_rows(softmax)
        if self.fields["output_bias"]:
            self.weights["lm_head.bias"] = vocabulary.output_bias(bias)
        self._take_positions()
        for side in SIDES:
            count = 0
            while f"{side}/layer_{count}/ffn/linear_0/weight" in self._variables:
                self._take_layer(side, count)
                count += 1
            self.fields[f"num_{side}_layers"] = count
            if self.fields["norm_position"] == "pre":
                self._norm(f"{side}/layer_norm", f"model.{side}.norm")

    def _take_layer(self, side: str, number: int) -> None:
        theirs, ours = f"{side}/layer_{number}", f"model.{side}.layers.{number}"
        self._attention(f"{theirs}/self_attention", f"{ours}.self_attention")
        self._norm(f"{theirs}/self_attention/layer_norm", f"{ours}.self_attention_residual.norm")
        if side == "decoder":
            self._attention(f"{theirs}/attention", f"{ours}.cross_attention")
            self._norm(f"{theirs}/attention/layer_norm", f"{ours}.cross_attention_residual.norm")
        for index, part in enumerate(("fc1", "fc2")):
            for kind in ("weight", "bias"):
                self.weights[f"{ours}.feed_forward.{part}.{kind}"] = self._need(f"{theirs}/ffn/linear_{index}/{kind}")
        self._norm(f"{theirs}/ffn/layer_norm", f"{ours}.feed_forward_residual.norm")
        self.fields["d_ff"] = self.weights[f"{ours}.feed_forward.fc1.weight"].shape[0]

    def _attention(self, theirs: str, ours: str) -> None:
        """q, k and v are one matrix in self-attention; in cross-attention q is one, k and v another."""
        inward = ["linear_0"] if theirs.endswith("self_attention") else ["linear_0", "linear_1"]
        outward = f"linear_{len(inward)}"
        q, k, v = torch.cat([self._need(f"{theirs}/{linear}/weight") for linear in inward]).chunk(3)
        d_k = len(q) // self.fields["num_heads"]
        self.fields |= {"d_k": d_k, "d_v": d_k}
        stored = self._take(f"{theirs}/head_dim")
        if stored is not None and int(stored) != d_k:
            self.problems.append(f"{theirs}/head_dim = {int(stored)}: its matrices have {d_k}; get the file again")
        # Ours always divides scores by sqrt(d_k); what the file has in its place goes into the queries.
        scale = self._take(f"{theirs}/queries_scale")
        factor = 1.0 if scale is None else float(scale) * math.sqrt(d_k)
        parts = {"q_proj": q * factor, "k_proj": k, "v_proj": v, "out_proj": self._need(f"{theirs}/{outward}/weight")}
        self.weights |= {f"{ours}.{name}.weight": weight for name, weight in parts.items()}
        if self.fields["attention_bias"]:
            q, k, v = torch.cat([self._need(f"{theirs}/{linear}/bias") for linear in inward]).chunk(3)
            out = self._need(f"{theirs}/{outward}/bias")
            parts = {"q_proj": q * factor, "k_proj": k, "v_proj": v, "out_proj": out}
            self.weights |= {f"{ours}.{name}.bias": weight for name, weight in parts.items()}

    def _norm(self, theirs: str, ours: str) -> None:
        self.weights[f"{ours}.weight"] = self._need(f"{theirs}/gamma")
        self.weights[f"{ours}.bias"] = self._need(f"{theirs}/beta")

    def _take_positions(self) -> None:
        """Tables that are the paper's or Marian's sinusoids are computed by ours too; any other becomes a table."""
        d_model, tables, layouts = self.fields["d_model"], {}, set()
        for side in SIDES:
            table = self._take(f"{side}/position_encodings/encodings")
            tables[side] = engine_positions(MAX_POSITIONS, d_model).float() if table is None else table
            layouts.add(_layout(tables[side]))
        if len(layouts) == 1 and None not in layouts:
            self.fields["sinusoid_layout"] = layouts.pop()
            return
        self.fields["positional_encoding"] = "learned"
        for side, name in zip(SIDES, ("source", "target"), strict=True):
            self.fields[f"max_{name}_positions"] = len(tables[side])
            self.weights[f"model.{side}.positions.table.weight"] = tables[side]

    def _take(self, *names: str) -> torch.Tensor | None:
        """The first of `names` that the file has."""
        for name in names:
            if name in self._variables:
                self._left.discard(name)
                return torch.from_numpy(np.array(self._variables[name], dtype=np.float32))
        return None

    def _need(self, *names: str) -> torch.Tensor:
        found = self._take(*names)
        if found is None:
            raise KeyError(names[0])
        return found

    def _setting(self, side: str, name: str, default: int) -> float:
        found = self._take(f"{side}/{name}", name)  # older files have one for both sides
        return default if found is None else float(found)

    def _same(self, name: str, default: int) -> int:
        encoder, decoder = (int(self._setting(side, name, default)) for side in SIDES)
        if encoder != decoder:
            self.problems.append(f"encoder/{name} = {encoder} and decoder/{name} = {decoder}: take a model with one")
        return encoder


def _layout(table_LD: torch.Tensor) -> str | None:
    L, D = table_LD.shape
    layouts = ("interleaved", "concatenated") if D % 2 == 0 else ()
    exact = {layout: sinusoids(torch.arange(L), D, layout) for layout in layouts}
    return next((name for name, table in exact.items() if torch.allclose(table_LD.double(), table, atol=1e-5)), None)

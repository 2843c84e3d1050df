"""Table 1 of the paper, measured: operations and memory of one layer against length n and width d."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.modeling.modeling_recurrent_seq2seq import CELLS
from vanilla_transformer.modeling.modeling_vanilla_transformer import MultiHeadAttention
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.exhibits import Plot, Series, Table
from vanilla_transformer.training.ladder.systems import System

TITLE = "Complexity: one layer against length and width"
# The layers and what torch computes each with; both ways to attend are the same function.
ATTENTION, PLAIN_ATTENTION = "self-attention", "self-attention, plain"
LAYERS = (*CELLS, ATTENTION, PLAIN_ATTENTION)
# Operations that multiply queries, keys and values, and not by weights: the paper's n^2 d is theirs alone.
_OF_ATTENTION = ("bmm", "baddbmm", "_scaled_dot_product")
_MIB = 2**20


@dataclass(frozen=True)
class ComplexityStudy:
    """The grid that is measured, one sentence at a time, in float32 on the CPU."""

    lengths: list[int] = field(default_factory=lambda: [32, 64, 128, 256, 512, 1024, 2048])
    widths: list[int] = field(default_factory=lambda: [64, 128, 256, 512])
    # Heads of the attention layers: operations do not depend on them, the memory of plain attention does.
    num_heads: int = 8

    def problems(self) -> list[str]:
        found = [
            f"{name} = {one}: must be at least 1"
            for name in ("lengths", "widths")
            for one in getattr(self, name)
            if one < 1
        ]
        found += [f"{name} = []: name at least one" for name in ("lengths", "widths") if not getattr(self, name)]
        if self.num_heads < 1:
            return [*found, f"num_heads = {self.num_heads}: must be at least 1"]
        return found + [
            f"widths = {width}: num_heads = {self.num_heads} does not divide it"
            for width in self.widths
            if width % self.num_heads
        ]

    def decided(self) -> dict[str, Any]:
        """What a finished cell depends on; the grid may grow later."""
        return {name: value for name, value in asdict(self).items() if name not in ("lengths", "widths")}


def run(settings: ComplexityStudy, systems: Sequence[System], folder: Path) -> None:
    """Measure every cell that folder/complexity.json lacks; layers and not systems are compared."""
    cells = Cells(folder / "complexity.json", settings.decided())
    for kind in LAYERS:
        for d in settings.widths:
            layer = make_layer(kind, d, settings.num_heads)
            for n in settings.lengths:
                if not cells.done(key := f"{kind}/d {d}/n {n}"):
                    flops, of_attention = count_flops(layer, n, d)
                    row = {"layer": kind, "d": d, "n": n, "flops": flops, "attention_flops": of_attention}
                    cells.put(key, {**row, "peak_bytes": peak_bytes(partial(layer, _sentence(n, d)))})


def make_layer(kind: str, d: int, num_heads: int) -> Callable[[torch.Tensor], Any]:
    """One of LAYERS of width d, as a function of a sentence (1, n, d)."""
    torch.manual_seed(0)
    if kind in CELLS:
        return CELLS[kind](d, d, batch_first=True)
    config = VanillaTransformerConfig(d_model=d, num_heads=num_heads)
    config._attn_implementation = "eager" if kind == PLAIN_ATTENTION else "sdpa"
    attention = MultiHeadAttention(config, layer_idx=0)
    return lambda x_1ND: attention(x_1ND, None)


def count_flops(layer: Callable[[torch.Tensor], Any], n: int, d: int) -> tuple[int, int]:
    """Floating-point operations of a forward pass over n positions, and those that multiply queries, keys and values.

    Counted from the matrix products that run, two operations for a multiplication and its addition; what is done
    element by element is left out.
    """
    x_1ND = _sentence(n, d)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        layer(x_1ND)
    counts = counter.get_flop_counts()["Global"]
    of_attention = sum(count for op, count in counts.items() if str(op).split(".")[-1].startswith(_OF_ATTENTION))
    return counter.get_total_flops(), of_attention


def _lstm_flops(input_shape: Sequence[int], w_shape: Sequence[int], u_shape: Sequence[int], *_: Any, **__: Any) -> int:
    """Of one layer in one direction: W x_t and U h_{t-1} at every position, for all four gates at once."""
    *positions, _ = input_shape
    return 2 * math.prod(positions) * (math.prod(w_shape) + math.prod(u_shape))


def _attention_flops(q_BHTK: Sequence[int], k_BHSK: Sequence[int], v_BHSV: Sequence[int], *_: Any, **__: Any) -> int:
    """Q K^T, and the weights with V."""
    B, H, T, K = q_BHTK
    S, V = v_BHSV[-2:]
    return 2 * B * H * T * S * (K + V)


# Kernels of the CPU that torch's counter does not know: a whole LSTM layer, and fused attention.
FUSED: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mkldnn_rnn_layer: _lstm_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
}


def peak_bytes(work: Callable[[], Any]) -> int:
    """Most memory that torch held at a time while `work` ran, above what it held before, on the CPU.

    Of a forward pass with gradients that is what the backward pass will need and what is needed for the moment.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its default writes two lines to stderr at every call
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work()
    del result
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def crossover(attention: Mapping[int, float], recurrent: Mapping[int, float]) -> float | None:
    """The length at which both cost the same; None where no two neighbouring lengths lie on either side of it.

    Between lengths the ratio is taken to be a line, which it is: (a n d^2 + b n^2 d) / (c n d^2).
    """
    ratios = [(n, attention[n] / recurrent[n]) for n in sorted(attention.keys() & recurrent.keys())]
    for (n, ratio), (next_n, next_ratio) in pairwise(ratios):
        if ratio <= 1 <= next_ratio and ratio < next_ratio:
            return n + (1 - ratio) / (next_ratio - ratio) * (next_n - n)
    return None


def _sentence(n: int, d: int) -> torch.Tensor:
    return torch.randn(1, n, d, generator=torch.Generator().manual_seed(n))


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Operations beside Table 1, where they cross, operations and memory by length."""
    if not rows:
        return []
    return [_beside_the_paper(rows), _crossovers(rows), _by_length(rows, "flops"), _by_length(rows, "peak_bytes")]


# What of a layer the paper's Table 1 speaks of, the formula, and its value.
_FORMULAS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "attention": ("n^2 d", lambda n, d: n * n * d),
    "recurrent": ("n d^2", lambda n, d: n * d * d),
}


def _beside_the_paper(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The measured operations over the formula: where that is one number, the formula holds."""
    parts: list[tuple[str, str, Callable[[Mapping[str, Any]], float], str]] = [
        (PLAIN_ATTENTION, "products of queries, keys, values", lambda row: row["attention_flops"], "attention"),
        (ATTENTION, "products of queries, keys, values", lambda row: row["attention_flops"], "attention"),
        (ATTENTION, "the four projections", lambda row: row["flops"] - row["attention_flops"], "recurrent"),
        *((cell, "whole layer", lambda row: row["flops"], "recurrent") for cell in CELLS),
    ]
    lines = []
    for kind, what, value, formula in parts:
        text, of = _FORMULAS[formula]
        ratios = [value(row) / of(row["n"], row["d"]) for row in rows if row["layer"] == kind]
        if ratios:
            lines.append([kind, what, text, min(ratios), max(ratios)])
    return Table(
        "Operations beside the paper's Table 1",
        ["layer", "part", "formula", "least operations / formula", "most"],
        lines,
        "Operations of the matrix products of a forward pass over one sentence, over all n and d measured. The paper "
        "leaves out the four projections of self-attention, which grow as a recurrent layer does, and a recurrent "
        "layer's gates, four of an LSTM and three of a GRU.",
    )


def _costs(rows: Sequence[Mapping[str, Any]], kind: str, d: int, value: str) -> dict[int, float]:
    return {row["n"]: row[value] for row in rows if (row["layer"], row["d"]) == (kind, d)}


def _crossovers(rows: Sequence[Mapping[str, Any]]) -> Table:
    lines = []
    for d in sorted({row["d"] for row in rows}):
        whole, products = (_costs(rows, ATTENTION, d, value) for value in ("flops", "attention_flops"))
        found = [crossover(products, _costs(rows, "rnn", d, "flops"))]
        found += [crossover(whole, _costs(rows, cell, d, "flops")) for cell in ("gru", "lstm", "rnn")]
        lines.append([d, *found])
    return Table(
        "The length n from which self-attention needs more operations",
        ["d", "without projections, against rnn", "whole, against gru", "whole, against lstm", "whole, against rnn"],
        lines,
        "Found from the measured operations. The second column is the comparison of the paper, whose layers cross at "
        "n = d. A dash: they do not cross among the lengths measured.",
    )


def _by_length(rows: Sequence[Mapping[str, Any]], value: str) -> Table:
    is_memory = value == "peak_bytes"
    lengths, widths = (sorted({row[name] for row in rows}) for name in ("n", "d"))
    lines = []
    for kind in LAYERS:
        for d in widths:
            costs = _costs(rows, kind, d, value)
            found = [costs.get(n) for n in lengths]
            if costs:
                lines.append([kind, d, *(cost and cost / (_MIB if is_memory else 1e6) for cost in found)])
    title = "Peak memory of a forward pass in training, MiB" if is_memory else "Millions of operations, forward"
    note = (
        "What torch's allocator held at most, without weights and input; one sentence, float32. Plain attention keeps "
        "its n^2 weights for every head, torch's fused attention on the CPU does not, and computes them again in the "
        "backward pass."
        if is_memory
        else "Two operations for a multiplication and its addition; one sentence."
    )
    return Table(title, ["layer", "d", *(f"n = {n}" for n in lengths)], lines, note)


def plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Operations and memory against n at the middle width, operations against d at the middle length."""
    if not rows:
        return []
    lengths, widths = (sorted({row[name] for row in rows}) for name in ("n", "d"))
    n, d = lengths[len(lengths) // 2], widths[len(widths) // 2]
    made = []
    for name, fixed, at, along, value, label in (
        ("flops-length", "d", d, "n", "flops", "operations"),
        ("flops-width", "n", n, "d", "flops", "operations"),
        ("memory-length", "d", d, "n", "peak_bytes", "bytes"),
    ):
        series = []
        for kind in LAYERS:
            if kind == PLAIN_ATTENTION and value == "flops":
                continue  # the same operations
            points = sorted((row[along], row[value]) for row in rows if row["layer"] == kind and row[fixed] == at)
            if points:
                series.append(Series(kind, [x for x, _ in points], [y for _, y in points]))
        what = "Peak memory" if value == "peak_bytes" else "Operations"
        made.append(Plot(name, f"{what} of one layer, {fixed} = {at}", along, label, series, log_x=True, log_y=True))
    return made

"""Operations against the layers' equations, memory against tensors of known size, and where costs cross."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer.training.ladder import complexity
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.complexity import (
    ATTENTION,
    PLAIN_ATTENTION,
    ComplexityStudy,
    count_flops,
    crossover,
    make_layer,
    peak_bytes,
)
from vanilla_transformer.training.ladder.critical_path import step_by_step


@pytest.mark.parametrize("n, d", [(5, 16), (32, 8), (7, 64)])
def test_operations_are_those_of_the_equations(n, d):
    # W x and U h for one, three or four gates, d x d each; two operations for a multiplication and its addition
    assert count_flops(make_layer("rnn", d, 2), n, d) == (2 * n * 2 * d * d, 0)
    assert count_flops(make_layer("gru", d, 2), n, d) == (2 * n * 2 * 3 * d * d, 0)
    assert count_flops(make_layer("lstm", d, 2), n, d) == (2 * n * 2 * 4 * d * d, 0)
    # four projections; Q K^T and the weights with V
    for kind in (ATTENTION, PLAIN_ATTENTION):
        assert count_flops(make_layer(kind, d, 2), n, d) == (8 * n * d * d + 4 * n * n * d, 4 * n * n * d)


def test_the_fused_lstm_counts_as_its_steps_do():
    lstm, x = nn.LSTM(12, 20, batch_first=True), torch.randn(3, 9, 12)
    with step_by_step(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        lstm(x)
    # by hand: 27 positions, (12 + 20) inputs, 4 x 20 outputs
    assert counter.get_total_flops() == 2 * 27 * 32 * 80
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=complexity.FUSED) as fused:
        lstm(x)
    assert fused.get_total_flops() == counter.get_total_flops()


def test_peak_memory_is_what_lives_at_one_time():
    a_mib = 1 << 18  # float32 numbers

    def one_after_the_other():
        for _ in range(4):
            torch.empty(a_mib)

    def together():
        return [torch.empty(a_mib) for _ in range(4)]

    assert peak_bytes(one_after_the_other) == 1 << 20
    assert peak_bytes(together) == 4 << 20


def test_plain_attention_keeps_its_weights_and_fused_attention_does_not():
    n, d, heads = 512, 32, 4
    x = torch.randn(1, n, d)
    plain, fused = (peak_bytes(lambda k=k: make_layer(k, d, heads)(x)) for k in (PLAIN_ATTENTION, ATTENTION))
    of_weights = 4 * heads * n * n
    assert plain > of_weights > fused


def test_costs_cross_where_the_formulas_say():
    lengths, d = (16, 64, 256), 100
    attention = {n: 4 * n * n * d for n in lengths}
    assert crossover(attention, {n: 4 * n * d * d for n in lengths}) == pytest.approx(100)
    whole = {n: 8 * n * d * d + 4 * n * n * d for n in lengths}
    assert crossover(whole, {n: 16 * n * d * d for n in lengths}) == pytest.approx(200)  # an LSTM: n = 2 d
    assert crossover(whole, {n: 12 * n * d * d for n in lengths}) == pytest.approx(100)  # a GRU: n = d
    assert crossover(whole, {n: 4 * n * d * d for n in lengths}) is None  # always above
    assert crossover({16: 1.0}, {16: 2.0}) is None
    assert crossover({16: 1.0, 64: 2.0}, {16: 1.0, 64: 1.0}) == 16


def test_a_small_study_fills_its_tables(tmp_path):
    study = ComplexityStudy(lengths=[8, 64], widths=[16, 32], num_heads=2)
    assert study.problems() == []
    complexity.run(study, [], tmp_path)
    rows = Cells(tmp_path / "complexity.json", study.decided()).rows()
    assert len(rows) == 5 * 2 * 2
    paper, crossovers, flops, memory = complexity.tables(rows)
    assert [line[0] for line in paper.rows] == [PLAIN_ATTENTION, ATTENTION, ATTENTION, "rnn", "lstm", "gru"]
    assert [line[3:] for line in paper.rows] == [[4, 4], [4, 4], [8, 8], [4, 4], [16, 16], [12, 12]]
    assert crossovers.rows[0][:2] == [16, pytest.approx(16)]
    assert crossovers.rows[1] == [32, pytest.approx(32), pytest.approx(32), pytest.approx(64), None]
    assert flops.rows[6] == [ATTENTION, 16, (8 * 8 * 256 + 4 * 64 * 16) / 1e6, (8 * 64 * 256 + 4 * 64 * 64 * 16) / 1e6]
    assert all(value > 0 for line in memory.rows for value in line[2:])
    assert [plot.name for plot in complexity.plots(rows)] == ["flops-length", "flops-width", "memory-length"]
    assert complexity.tables([]) == [] == complexity.plots([])


def test_problems_name_key_and_value():
    assert ComplexityStudy(widths=[12], num_heads=8).problems() == ["widths = 12: num_heads = 8 does not divide it"]
    assert ComplexityStudy(lengths=[0]).problems() == ["lengths = 0: must be at least 1"]
    assert ComplexityStudy(lengths=[], num_heads=0).problems()[0].startswith("lengths = []")

"""Counts against chains worked out by hand, and a whole small study."""

import pytest

from vanilla_transformer.configuration.configuration_recurrent_seq2seq import RecurrentSeq2SeqConfig
from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.training.ladder import parallelism
from vanilla_transformer.training.ladder.cells import Cells
from vanilla_transformer.training.ladder.parallelism import ParallelismStudy, count_products
from vanilla_transformer.training.ladder.systems import SYSTEMS, build


def recurrent(cell, attention="none", **fields):
    return build(RecurrentSeq2SeqConfig(vocab_size=30, d_model=16, cell=cell, attention=attention, **fields)).eval()


def transformer(layers):
    sizes = {"vocab_size": 30, "d_model": 16, "d_ff": 32, "num_heads": 2}
    return build(VanillaTransformerConfig(**sizes, num_encoder_layers=layers, num_decoder_layers=layers))


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_recurrent_counts_grow_with_the_length(cell):
    for n in (3, 11):
        # two layers, each a chain of its n steps; then tanh(W state) and the vocabulary
        assert count_products(recurrent(cell), "encoder", n) == 2 * n
        assert count_products(recurrent(cell), "decoder", n) == 2 * n + 2
        # a word: its input through two layers, W, the vocabulary
        assert count_products(recurrent(cell), "decoding", n) == 2 * n + 4 * n
        # with attention also its scores and its mean
        attentive = recurrent(cell, "multiplicative")
        assert count_products(attentive, "encoder", n) == 2 * n
        assert count_products(attentive, "decoder", n) == 2 * n + 4
        assert count_products(attentive, "decoding", n) == 2 * n + 6 * n


def test_an_update_of_a_recurrent_network_waits_for_four_passes():
    # encoder and decoder, two layers each, forward and backward: eight steps for each position more
    model = recurrent("lstm", "multiplicative")
    assert count_products(model, "training", 13) - count_products(model, "training", 12) == 8


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_transformer_s_counts_are_those_of_its_layers(layers):
    for n in (3, 11):
        # projections, scores, mean, output; two of the feed-forward layer
        assert count_products(transformer(layers), "encoder", n) == 6 * layers
        # two attentions, the feed-forward layer; at the end the vocabulary
        assert count_products(transformer(layers), "decoder", n) == 10 * layers + 1
        # The first word's first layer waits for the encoder with its keys of the source alone: five products fewer,
        # one more for those keys.
        first = 6 * layers + 10 * layers + 1 - 4
        assert count_products(transformer(layers), "decoding", n) == first + (n - 1) * (10 * layers + 1)


def test_an_update_of_the_transformer_waits_for_as_much_at_any_length():
    counts = {count_products(transformer(2), "training", n) for n in (3, 11, 40)}
    assert len(counts) == 1
    # forward 12 + 10 * 2 + ... : the chain is longer than the forward pass and shorter than three of them
    assert 12 + 1 < counts.pop() < 3 * (12 + 21)


def test_a_small_study_fills_its_tables(tmp_path):
    study = ParallelismStudy(
        parameters=30_000,
        vocab_size=50,
        transformer={"num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2},
        count_lengths=[2, 4],
        training_lengths=[4, 8],
        batch_tokens=16,
        decoding_lengths=[4],
        repeats=2,
    )
    assert study.problems() == []
    systems = [SYSTEMS["lstm-attention"], SYSTEMS["transformer"]]
    parallelism.run(study, systems, tmp_path)
    cells = Cells(tmp_path / "parallelism.json", study.decided())
    rows = cells.rows()
    assert len(rows) == 2 * (4 * 2 + 2 + 1)
    timed = [row for row in rows if row.get("timed") == "training" and row["n"] == 4]
    assert [row["sentences"] for row in timed] == [4, 4]
    for row in timed:
        assert len(row["all_seconds"]) == 2
        assert row["tokens_per_second"] == pytest.approx(16 / row["seconds"])
        assert row["parameters"] == pytest.approx(30_000, rel=0.05)

    products, update, decoding = parallelism.tables(rows)
    assert products.columns == ["part", "system", "n = 2", "n = 4"]
    # one layer a side
    assert ["encoder", "lstm-attention", 2, 4] in products.rows
    assert ["encoder", "transformer", 6, 6] in products.rows
    assert update.rows[0][:2] == ["CPU", "lstm-attention"]
    assert decoding.columns == ["device", "system", "n = 4"]
    assert "No GPU was there" in update.note
    plots = parallelism.plots(rows)
    assert [plot.name for plot in plots][:4] == [f"products-{what}" for what in parallelism.COUNTED]
    assert plots[0].series[0].x == [2, 4] and plots[0].series[0].y == [2, 4]

    before = (tmp_path / "parallelism.json").read_bytes()
    parallelism.run(study, systems, tmp_path)  # everything is there
    assert (tmp_path / "parallelism.json").read_bytes() == before


def test_an_empty_study_has_nothing_to_show():
    assert parallelism.tables([]) == [] and parallelism.plots([]) == []


def test_problems_name_key_and_value():
    found = ParallelismStudy(repeats=0, count_lengths=[0], transformer={"num_heads": 3, "d_model": 128}).problems()
    assert any(line.startswith("repeats = 0:") for line in found)
    assert any(line.startswith("count_lengths = 0:") for line in found)
    assert any("num_heads = 3" in line for line in found)

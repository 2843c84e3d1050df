"""Every rung has the number of parameters that was asked for, counted here by hand, and differs in one thing."""

import pytest

from vanilla_transformer.configuration.config_common import ConfigError
from vanilla_transformer.training.ladder.systems import SYSTEMS, build, count_parameters, matched_config

BASE = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 256, "num_heads": 4, "dropout": 0.3}
# Products with the input and with the state, and two biases as torch has them, for each gate.
GATES = {"rnn": 1, "lstm": 4, "gru": 3}


def matched(name: str, parameters: int = 400_000, vocab_size: int = 1000, **fields):
    return matched_config(SYSTEMS[name], parameters, vocab_size=vocab_size, **{"base": BASE, **fields})


def weights_of_recurrent(config) -> int:
    """Bidirectional encoder of half the width each, decoder of the full width, one matrix of embeddings."""
    d, gates = config.d_model, GATES[config.cell]
    half = d // 2
    encoder = config.num_encoder_layers * 2 * gates * (half * d + half * half + 2 * half)
    decoder = config.num_decoder_layers * gates * (d * d + d * d + 2 * d)
    attention = d * d if config.attention == "multiplicative" else 0
    output = d * d * (1 if config.attention == "none" else 2)
    return config.vocab_size * d + encoder + decoder + attention + output


def weights_of_transformer(config) -> int:
    """Four projections an attention, two matrices and biases a feed-forward layer, gain and bias a LayerNorm."""
    d, f = config.d_model, config.d_ff
    feed_forward = 2 * d * f + f + d
    encoder = config.num_encoder_layers * (4 * d * d + feed_forward + 2 * 2 * d)
    decoder = config.num_decoder_layers * (8 * d * d + feed_forward + 3 * 2 * d)
    return config.vocab_size * d + encoder + decoder


@pytest.mark.parametrize("parameters, vocab_size", [(60_000, 60), (400_000, 1000), (4_000_000, 8000)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_the_parameters_asked_for(name: str, parameters: int, vocab_size: int):
    config = matched(name, parameters, vocab_size)
    by_hand = weights_of_transformer if name == "transformer" else weights_of_recurrent
    assert by_hand(config) == count_parameters(config)
    assert abs(by_hand(config) - parameters) <= 0.05 * parameters


def test_the_count_is_that_of_the_model_itself():
    for name in ("lstm-attention", "transformer"):
        config = matched(name, 60_000, 60)
        assert sum(parameter.numel() for parameter in build(config).parameters()) == count_parameters(config)


def test_the_transformer_s_own_number_gives_back_its_own_sizes():
    # by hand: 1000 * 64 + 2 * (4 * 64 ** 2 + 33_088 + 256) + 2 * (8 * 64 ** 2 + 33_088 + 384) = 296_000 - ...
    own = 1000 * 64 + 2 * (4 * 64**2 + 33_088 + 256) + 2 * (8 * 64**2 + 33_088 + 384)
    config = matched("transformer", own)
    assert (config.d_model, config.d_ff, count_parameters(config)) == (64, 256, own)


def test_from_one_rung_to_the_next_one_thing_changes():
    ladder = {name: matched(name).to_dict() for name in SYSTEMS if name != "transformer"}

    def changes(one: str, other: str) -> set[str]:
        return {key for key in ladder[one] if ladder[one][key] != ladder[other].get(key)} - {"d_model"}

    assert changes("rnn", "lstm") == changes("lstm", "gru") == {"cell"}
    assert changes("lstm", "lstm-attention") == changes("gru", "gru-attention") == {"attention"}
    assert all(one["dropout"] == 0.3 for one in ladder.values())
    assert list(SYSTEMS) == ["rnn", "lstm", "gru", "lstm-attention", "gru-attention", "transformer"]


def test_fields_of_all_systems_and_of_the_recurrent_ones():
    recurrent = {"bidirectional": False, "num_encoder_layers": 1, "num_decoder_layers": 1}
    lstm = matched("lstm", recurrent=recurrent, pad_token_id=7)
    assert (lstm.bidirectional, lstm.num_decoder_layers, lstm.pad_token_id) == (False, 1, 7)
    transformer = matched("transformer", recurrent=recurrent, pad_token_id=7)
    assert (transformer.num_decoder_layers, transformer.pad_token_id) == (2, 7)


def test_d_ff_takes_up_what_heads_forbid_d_model():
    # 8 heads allow d_model 24, 32, 40, ...; with d_ff four times as wide these are 5% off or more.
    config = matched("transformer", 54_000, 60, base={**BASE, "num_heads": 8})
    assert config.d_ff != 4 * config.d_model
    assert abs(weights_of_transformer(config) - 54_000) <= 0.05 * 54_000


def test_an_encoder_of_one_direction_may_have_an_odd_width():
    widths = [
        matched("gru", number, 20, recurrent={"bidirectional": False}).d_model for number in (9_000, 9_500, 10_000)
    ]
    assert any(width % 2 for width in widths)


def test_a_number_that_no_width_gives_is_refused():
    # 5000 * 2 + 2 * 2 * 3 * (2 + 1 + 2) + 2 * 3 * (4 + 4 + 4) + 2 * 2 by hand
    with pytest.raises(ConfigError, match=r"gru: no width gives 3,000 parameters within 5%; d_model = 2 gives 10,136"):
        matched("gru", 3_000, 5_000)

"""The settings of the recurrent models: the field's names, and every problem in one message."""

import pytest

import vanilla_transformer as vt
from vanilla_transformer.configuration.config_common import ConfigError


def test_every_problem_is_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        vt.RecurrentSeq2SeqConfig(
            vocab_size=20,
            d_model=15,
            num_encoder_layers=2,
            num_decoder_layers=1,
            cell="lstmm",
            attention="none",
            input_feeding=True,
            reverse_source=True,
            dropout=1.5,
            pad_token_id=20,
        )
    first, *lines = str(caught.value).splitlines()
    assert first == "RecurrentSeq2SeqConfig: 7 problems"
    for beginning in (
        "dropout = 1.5: must be at least 0 and below 1",
        "cell = 'lstmm': choose rnn or lstm or gru; did you mean lstm?",
        "num_decoder_layers = 1: each layer starts from the state of the encoder's; choose num_encoder_layers = 2",
        "d_model = 15: two directions share it; choose 16",
        "reverse_source = True: both directions are read already; set bidirectional = false",
        "input_feeding = True: there is no attentional vector; choose attention = multiplicative",
        "pad_token_id = 20: must be a token number below vocab_size = 20",
    ):
        assert sum(line.strip().startswith(beginning) for line in lines) == 1, beginning


def test_one_problem_is_said_in_the_singular():
    with pytest.raises(ConfigError, match="^RecurrentSeq2SeqConfig: 1 problem\n"):
        vt.RecurrentSeq2SeqConfig(attention="dot")


def test_hugging_face_names_are_understood():
    config = vt.RecurrentSeq2SeqConfig(hidden_size=64)
    assert config.d_model == config.hidden_size == 64
    assert config.num_hidden_layers == config.num_encoder_layers == 2


def test_a_saved_config_is_the_same_again(tmp_path):
    config = vt.RecurrentSeq2SeqConfig(cell="gru", attention="none", d_model=32, source_lang="en")
    config.save_pretrained(tmp_path)
    again = vt.RecurrentSeq2SeqConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    code = {"config_common.py", "configuration_recurrent_seq2seq.py"}
    assert {path.name for path in tmp_path.iterdir()} == {"config.json"} | code

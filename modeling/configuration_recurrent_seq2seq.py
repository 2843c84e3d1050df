from vanilla_transformer.configuration.configuration_recurrent_seq2seq import RecurrentSeq2SeqConfig  # noqa: F401

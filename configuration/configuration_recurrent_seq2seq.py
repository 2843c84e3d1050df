"""What the Transformer replaced: the settings of a recurrent encoder-decoder, with or without attention.

This file ships to the Hub beside the weights and must run without the package: it imports only transformers and, from
its own folder, `config_common`.
"""

from typing import Any

from transformers import PreTrainedConfig

from .config_common import (
    choice_problems,
    count_problems,
    probability_problems,
    raise_problems,
    switch_problems,
    token_problems,
    translation_pipeline,
)

# Values of the named switches. Attention scores: Bahdanau et al. 2014 add, Luong et al. 2015 multiply ("general").
RECURRENT_CHOICES: dict[str, tuple[str, ...]] = {
    "cell": ("rnn", "lstm", "gru"),
    "attention": ("none", "additive", "multiplicative"),
    "embedding_sharing": ("all", "decoder", "none"),
    "label_smoothing_over": ("vocabulary", "others"),
}
_CODE = "modeling_recurrent_seq2seq"


class RecurrentSeq2SeqConfig(PreTrainedConfig):
    """Settings of a recurrent encoder-decoder (Sutskever et al. 2014, Cho et al. 2014; Bahdanau 2014, Luong 2015).

    Args:
        vocab_size: entries of the shared vocabulary.
        d_model: width of embeddings, of the recurrent state and of the encoder's output.
        num_encoder_layers, num_decoder_layers: stacked recurrent layers; the decoder starts from the encoder's last
            states, so that both have as many.
        cell: "rnn" (Elman's, tanh), "lstm" (Hochreiter and Schmidhuber 1997) or "gru" (Cho et al. 2014).
        attention: "none", the whole sentence in one vector (Sutskever, Cho); "additive", v tanh(W q + U k)
            (Bahdanau); "multiplicative", q W k (Luong).
        input_feeding: the attentional vector of one step is part of the next step's input (Luong, section 3.3). Each
            target position then waits for the one before in training too.
        bidirectional: the encoder reads in both directions with half of d_model each (Bahdanau); false reads forward.
        reverse_source: the encoder reads the sentence from its end (Sutskever, section 3.3); for bidirectional = false.
        dropout: on embeddings, between layers and on the attentional vector (Zaremba et al. 2014).
        label_smoothing, label_smoothing_over, embedding_sharing: as in VanillaTransformerConfig.
        source_lang, target_lang: language codes of the training data, None where unknown.

    Raises:
        ConfigError: on construction, with every problem in one message.
    """

    model_type = "recurrent_seq2seq"
    keys_to_ignore_at_inference = ["cache"]
    attribute_map = {"hidden_size": "d_model", "num_hidden_layers": "num_encoder_layers"}

    vocab_size: int = 37000
    d_model: int = 512
    num_encoder_layers: int = 2
    num_decoder_layers: int = 2
    cell: str = "lstm"
    attention: str = "additive"
    input_feeding: bool = False
    bidirectional: bool = True
    reverse_source: bool = False
    dropout: float = 0.2
    label_smoothing: float = 0.1
    label_smoothing_over: str = "vocabulary"
    embedding_sharing: str = "all"
    use_cache: bool = True
    is_encoder_decoder: bool = True
    bos_token_id: int = 0
    pad_token_id: int = 1
    eos_token_id: int = 2
    decoder_start_token_id: int = 0
    source_lang: str | None = None
    target_lang: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # As in the Transformer's config: names first, and where the code lies always without a "user/repo--" prefix.
        for alias in [name for name in kwargs if name in self.attribute_map]:
            setattr(self, alias, kwargs.pop(alias))
        self._check()
        for derived in ("auto_map", "custom_pipelines", "tie_word_embeddings"):
            kwargs.pop(derived, None)
        super().__post_init__(**kwargs)
        self.auto_map = {
            "AutoConfig": "configuration_recurrent_seq2seq.RecurrentSeq2SeqConfig",
            "AutoModelForSeq2SeqLM": f"{_CODE}.RecurrentSeq2SeqForConditionalGeneration",
        }
        self.custom_pipelines = translation_pipeline()
        self.tie_word_embeddings = self.embedding_sharing != "none"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers', which sets the fields in `kwargs` last and without a look: they are checked here."""
        loaded = super().from_dict(config_dict, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        config._check()
        return loaded

    def _check(self) -> None:
        counts = ("vocab_size", "d_model", "num_encoder_layers", "num_decoder_layers")
        problems = count_problems(self, counts) + probability_problems(self, ("dropout", "label_smoothing"))
        problems += choice_problems(self, RECURRENT_CHOICES)
        problems += switch_problems(self, ("input_feeding", "bidirectional", "reverse_source", "use_cache"))
        if self.num_encoder_layers != self.num_decoder_layers:
            problems.append(
                f"num_decoder_layers = {self.num_decoder_layers}: each layer starts from the state of the encoder's; "
                f"choose num_encoder_layers = {self.num_encoder_layers}"
            )
        if self.bidirectional is True and isinstance(self.d_model, int) and self.d_model % 2:
            problems.append(f"d_model = {self.d_model}: two directions share it; choose {self.d_model + 1}")
        if self.bidirectional is True and self.reverse_source is True:
            problems.append("reverse_source = True: both directions are read already; set bidirectional = false")
        if self.input_feeding is True and self.attention == "none":
            problems.append("input_feeding = True: there is no attentional vector; choose attention = multiplicative")
        raise_problems(self, problems + token_problems(self))


RecurrentSeq2SeqConfig.register_for_auto_class("AutoConfig")

"""What a model is: the settings of the encoder-decoder of "Attention Is All You Need" (Vaswani et al. 2017).

This file ships to the Hub beside the weights and must run without the package: it imports only transformers and,
from its own folder, `config_common` and `presets`.
"""

import copy
import difflib
from typing import Any

from transformers import PreTrainedConfig

from .config_common import (
    ConfigError,
    choice_problems,
    count_problems,
    is_count,
    is_number,
    probability_problems,
    raise_problems,
    switch_problems,
    token_problems,
    translation_pipeline,
)
from .presets import PRESETS

# Values of the named switches, the paper's first.
CHOICES: dict[str, tuple[str, ...]] = {
    "norm_position": ("post", "pre"),
    "positional_encoding": ("sinusoidal", "learned"),
    "sinusoid_layout": ("interleaved", "concatenated"),
    "activation": ("relu", "gelu", "swish"),
    "embedding_sharing": ("all", "decoder", "none"),
    "label_smoothing_over": ("vocabulary", "others"),
}
_COUNTS = ("vocab_size", "d_model", "d_ff", "num_encoder_layers", "num_decoder_layers", "num_heads", "d_k", "d_v")
_PROBABILITIES = ("dropout", "attention_dropout", "relu_dropout", "label_smoothing")
_SWITCHES = ("attention_bias", "output_bias", "use_cache")
_CODE = "modeling_vanilla_transformer"


class VanillaTransformerConfig(PreTrainedConfig):
    """Settings of the original Transformer; every default is the paper's base model.

    Args:
        vocab_size: entries of the shared vocabulary (the paper: about 37,000 for English-German).
        d_model: width of the residual stream. d_ff: width of the feed-forward layer.
        num_encoder_layers, num_decoder_layers: N of section 3.1.
        num_heads: h of section 3.2.2. d_k, d_v: size of a head's keys and values; None gives d_model / num_heads.
        dropout: on each sub-layer's output and on embedding + position (section 5.4).
        attention_dropout, relu_dropout: on attention weights and inside the feed-forward layer; the paper has none,
            tensor2tensor and fairseq do.
        label_smoothing: epsilon of section 5.4, applied in training mode only.
        label_smoothing_over: "vocabulary" gives every token epsilon / V; "others" gives each wrong token
            epsilon / (V - 1), as tensor2tensor and fairseq do.
        norm_position: "post", the paper's LayerNorm(x + Sublayer(x)); "pre", tensor2tensor's later
            x + Sublayer(LayerNorm(x)) with one more LayerNorm after each stack.
        positional_encoding: "sinusoidal", any length; "learned" (row E of Table 3) up to max_source_positions and
            max_target_positions.
        sinusoid_layout: "interleaved", the paper's sin at even and cos at odd dimensions; "concatenated", all sines
            before all cosines with the same frequencies, as Marian has it.
        attention_bias: biases in the four attention projections (fairseq, Marian, JoeyNMT); the paper has none.
        activation: "relu"; "gelu" or "swish" are Marian's and others'.
        output_bias: a bias on the logits, as Marian has it.
        embedding_sharing: "all", one matrix for source, target and softmax (section 3.4); "decoder", target and
            softmax; "none".
        layer_norm_eps: tensor2tensor's 1e-6; the paper does not say.
        source_lang, target_lang: language codes of the training data, None where unknown.

    Raises:
        ConfigError: on construction, with every problem in one message.
    """

    model_type = "vanilla_transformer"
    keys_to_ignore_at_inference = ["cache"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "num_hidden_layers": "num_encoder_layers",
        "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
        "intermediate_size": "d_ff",
        "encoder_ffn_dim": "d_ff",
        "decoder_ffn_dim": "d_ff",
        "head_dim": "d_k",
        "activation_dropout": "relu_dropout",
        "hidden_act": "activation",
        "activation_function": "activation",
        "max_position_embeddings": "max_target_positions",
    }

    vocab_size: int = 37000
    d_model: int = 512
    d_ff: int = 2048
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    relu_dropout: float = 0.0
    label_smoothing: float = 0.1
    label_smoothing_over: str = "vocabulary"
    norm_position: str = "post"
    positional_encoding: str = "sinusoidal"
    sinusoid_layout: str = "interleaved"
    max_source_positions: int | None = None
    max_target_positions: int | None = None
    attention_bias: bool = False
    activation: str = "relu"
    output_bias: bool = False
    embedding_sharing: str = "all"
    layer_norm_eps: float = 1e-6
    use_cache: bool = True
    is_encoder_decoder: bool = True
    bos_token_id: int = 0
    # Not 0: generate's beam search would then fill its outputs with </s>.
    pad_token_id: int = 1
    eos_token_id: int = 2
    decoder_start_token_id: int = 0
    source_lang: str | None = None
    target_lang: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # Fields given by their Hugging Face names (hidden_size, ...) count before anything is derived from them.
        for alias in [name for name in kwargs if name in self.attribute_map]:
            setattr(self, alias, kwargs.pop(alias))
        self._check()
        self.d_k = self.d_model // self.num_heads if self.d_k is None else self.d_k
        self.d_v = self.d_model // self.num_heads if self.d_v is None else self.d_v
        # A folder loads anywhere by these two: they are set here, not on saving, so that a folder loaded from the Hub
        # (whose entries came with a "user/repo--" prefix) is saved with plain names again.
        kwargs.pop("auto_map", None)
        kwargs.pop("custom_pipelines", None)
        kwargs.pop("tie_word_embeddings", None)
        super().__post_init__(**kwargs)
        self.auto_map = {
            "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
            "AutoModel": f"{_CODE}.VanillaTransformerModel",
            "AutoModelForSeq2SeqLM": f"{_CODE}.VanillaTransformerForConditionalGeneration",
        }
        self.custom_pipelines = translation_pipeline()
        # transformers asks this of every model; it follows from embedding_sharing.
        self.tie_word_embeddings = self.embedding_sharing != "none"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers', which sets the fields in `kwargs` last and without a look: they are checked here."""
        loaded = super().from_dict(config_dict, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        config._check()
        return loaded

    def _check(self) -> None:
        raise_problems(self, self._problems())

    def _problems(self) -> list[str]:
        """Every setting that is out of range or contradicts another, each with value and remedy."""
        problems = count_problems(self, _COUNTS, optional=("d_k", "d_v"))
        problems += probability_problems(self, _PROBABILITIES)
        problems += choice_problems(self, CHOICES)
        problems += switch_problems(self, _SWITCHES)
        if not is_number(self.layer_norm_eps) or self.layer_norm_eps <= 0:
            problems.append(f"layer_norm_eps = {self.layer_norm_eps!r}: must be above 0, for example 1e-6")
        return problems + self._size_problems() + self._position_problems() + token_problems(self)

    def _size_problems(self) -> list[str]:
        problems = []
        known = is_count(self.d_model) and is_count(self.num_heads)
        if known and self.d_model % self.num_heads and (self.d_k is None or self.d_v is None):
            divisors = [str(n) for n in range(1, min(self.d_model, 64) + 1) if self.d_model % n == 0]
            problems.append(
                f"num_heads = {self.num_heads}: does not divide d_model = {self.d_model}; "
                f"choose {', '.join(divisors[:6])} or set d_k and d_v"
            )
        if known and self.positional_encoding == "sinusoidal" and self.d_model % 2:
            problems.append(
                f"d_model = {self.d_model}: sinusoidal positions need an even size; "
                f"choose {self.d_model + 1} or positional_encoding = learned"
            )
        return problems

    def _position_problems(self) -> list[str]:
        problems = []
        for name in ("max_source_positions", "max_target_positions"):
            value = getattr(self, name)
            if self.positional_encoding == "learned" and not is_count(value):
                problems.append(f"{name} = {value!r}: learned positions need a maximum, for example 512")
            if self.positional_encoding == "sinusoidal" and value is not None:
                problems.append(f"{name} = {value!r}: sinusoidal positions have no limit; leave it out")
        return problems

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "VanillaTransformerConfig":
        """A row of the paper's Table 3 by name ("base", "big", "A-h1", ...), with fields overridden.

        Raises:
            ConfigError: unknown name (the message lists all), or overrides that do not fit.
        """
        if name not in PRESETS:
            near = difflib.get_close_matches(str(name), PRESETS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"preset = {name!r}: unknown; {hint}The presets are {', '.join(PRESETS)}")
        return cls(**(PRESETS[name] | overrides))

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """This config; asked for the decoder alone, a copy whose layer count is the decoder's (caches need it)."""
        if not decoder or encoder:
            return self
        config = copy.deepcopy(self)
        config.num_encoder_layers = config.num_decoder_layers
        return config


VanillaTransformerConfig.register_for_auto_class("AutoConfig")

"""transformers' MarianMTModel, such as the opus-mt models: its folders read as ours, and ours written as one.

Marian's Transformer (Junczys-Dowmunt et al. 2018) is the paper's with concatenated sinusoids, biases in attention and
on the logits, and often another activation. Its layer norms have torch's epsilon, which no config changes.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from vanilla_transformer.configuration.configuration_vanilla_transformer import CHOICES, VanillaTransformerConfig
from vanilla_transformer.configuration.errors import UserError, problems_error
from vanilla_transformer.modeling.converters.converted import Converted, search_notes
from vanilla_transformer.modeling.converters.residual_order import with_concatenated_sinusoids
from vanilla_transformer.modeling.modeling_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    sinusoids,
)

LAYER_NORM_EPS = 1e-5
# Positions that a written model gets, and the most tokens of its outputs; opus-mt has 512 of both.
MAX_POSITIONS = 1024
MAX_LENGTH = 512

# Ours -> Marian's.
_RENAMED = [
    (re.compile(r"self_attention_residual\.norm"), "self_attn_layer_norm"),
    (re.compile(r"cross_attention_residual\.norm"), "encoder_attn_layer_norm"),
    (re.compile(r"feed_forward_residual\.norm"), "final_layer_norm"),
    (re.compile(r"self_attention\."), "self_attn."),
    (re.compile(r"cross_attention\."), "encoder_attn."),
    (re.compile(r"feed_forward\."), ""),
    (re.compile(r"lm_head\.bias"), "final_logits_bias"),
]
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

# What a Marian config may say and MarianMTModel or our model computes only in one way.
_ONLY = {
    "scale_embedding": True,
    "static_position_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
}
_SAME_ON_BOTH_SIDES = ("attention_heads", "ffn_dim")
# generation_config.json's that transformers' own search does not know.
_OUR_SEARCH = ("length_penalty_type", "max_new_tokens_over_input")

USAGE = """\
from transformers import AutoTokenizer, MarianMTModel

folder = "."
model = MarianMTModel.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
batch = tokenizer(["A sentence.", "Another one."], padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
"""


def read(source: Path) -> Converted:
    """A MarianMTModel folder as a model of ours: equal logits, its own tokenizer, its own search.

    Raises UserError that lists everything our model cannot express.
    """
    try:
        config = MarianConfig.from_pretrained(source)
        if config.model_type != "marian":
            raise UserError(f"{source} holds a model of type {config.model_type}, and not a MarianMTModel.")
        if find_spec("sentencepiece") is None and any(source.glob("*.spm")):
            raise UserError('Marian\'s tokenizers need SentencePiece: pip install "vanilla-transformer[marian]".')
        if problems := _reading_problems(config):
            raise problems_error(f"convert {source}", problems, UserError)
        marian, report = MarianMTModel.from_pretrained(source, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{source} cannot be loaded as a MarianMTModel folder: {reason}") from error
    # Old files lack the softmax's own bias and the sinusoids, which the class then makes itself.
    lost = sorted({*report["missing_keys"]} - {"final_logits_bias", *_POSITIONS})
    problems = [f"weight {name}: missing in the file; get the file again" for name in lost]
    problems += [
        f"{name}: not the sinusoids of a MarianMTModel; it would need learned positions"
        for name in _POSITIONS
        if not _is_sinusoidal(marian.state_dict()[name])
    ]
    if problems:
        raise problems_error(f"convert {source}", problems, UserError)
    config.source_lang, config.target_lang = (
        getattr(tokenizer, name, None) or getattr(config, name, None) for name in ("source_lang", "target_lang")
    )
    model = VanillaTransformerForConditionalGeneration(_our_config(config)).to(marian.dtype)
    theirs = marian.state_dict()
    weights = {name: theirs[_marian_name(name)] for name in model.state_dict()}
    weights["lm_head.bias"] = theirs["final_logits_bias"].squeeze(0)
    model.load_state_dict(weights)
    model.generation_config = marian.generation_config
    model.generation_config.length_penalty_type = "power"
    return Converted(model.eval(), tokenizer, _reading_notes(config))


def write(model: VanillaTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path) -> list:
    """Write a MarianMTModel folder with the same logits; returns what differs nevertheless.

    Raises UserError that lists everything a MarianMTModel cannot express.
    """
    config = model.config
    if problems := _writing_problems(config):
        raise problems_error(f"convert {config.name_or_path or 'the model'} to Marian", problems, UserError)
    marian = MarianMTModel(_marian_config(config)).to(model.dtype)
    weights = dict(model.state_dict())
    if config.sinusoid_layout == "interleaved":
        weights = with_concatenated_sinusoids(weights, config.d_model)
    named = {_marian_name(name): weight for name, weight in weights.items()}
    if "final_logits_bias" in named:
        named["final_logits_bias"] = named["final_logits_bias"].unsqueeze(0)
    if config.embedding_sharing == "all":
        named["model.shared.weight"] = named["model.decoder.embed_tokens.weight"]
    for name, weight in marian.state_dict().items():
        if name in _POSITIONS:
            named[name] = weight
        elif name not in named and name.endswith("bias"):  # the paper's attention and softmax have none
            named[name] = torch.zeros_like(weight)
    marian.load_state_dict(named)
    marian.generation_config = _marian_generation(model.generation_config)
    marian.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return _writing_notes(model)


def _marian_name(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


def _reading_problems(config: MarianConfig) -> list[str]:
    problems = []
    for name, only in _ONLY.items():
        value = getattr(config, name, only)
        if value != only:
            problems.append(f"{name} = {value}: only {only} can be expressed; choose a model that was trained so")
    if _activation(config) not in CHOICES["activation"]:
        choices = " or ".join(CHOICES["activation"])
        problems.append(f"activation_function = {config.activation_function}: choose a model with {choices}")
    for name in _SAME_ON_BOTH_SIDES:
        ours, theirs = getattr(config, f"encoder_{name}"), getattr(config, f"decoder_{name}")
        if ours != theirs:
            problems.append(
                f"encoder_{name} = {ours} and decoder_{name} = {theirs}: encoder and decoder need the same number; "
                "choose a model with equal ones"
            )
    if config.decoder_vocab_size != config.vocab_size:
        problems.append(
            f"vocab_size = {config.vocab_size} and decoder_vocab_size = {config.decoder_vocab_size}: source and target "
            "need vocabularies of one size; choose a model with a shared vocabulary"
        )
    if config.d_model % 2:
        problems.append(f"d_model = {config.d_model}: sinusoidal positions need an even size; choose another model")
    return problems


def _activation(config: MarianConfig) -> str:
    return "swish" if config.activation_function == "silu" else config.activation_function


def _is_sinusoidal(table_LD: torch.Tensor) -> bool:
    L, D = table_LD.shape
    # float16 files hold them too.
    return torch.allclose(table_LD.double(), sinusoids(torch.arange(L), D, "concatenated"), atol=1e-3)


def _our_config(config: MarianConfig) -> VanillaTransformerConfig:
    if config.share_encoder_decoder_embeddings and config.tie_word_embeddings:
        sharing = "all"
    else:
        sharing = "decoder" if config.tie_word_embeddings else "none"
    return VanillaTransformerConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        d_ff=config.encoder_ffn_dim,
        num_encoder_layers=config.encoder_layers,
        num_decoder_layers=config.decoder_layers,
        num_heads=config.encoder_attention_heads,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        relu_dropout=config.activation_dropout,
        label_smoothing=0.0,  # MarianMTModel has none
        sinusoid_layout="concatenated",
        attention_bias=True,
        activation=_activation(config),
        output_bias=True,
        embedding_sharing=sharing,
        layer_norm_eps=LAYER_NORM_EPS,
        use_cache=config.use_cache,
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        source_lang=config.source_lang,
        target_lang=config.target_lang,
    )


def _reading_notes(config: MarianConfig) -> list[str]:
    notes = [f"Positions: the Marian model ends at {config.max_position_embeddings}, this one has no limit."]
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if rate := getattr(config, name):
            notes.append(f"{name} = {rate}: this model has no such dropout when it is trained further.")
    return notes


def _writing_problems(config: VanillaTransformerConfig) -> list[str]:
    problems = []
    only = {
        "norm_position": ("post", "train with norm_position: post"),
        "positional_encoding": ("sinusoidal", "train with positional_encoding: sinusoidal"),
    }
    for name, (value, remedy) in only.items():
        if getattr(config, name) != value:
            problems.append(f"{name} = {getattr(config, name)}: MarianMTModel has only {value}; {remedy}")
    head = config.d_model / config.num_heads
    for name in ("d_k", "d_v"):
        if getattr(config, name) != head:
            problems.append(
                f"{name} = {getattr(config, name)}: MarianMTModel has only d_model / num_heads = {head:g}; "
                "train with that, or convert to CTranslate2 or ONNX"
            )
    return problems


def _marian_config(config: VanillaTransformerConfig) -> MarianConfig:
    return MarianConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        encoder_layers=config.num_encoder_layers,
        decoder_layers=config.num_decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.relu_dropout,
        activation_function=config.activation,
        scale_embedding=True,
        max_position_embeddings=MAX_POSITIONS,
        share_encoder_decoder_embeddings=config.embedding_sharing == "all",
        tie_word_embeddings=config.embedding_sharing != "none",
        use_cache=config.use_cache,
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        forced_eos_token_id=None,
    )


def _marian_generation(ours: GenerationConfig) -> GenerationConfig:
    fields: dict[str, Any] = {name: value for name, value in ours.to_dict().items() if name not in _OUR_SEARCH}
    generation = GenerationConfig.from_dict(fields)
    if generation.max_length is None and generation.max_new_tokens is None:
        generation.max_length = MAX_LENGTH
    if generation.early_stopping == "never":  # transformers' own rule of this name goes on to max_length, mostly
        generation.early_stopping = False
    return generation


def _writing_notes(model: VanillaTransformerForConditionalGeneration) -> list[str]:
    config = model.config
    notes = search_notes(
        model.generation_config,
        "MarianMTModel",
        f"generation_config.json has length ^ {model.generation_config.length_penalty}, the nearest in form",
        f"generation_config.json has max_length = {MAX_LENGTH}",
    )
    notes.append(f"Positions: the Marian model ends at {MAX_POSITIONS}, the original has no limit.")
    if config.layer_norm_eps != LAYER_NORM_EPS:
        notes.append(
            f"layer_norm_eps = {config.layer_norm_eps}: MarianMTModel computes with {LAYER_NORM_EPS}, so that "
            "logits differ from about the fourth digit on. Train with layer_norm_eps: 1e-5 for equal ones."
        )
    if config.label_smoothing:
        notes.append(
            f"label_smoothing = {config.label_smoothing}: MarianMTModel has none; give Seq2SeqTrainer "
            "label_smoothing_factor when it is trained further."
        )
    return notes

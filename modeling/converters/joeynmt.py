"""Transformers trained with JoeyNMT (Kreutzer et al. 2019), versions 1 and 2: checkpoint, config.yaml and vocabularies.

The checkpoint is a pickle, of which torch loads tensors and plain containers alone: no code of it runs.
"""

import gzip
import io
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from vanilla_transformer.configuration.configuration_vanilla_transformer import CHOICES, VanillaTransformerConfig
from vanilla_transformer.configuration.errors import UsageError, UserError, problems_error
from vanilla_transformer.modeling.converters.converted import Converted
from vanilla_transformer.modeling.converters.joint_vocabulary import JointVocabulary
from vanilla_transformer.modeling.converters.words_tokenizer import words_tokenizer
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

CONFIG = "config.yaml"
SIDES = ("encoder", "decoder")
_TEXTS = {"encoder": "src", "decoder": "trg"}
# Their tokens by role, with JoeyNMT's defaults.
_SPECIAL = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}

# Our name of a layer's part -> JoeyNMT's.
_ATTENTION = {"q_proj": "q_layer", "k_proj": "k_layer", "v_proj": "v_layer", "out_proj": "output_layer"}
_FEED_FORWARD = {
    "feed_forward.fc1": "feed_forward.pwff_layer.0",
    "feed_forward.fc2": "feed_forward.pwff_layer.3",
    "feed_forward_residual.norm": "feed_forward.layer_norm",
}
LAYERS = {
    "encoder": _FEED_FORWARD
    | {"self_attention_residual.norm": "layer_norm"}
    | {f"self_attention.{ours}": f"src_src_att.{theirs}" for ours, theirs in _ATTENTION.items()},
    "decoder": _FEED_FORWARD
    | {"self_attention_residual.norm": "x_layer_norm", "cross_attention_residual.norm": "dec_layer_norm"}
    | {f"self_attention.{ours}": f"trg_trg_att.{theirs}" for ours, theirs in _ATTENTION.items()}
    | {f"cross_attention.{ours}": f"src_trg_att.{theirs}" for ours, theirs in _ATTENTION.items()},
}
# With JoeyNMT's defaults.
_SAME_ON_BOTH_SIDES = {"hidden_size": 512, "ff_size": 2048, "num_heads": None, "activation": "relu", "layer_norm": None}
# Not learned: JoeyNMT saves its sinusoids, ours are computed.
_TABLES = {"encoder.pe.pe", "decoder.pe.pe"}


def read(source: Path) -> Converted:
    """A folder of JoeyNMT's with a checkpoint, or the checkpoint in it, as a model of ours with equal logits.

    Beside the checkpoint lie config.yaml, src_vocab.txt and trg_vocab.txt. Of several checkpoints best.ckpt is read.
    Raises UserError that lists everything our model cannot express, UsageError where files are missing.
    """
    checkpoint = _checkpoint(source)
    settings = _settings(checkpoint.with_name(CONFIG))
    vocabulary = JointVocabulary.of(*(_lines(checkpoint.with_name(f"{side}_vocab.txt")) for side in ("src", "trg")))
    weights = _weights(checkpoint)
    special = _special_tokens(settings)
    if problems := [*_model_problems(settings["model"], weights), *_data_problems(settings, special, vocabulary)]:
        raise problems_error(f"convert {checkpoint}", problems, UserError)
    config = _our_config(settings, weights, special, vocabulary)
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.load_state_dict(_our_weights(weights, config, vocabulary))
    _set_search(model, settings.get("testing") or {})
    lowercase = bool(_side(settings, "src").get("lowercase", False))
    tokenizer = words_tokenizer(
        vocabulary.tokens,
        unk=special["unk"],
        pad=special["pad"],
        bos=special["bos"],
        eos=special["eos"],
        lowercase=lowercase,
    )
    return Converted(model, tokenizer, _notes(settings, vocabulary))


def _checkpoint(source: Path) -> Path:
    if source.is_file():
        found = [source]
    else:
        found = sorted(path for pattern in ("*.ckpt", "*.ckpt.gz") for path in source.glob(pattern))
        found = [path for path in found if path.name in ("best.ckpt", "best.ckpt.gz")] or found
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise UsageError(f"{source}: exactly one *.ckpt file is needed ({listed}); name the file itself.")
    needed = (CONFIG, "src_vocab.txt", "trg_vocab.txt")
    if missing := [name for name in needed if not found[0].with_name(name).is_file()]:
        raise UsageError(f"{found[0].parent} lacks {', '.join(missing)}, which JoeyNMT writes beside its checkpoints.")
    return found[0]


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    try:
        if not all(settings["model"][side]["embeddings"] and _side(settings, end) for side, end in _TEXTS.items()):
            raise TypeError
    except (KeyError, TypeError):
        raise UserError(f"{path} is not a configuration of JoeyNMT 1 or 2: it describes no model and data.") from None
    return settings


def _side(settings: dict[str, Any], end: str) -> dict[str, Any]:
    """What is said of the "src" or "trg" text; version 1 says it for both at once."""
    data = settings["data"]
    return data[end] if isinstance(data[end], dict) else data | {"lang": data[end]}


def _lines(path: Path) -> list[str]:
    # JoeyNMT ends each token with a newline alone; a token may hold any other kind of line break.
    return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")


def _weights(path: Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)["model_state"]
    except (OSError, EOFError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path} cannot be read as a checkpoint of JoeyNMT ({type(error).__name__}). Only tensors are taken from "
            "it; anything that would run code is refused."
        ) from error


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    given = settings["data"].get("special_symbols") or {}
    return {role: given.get(f"{role}_token", token) for role, token in _SPECIAL.items()}


def _norm(side: dict[str, Any], weights: Mapping[str, torch.Tensor], name: str) -> str | None:
    """Where config.yaml puts the layer norms; where it does not say, "pre" with a last norm, as version 1 has it."""
    # Version 2.3 without the setting computes neither: an encoder with "pre" that lacks the last norm.
    return side.get("layer_norm", "pre" if f"{name}.layer_norm.weight" in weights else None)


def _model_problems(model: dict[str, Any], weights: Mapping[str, torch.Tensor]) -> list[str]:
    problems = []
    for name in SIDES:
        side, where = model[name], f"model.{name}"
        embeddings = side["embeddings"]
        if side.get("type", "recurrent") != "transformer":
            problems.append(f"{where}.type = {side.get('type', 'recurrent')}: choose a model of type transformer")
            continue
        if not embeddings.get("scale", False):
            problems.append(f"{where}.embeddings.scale = False: choose a model trained with scale: True")
        if side.get("activation", "relu") not in CHOICES["activation"]:
            choices = " or ".join(CHOICES["activation"])
            problems.append(f"{where}.activation = {side['activation']}: choose a model with {choices}")
        if side.get("alpha", 1.0) != 1.0:
            problems.append(f"{where}.alpha = {side['alpha']}: residuals have no weight here; choose a model with 1.0")
        norm = _norm(side, weights, name)
        if norm is None:
            problems.append(f"{where}.layer_norm: not said; say pre or post in config.yaml, as the model was trained")
        elif (norm == "pre") != (f"{name}.layer_norm.weight" in weights):
            problems.append(
                f"{where}.layer_norm = {norm}: the checkpoint's weights are of another model; put back the config.yaml "
                "that it was trained with"
            )
    for key, default in _SAME_ON_BOTH_SIDES.items():
        encoder, decoder = (model[name].get(key, default) for name in SIDES)
        if encoder != decoder:
            problems.append(
                f"model.encoder.{key} = {encoder} and model.decoder.{key} = {decoder}: choose a model with the same on "
                "both sides"
            )
    return problems


def _data_problems(settings: dict[str, Any], special: dict[str, str], vocabulary: JointVocabulary) -> list[str]:
    problems = []
    for end in _TEXTS.values():
        side, where = _side(settings, end), f"data.{end}"
        if side.get("level", "word") != "word":
            problems.append(
                f"{where}.level = {side['level']}: cutting words is JoeyNMT's; give the model text that is cut, and "
                "say level: word in config.yaml"
            )
        if side.get("normalize", False):
            problems.append(f"{where}.normalize = True: normalise the text yourself, and say False in config.yaml")
        pretokenizer = (side.get("tokenizer_cfg") or {}).get("pretokenizer", "none")
        if pretokenizer != "none":
            problems.append(
                f"{where}.tokenizer_cfg.pretokenizer = {pretokenizer}: tokenise the text yourself, and say none in "
                "config.yaml"
            )
    if tags := (settings["data"].get("special_symbols") or {}).get("lang_tags"):
        problems.append(f"data.special_symbols.lang_tags = {tags}: choose a model of one language pair")
    if missing := [token for token in special.values() if token not in vocabulary.tokens]:
        problems.append(f"vocabulary: lacks {' '.join(missing)}; get the vocabulary files of this checkpoint")
    return problems


def _our_config(
    settings: dict[str, Any], weights: Mapping[str, torch.Tensor], special: dict[str, str], vocabulary: JointVocabulary
) -> VanillaTransformerConfig:
    model, encoder = settings["model"], settings["model"]["encoder"]
    number = {role: vocabulary.tokens.index(token) for role, token in special.items()}
    if vocabulary.is_shared and model.get("tied_embeddings") and model.get("tied_softmax"):
        sharing = "all"
    else:
        sharing = "decoder" if model.get("tied_softmax") else "none"
    dropout = encoder.get("dropout", 0.1)
    return VanillaTransformerConfig(
        vocab_size=len(vocabulary.tokens),
        d_model=encoder["hidden_size"],
        d_ff=encoder["ff_size"],
        num_encoder_layers=encoder["num_layers"],
        num_decoder_layers=model["decoder"]["num_layers"],
        num_heads=encoder["num_heads"],
        # JoeyNMT has one rate for all places.
        dropout=dropout,
        attention_dropout=dropout,
        relu_dropout=dropout,
        label_smoothing=(settings.get("training") or {}).get("label_smoothing", 0.0),
        label_smoothing_over="others",
        norm_position=str(_norm(encoder, weights, "encoder")),
        attention_bias=True,
        activation=encoder.get("activation", "relu"),
        output_bias=not vocabulary.is_shared,
        embedding_sharing=sharing,
        layer_norm_eps=1e-6,
        bos_token_id=number["bos"],
        pad_token_id=number["pad"],
        eos_token_id=number["eos"],
        decoder_start_token_id=number["bos"],
        source_lang=_side(settings, "src").get("lang"),
        target_lang=_side(settings, "trg").get("lang"),
    )


def _our_weights(
    weights: Mapping[str, torch.Tensor], config: VanillaTransformerConfig, vocabulary: JointVocabulary
) -> dict[str, torch.Tensor]:
    counts = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    names = {
        f"model.{side}.layers.{number}.{ours}": f"{side}.layers.{number}.{theirs}"
        for side in SIDES
        for number in range(counts[side])
        for ours, theirs in LAYERS[side].items()
    }
    if config.norm_position == "pre":
        names |= {f"model.{side}.norm": f"{side}.layer_norm" for side in SIDES}
    taken = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in names.items() for kind in ("weight", "bias")}
    tables = {"src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"}
    expected = {*taken.values(), *tables}
    if odd := sorted(expected ^ ({*weights} - _TABLES)):
        raise UserError(f"The checkpoint is not of the model that config.yaml describes: {', '.join(odd[:3])} differ.")
    ours = {name: weights[theirs] for name, theirs in taken.items()}
    ours["model.encoder.embed_tokens.weight"] = vocabulary.source_rows(weights["src_embed.lut.weight"])
    ours["model.decoder.embed_tokens.weight"] = vocabulary.target_rows(weights["trg_embed.lut.weight"])
    ours["lm_head.weight"] = vocabulary.target_rows(weights["decoder.output_layer.weight"])
    if config.output_bias:
        ours["lm_head.bias"] = vocabulary.output_bias()
    return ours


def _set_search(model: VanillaTransformerForConditionalGeneration, testing: dict[str, Any]) -> None:
    """JoeyNMT's beam search has GNMT's penalty too; its limit on the output is one number for all sentences."""
    generation = model.generation_config
    generation.num_beams = max(1, testing.get("beam_size", 1))
    # Below 0 it divides by nothing.
    generation.length_penalty = max(0.0, float(testing.get("beam_alpha", -1)))
    if generation.num_beams == 1:
        generation.length_penalty, generation.early_stopping = 1.0, None  # greedy: transformers wants no others
    if testing.get("max_output_length", -1) > 0:
        generation.max_new_tokens, generation.max_new_tokens_over_input = testing["max_output_length"], None


def _notes(settings: dict[str, Any], vocabulary: JointVocabulary) -> list[str]:
    notes = []
    if not vocabulary.is_shared:
        notes.append(
            f"Vocabulary: source ({len(vocabulary.source)} tokens) and target ({len(vocabulary.target)}) are one of "
            f"{len(vocabulary.tokens)} here; the model never writes a token that only the source has."
        )
    for name in ("repetition_penalty", "no_repeat_ngram_size"):
        value = (settings.get("testing") or {}).get(name, -1)
        if not math.isclose(value, -1) and not math.isclose(value, 1):
            notes.append(f"testing.{name} = {value} was left out of the search; generate takes it as an argument.")
    model = settings["model"]
    rates = {model[side].get("dropout", 0.1) for side in SIDES}
    rates |= {model[side]["embeddings"]["dropout"] for side in SIDES if "dropout" in model[side]["embeddings"]}
    if len(rates) > 1:
        rate = model["encoder"].get("dropout", 0.1)
        notes.append(f"Dropout: JoeyNMT had several rates; when trained further, this model has {rate} everywhere.")
    return notes

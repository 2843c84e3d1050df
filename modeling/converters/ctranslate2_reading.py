"""From CTranslate2: encoder-decoder models in float32 or float16, post-norm or pre-norm, as models of ours."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.configuration.errors import UsageError, UserError, problems_error
from vanilla_transformer.modeling.converters.converted import Converted
from vanilla_transformer.modeling.converters.ctranslate2_file import CTranslate2File, read_file
from vanilla_transformer.modeling.converters.ctranslate2_variables import FLAGS, KINDS, CTranslate2Variables
from vanilla_transformer.modeling.converters.joint_vocabulary import JointVocabulary
from vanilla_transformer.modeling.converters.words_tokenizer import words_tokenizer
from vanilla_transformer.modeling.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

REVISIONS = range(2, 8)
PADS = ("<pad>", "<blank>")


def read(source: Path) -> Converted:
    """A CTranslate2 model folder as a model of ours with equal logits.

    Its tokenizer is the one in the folder, else one that takes tokens between spaces, as translate_batch does.
    Raises UserError that lists everything our model cannot express, UsageError where files are missing.
    """
    file = _file(source)
    settings = _settings(source, file)
    special = {role: settings[f"{role}_token"] for role in ("unk", "bos", "eos")}
    vocabulary, special["pad"] = _joint_vocabulary(source, special["unk"])
    variables = CTranslate2Variables(file, vocabulary)
    absent = {*special.values(), settings["decoder_start_token"]} - {*vocabulary.tokens}
    problems = [f"{token}: not in the vocabulary, which needs it; get the file again" for token in sorted(absent)]
    if problems := variables.problems + problems:
        raise problems_error(f"convert {source}", problems, UserError)
    config = VanillaTransformerConfig(
        **variables.fields,
        **{f"{role}_token_id": vocabulary.tokens.index(special[role]) for role in ("bos", "pad", "eos")},
        decoder_start_token_id=vocabulary.tokens.index(settings["decoder_start_token"]),
        vocab_size=len(vocabulary.tokens),
        layer_norm_eps=settings["layer_norm_epsilon"],
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    try:
        model.load_state_dict(variables.weights)
    except RuntimeError as error:
        raise UserError(f"{source}: its weights are not those of one Transformer: {error}") from error
    # translate_batch's own search: beam 2, length ^ 1, at most 256 tokens.
    generation = model.generation_config
    generation.num_beams, generation.length_penalty, generation.length_penalty_type = 2, 1.0, "power"
    generation.max_new_tokens, generation.max_new_tokens_over_input, generation.early_stopping = 256, None, True
    if (source / "tokenizer_config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(source)
    else:
        before, after = bool(settings["add_source_bos"]), bool(settings["add_source_eos"])
        tokenizer = words_tokenizer(vocabulary.tokens, **special, before=before, after=after)
    return Converted(model, tokenizer, _notes(config, vocabulary, tokenizer))


def _file(source: Path) -> CTranslate2File:
    path = next((path for name in ("model.bin", "model.bin.gz") if (path := source / name).is_file()), None)
    if path is None:
        raise UsageError(f"{source} is not a CTranslate2 model folder: it has no model.bin.")
    try:
        file = read_file(path)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UserError(f"{path} cannot be read as a CTranslate2 model: {error}.") from error
    if file.kind not in KINDS or file.revision not in REVISIONS:
        raise UserError(
            f"{path} is a {file.kind} of revision {file.revision}; only encoder-decoder models ({', '.join(KINDS)}) of "
            f"revisions {REVISIONS[0]} to {REVISIONS[-1]} can be converted."
        )
    if any(value.ndim > 1 and value.dtype.kind == "i" for value in file.variables.values()):
        raise UserError(
            f"{path} has quantised weights, which have lost digits; convert from the model in float32 or float16."
        )
    return file


def _settings(source: Path, file: CTranslate2File) -> dict[str, Any]:
    """config.json over what older files hold in model.bin, over the engine's defaults."""
    flags = {flag: bool(file.variables.get(flag, flag == "with_target_bos")) for flag in FLAGS}
    settings: dict[str, Any] = {
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "decoder_start_token": "<s>" if flags["with_target_bos"] else "</s>",
        "add_source_bos": flags["with_source_bos"],
        "add_source_eos": flags["with_source_eos"],
        "layer_norm_epsilon": 1e-5,
    }
    path = source / "config.json"
    if path.is_file():
        given = _json(path)
        settings |= {name: value for name, value in given.items() if value is not None}
    return settings


def _joint_vocabulary(source: Path, unk: str) -> tuple[JointVocabulary, str]:
    """The tokens of both sides, and which of them pads: one is added where there is none."""
    vocabulary = JointVocabulary.of(*(_vocabulary(source, side, unk) for side in ("source", "target")))
    pad = next((token for token in PADS if token in vocabulary.tokens), None)
    if pad is None:
        pad = PADS[0]
        vocabulary.tokens.append(pad)
    return vocabulary, pad


def _vocabulary(source: Path, side: str, unk: str) -> list[str]:
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if (path := source / f"{name}.json").is_file():
            tokens = list(_json(path))
        elif (path := source / f"{name}.txt").is_file():
            # Only a newline ends a token; it may hold any other kind of line break.
            tokens = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        else:
            continue
        return tokens if unk in tokens else [*tokens, unk]  # as the engine does
    raise UsageError(f"{source} has no {side}_vocabulary or shared_vocabulary, in .json or .txt.")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from error


def _notes(
    config: VanillaTransformerConfig, vocabulary: JointVocabulary, tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    notes = []
    if config.positional_encoding == "learned":
        notes.append(
            f"Positions: a table of {config.max_source_positions} for the source and {config.max_target_positions} for "
            "the target; longer sentences are refused."
        )
    if not vocabulary.is_shared:
        notes.append(
            f"Vocabulary: source ({len(vocabulary.source)} tokens) and target ({len(vocabulary.target)}) are one of "
            f"{len(vocabulary.tokens)} here; the model never writes a token that only the source has."
        )
    if tokenizer("").input_ids[-1:] != [config.eos_token_id]:
        notes.append(
            f"Tokenizer: the model was trained on sources without {tokenizer.eos_token}, so none is appended. Append "
            "it to the ids of targets yourself when you train the model further or score with it."
        )
    return notes

"""From a recipe file and overrides to dataclasses, with every problem reported at once."""

import dataclasses
import difflib
import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from vanilla_transformer.configuration.config_common import ConfigError
from vanilla_transformer.configuration.errors import CorpusError, problems_error
from vanilla_transformer.training.corpus_files import SPLIT_NAMES, as_list, find_files
from vanilla_transformer.training.named_corpora import NAMES
from vanilla_transformer.training.readers import FORMATS
from vanilla_transformer.training.recipe_sections import (
    DataConfig,
    DecodingConfig,
    EvaluationConfig,
    ModelConfig,
    Recipe,
    TokenizerConfig,
    TrackingConfig,
    TrainingConfig,
    config_classes,
)
from vanilla_transformer.training.recipe_values import fitting, hint, misfit, show
from vanilla_transformer.training.recipe_yaml import read_mapping, read_value, write_mapping
from vanilla_transformer.training.redaction import ADVICE, holds_secret

__all__ = [
    "DataConfig",
    "DecodingConfig",
    "EvaluationConfig",
    "ModelConfig",
    "Recipe",
    "TokenizerConfig",
    "TrackingConfig",
    "TrainingConfig",
    "load_recipe",
    "recipe_from_mapping",
    "to_mapping",
    "to_yaml",
]

SECTIONS: dict[str, type] = get_type_hints(Recipe)
# Fields of the model's config that a run decides, not a recipe, and where they come from.
DECIDED_ELSEWHERE = {
    "vocab_size": "set tokenizer.vocab_size",
    "source_lang": "set data.source_lang",
    "target_lang": "set data.target_lang",
    "is_encoder_decoder": "it is always true",
    **dict.fromkeys(
        ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"), "the tokenizer decides it"
    ),
}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a YAML file, changed by overrides such as "training.seed=3".

    Relative paths in it are looked up in the working directory, then in the recipe's own folder; the result holds
    absolute ones.

    Raises UsageError with every problem of the file and the overrides, each naming key, value and remedy.
    """
    path = Path(path)
    return recipe_from_mapping(read_mapping(path), overrides, folder=path.parent, name=path.name)


def recipe_from_mapping(
    mapping: dict[Any, Any], overrides: Sequence[str] = (), folder: str | Path = ".", name: str = "given"
) -> Recipe:
    """The recipe in a mapping of sections, as `load_recipe` makes it from the one in a file in `folder`."""
    problems: list[str] = []
    values = _checked_sections(mapping, problems)
    _apply_overrides(values, overrides, problems)
    sections: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        missing = [
            field.name
            for field in dataclasses.fields(kind)
            if field.default is field.default_factory is dataclasses.MISSING and field.name not in values[section]
        ]
        # A key whose value was refused has its line already.
        refused = {problem.split(" = ")[0].removesuffix(":") for problem in problems}
        problems += [f"{section}.{key}: missing" for key in missing if f"{section}.{key}" not in refused]
        if missing:
            continue
        if section == "model":
            own = {name: values[section].pop(name) for name in ("preset", "architecture") if name in values[section]}
            sections[section] = ModelConfig(**own, fields=values[section])
        else:
            sections[section] = kind(**values[section])
            problems += [f"{section}.{problem}" for problem in sections[section].problems()]
    if "data" in sections:
        sections["data"] = _with_found_corpus(sections["data"], Path(folder), problems)
    sections["tokenizer"] = _with_found_tokenizer(sections["tokenizer"], Path(folder), problems)
    longest = sections["data"].max_length if "data" in sections else 0
    problems += _model_problems(sections["model"], sections["tokenizer"].vocab_size, longest)
    problems += _problems_between(sections["model"], sections["training"], sections["evaluation"])
    if problems:
        raise problems_error(f"recipe {name}", problems)
    return Recipe(**sections)


def to_mapping(recipe: Any) -> dict[str, dict[str, Any]]:
    """The whole Recipe, or FinetuneRecipe, as sections of plain values, every default written out."""
    mapping = dataclasses.asdict(recipe)
    if "model" in mapping:
        mapping["model"] |= mapping["model"].pop("fields")
    return mapping


def to_yaml(recipe: Any) -> str:
    """`to_mapping` as a file; loading it gives an equal recipe."""
    return write_mapping(to_mapping(recipe))


def _keys(section: str) -> dict[str, Any]:
    """The section's keys with their annotations; a model field's value is checked by the config itself (Any)."""
    if section != "model":
        return get_type_hints(SECTIONS[section])
    own = get_type_hints(ModelConfig)
    fields = {name for config in config_classes().values() for name in config.__annotations__}
    hidden = {"model_type", "keys_to_ignore_at_inference", "attribute_map", *DECIDED_ELSEWHERE}
    return {"preset": own["preset"], "architecture": own["architecture"], **dict.fromkeys(sorted(fields - hidden), Any)}


def _checked_sections(mapping: dict[Any, Any], problems: list[str]) -> dict[str, dict[str, Any]]:
    """The known keys of every section with values of the right type; everything else is a problem."""
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section, content in mapping.items():
        if section not in SECTIONS:
            problems.append(f"{section}: unknown section{hint(section, SECTIONS, sorted(SECTIONS))}")
        elif content is not None and not isinstance(content, dict):
            problems.append(f"{section} = {show(content)}: must map keys to values")
        else:
            for key, value in (content or {}).items():
                _set(values, section, str(key), [value], problems)
    return values


def _apply_overrides(values: dict[str, dict[str, Any]], overrides: Sequence[str], problems: list[str]) -> None:
    for override in overrides:
        name, equals, text = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and key):
            problems.append(f"{override}: must be section.key=value, for example training.seed=3")
        elif section not in SECTIONS:
            problems.append(f"{name}: unknown section{hint(section, SECTIONS, sorted(SECTIONS))}")
        else:
            value = read_value(text)
            # A key that is text takes what was typed: data.revision=2024 needs no quotes.
            _set(values, section, key, [value] if value is None else [value, text], problems)


def _set(values: dict[str, dict[str, Any]], section: str, key: str, candidates: list[Any], problems: list[str]) -> None:
    """Set a key to the first candidate that has its type; a token is neither set nor shown."""
    texts = candidates[0] if isinstance(candidates[0], list) else candidates
    if any(isinstance(text, str) and holds_secret(text) for text in texts):
        problems.append(f"{section}.{key}: {ADVICE}")
        return
    keys = _keys(section)
    if key not in keys:
        problems.append(_unknown_key(section, key, candidates[0]))
        return
    for candidate in candidates:
        fits = list(fitting(candidate, keys[key]))
        if fits:
            values[section][key] = fits[0]
            return
    problems.append(f"{section}.{key} = {misfit(candidates[0], keys[key])}")


def _unknown_key(section: str, key: str, value: Any) -> str:
    line = f"{section}.{key} = {show(value)}: "
    if section == "model" and key in DECIDED_ELSEWHERE:
        return f"{line}not a recipe's choice; {DECIDED_ELSEWHERE[key]}"
    same_key = [f"{other}.{key}" for other in SECTIONS if other != section and key in _keys(other)]
    if section == "model":
        same_key += [f"model.{config.attribute_map.get(key)}" for config in config_classes().values()]  # Hugging Face's
    if same_key := [name for name in same_key if not name.endswith(".None")]:
        return f"{line}unknown key; did you mean {same_key[0]}?"
    return f"{line}unknown key{hint(key, _keys(section), sorted(_keys(section)), prefix=f'{section}.')}"


def _with_found_corpus(data: DataConfig, folder: Path, problems: list[str]) -> DataConfig:
    """The config with an absolute path where the corpus is local; names every file that is missing."""
    if data.corpus in NAMES:
        return data
    langs = (data.source_lang, data.target_lang)
    found = _find(data.corpus, folder, langs)
    if found is None:
        near = difflib.get_close_matches(data.corpus, NAMES, n=1, cutoff=0.75)
        if near:
            problems.append(f"data.corpus = {data.corpus}: unknown; did you mean {near[0]}?")
        elif not HUB_ID.fullmatch(data.corpus) or data.corpus.endswith((".gz", ".txt", *FORMATS)):
            problems.append(f"data.corpus = {data.corpus}: no such file or folder ({_places(data.corpus, folder)})")
        return data
    try:
        find_files(found, {split: as_list(getattr(data, split)) for split in SPLIT_NAMES}, langs)
    except CorpusError as error:
        problems += _lines(error)
    return dataclasses.replace(data, corpus=found)


def _with_found_tokenizer(tokenizer: TokenizerConfig, folder: Path, problems: list[str]) -> TokenizerConfig:
    for key, kind in (("path", "folder"), ("codes", "file")):
        name = getattr(tokenizer, key)
        if name is None:
            continue
        found = _find(name, folder)
        if found is None:
            problems.append(f"tokenizer.{key} = {name}: no such {kind} ({_places(name, folder)})")
        else:
            tokenizer = dataclasses.replace(tokenizer, **{key: found})
    return tokenizer


def _find(name: str, folder: Path, langs: tuple[str, ...] = ()) -> str | None:
    """The absolute path of a file, folder or pattern that files fit, in the working directory or else in `folder`."""
    for place in (Path.cwd(), folder):
        path = os.path.abspath(place / Path(name).expanduser())
        if name.strip() and (os.path.exists(path) or any(glob.glob(path.replace("{lang}", lang)) for lang in langs)):
            return path
    return None


def _places(name: str, folder: Path) -> str:
    if Path(name).expanduser().is_absolute():
        return "looked there only"
    return "looked in " + " and ".join(dict.fromkeys([str(Path.cwd()), os.path.abspath(folder)]))


def _lines(error: Exception) -> list[str]:
    """The single problems that an error made by problems_error, or the model's config, lists."""
    first, *listed = str(error).splitlines()
    return [line.strip() for line in listed] or [first]


def _model_problems(model: ModelConfig, vocab_size: int, longest: int) -> list[str]:
    """What is wrong with the model's fields, and learned positions that end before the longest training sentence."""
    try:
        config = model.to_config(max(vocab_size, 5))
    except ConfigError as error:
        return [f"model.{line}" for line in _lines(error)]
    limits = {name: getattr(config, name, None) for name in ("max_source_positions", "max_target_positions")}
    return [
        f"model.{name} = {limit}: below data.max_length = {longest}; raise it, or lower data.max_length"
        for name, limit in limits.items()
        if limit is not None and limit < longest
    ]


def _problems_between(model: ModelConfig, training: TrainingConfig, evaluation: EvaluationConfig) -> list[str]:
    problems = []
    if training.patience is not None and training.early_stopping_metric == "bleu" and not evaluation.decode:
        problems.append(
            "training.patience: evaluation.decode = false gives no BLEU to watch; "
            "set training.early_stopping_metric = loss, or evaluation.decode = true"
        )
    if training.activation_checkpointing and model.architecture == "recurrent_seq2seq":
        problems.append("training.activation_checkpointing = true: recurrent models do not have it; leave it out")
    return problems

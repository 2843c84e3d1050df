"""What the configs of all models here share: one error that lists every problem, the checks, the pipeline's entry.

This file ships to the Hub beside the weights and must run without the package: it imports the standard library alone.
"""

import copy
import difflib
from typing import Any

TOKEN_FIELDS = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")


class ConfigError(ValueError):
    """Model settings that are out of range or contradict each other; the message lists every problem."""

    exit_code = 2


def raise_problems(config: Any, problems: list[str]) -> None:
    """Raises ConfigError with all of the problems, if there are any."""
    if problems:
        count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
        raise ConfigError("\n".join([f"{type(config).__name__}: {count}", *(f"  {text}" for text in problems)]))


def count_problems(config: Any, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[str]:
    """Fields that must be whole numbers of at least 1; the `optional` ones may be None."""
    return [
        f"{name} = {value!r}: must be a whole number of at least 1"
        for name in names
        if not is_count(value := getattr(config, name)) and not (value is None and name in optional)
    ]


def probability_problems(config: Any, names: tuple[str, ...]) -> list[str]:
    """Fields that must be at least 0 and below 1."""
    return [
        f"{name} = {value!r}: must be at least 0 and below 1, for example 0.1"
        for name in names
        if not is_number(value := getattr(config, name)) or not 0 <= value < 1
    ]


def choice_problems(config: Any, choices: dict[str, tuple[str, ...]]) -> list[str]:
    """Named switches with a value that is none of theirs."""
    problems = []
    for name, values in choices.items():
        value = getattr(config, name)
        if value not in values:
            near = difflib.get_close_matches(str(value), values, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(f"{name} = {value!r}: choose {' or '.join(values)}{hint}")
    return problems


def switch_problems(config: Any, names: tuple[str, ...]) -> list[str]:
    """Fields that must be true or false."""
    return [
        f"{name} = {value!r}: must be true or false"
        for name in names
        if not isinstance(value := getattr(config, name), bool)
    ]


def token_problems(config: Any) -> list[str]:
    """Special tokens outside the vocabulary, and a pad that is </s>."""
    problems, size = [], config.vocab_size
    for name in TOKEN_FIELDS:
        value = getattr(config, name)
        # Marian's models have no <s>.
        if name == "bos_token_id" and value is None:
            continue
        if not is_int(value) or value < 0 or (is_int(size) and 0 < size <= value):
            problems.append(f"{name} = {value!r}: must be a token number below vocab_size = {size!r}")
    if config.pad_token_id == config.eos_token_id:
        problems.append(f"pad_token_id = {config.pad_token_id!r}: equals eos_token_id; give padding its own token")
    return problems


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return is_int(value) and value >= 1


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Pipelines(dict):
    """custom_pipelines as `pipeline()` asks for it: "translation_en_to_de" is "translation" too.

    An entry is handed out as a copy, because `pipeline()` writes classes into it, which no config.json can hold.
    """

    def __contains__(self, task: object) -> bool:
        return super().__contains__(self._plain(task))

    def __getitem__(self, task: str) -> Any:
        return copy.deepcopy(super().__getitem__(self._plain(task)))

    @staticmethod
    def _plain(task: Any) -> Any:
        return "translation" if str(task).startswith("translation_") else task


def translation_pipeline() -> Pipelines:
    """The custom_pipelines of a model whose folder holds pipeline_vanilla_transformer.py."""
    entry = {"impl": "pipeline_vanilla_transformer.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
    return Pipelines(translation=entry)

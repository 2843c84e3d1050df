"""A ladder's file becomes the settings of its studies, with everything that is wrong in it reported at once."""

import dataclasses
import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from vanilla_transformer.configuration.errors import problems_error
from vanilla_transformer.training.ladder.systems import SYSTEMS, System
from vanilla_transformer.training.recipe_values import fitting, hint, misfit, show
from vanilla_transformer.training.recipe_yaml import read_mapping

# The studies, each a module here and a section of the file, in the order in which they run and are reported.
STUDIES = {
    "translation": "TranslationStudy",
    "recall": "RecallStudy",
    "pronoun": "PronounStudy",
    "parallelism": "ParallelismStudy",
    "complexity": "ComplexityStudy",
    "scaling": "ScalingStudy",
    "ablations": "AblationsStudy",
}


@dataclass(frozen=True)
class LadderSettings:
    """The section `ladder`: what all studies share."""

    # The rungs, in the order of the tables.
    systems: list[str] = field(default_factory=lambda: list(SYSTEMS))
    # CPU threads; null leaves it to torch.
    threads: int | None = None

    def problems(self) -> list[str]:
        found = [
            f"systems = {name}: unknown{hint(name, SYSTEMS, list(SYSTEMS))}"
            for name in self.systems
            if name not in SYSTEMS
        ]
        if not self.systems or len(set(self.systems)) < len(self.systems):
            found.append(f"systems = {show(self.systems)}: name at least one, and none twice")
        if self.threads is not None and self.threads < 1:
            found.append(f"threads = {self.threads}: must be at least 1")
        return found


@dataclass(frozen=True)
class Study:
    """A section of the file: its module and its settings."""

    name: str
    module: ModuleType
    settings: Any


@dataclass(frozen=True)
class Ladder:
    """What a file asks for, all of it valid."""

    systems: list[System]
    threads: int | None
    studies: list[Study]


def load_ladder(path: Path) -> Ladder:
    """The ladder in a YAML file; corpora's paths are relative to the working directory or else to the file.

    Raises UsageError with every problem of the file, each naming section, key, value and remedy.
    """
    mapping, problems = read_mapping(path), list[str]()
    sections = ("ladder", *STUDIES)
    for name in mapping:
        if name not in sections:
            problems.append(f"{name}: unknown section{hint(name, sections, list(sections))}")
    common = read_settings(LadderSettings, mapping.get("ladder"), "ladder", problems)
    studies = []
    for name in [name for name in STUDIES if name in mapping]:
        module = importlib.import_module(f"vanilla_transformer.training.ladder.{name}")
        content = with_places(mapping[name], path.parent)
        settings = read_settings(getattr(module, STUDIES[name]), content, name, problems)
        studies.append(Study(name, module, settings))
    if not studies:
        problems.append(f"there is no study in it; add a section, one of {', '.join(STUDIES)}")
    if problems or common is None:
        raise problems_error(f"ladder {path}", problems)
    return Ladder([SYSTEMS[name] for name in common.systems], common.threads, studies)


def read_settings(kind: type, content: Any, where: str, problems: list[str]) -> Any:
    """An instance of the dataclass `kind` from the keys of a section; fields that are dataclasses are sections in it.

    What is wrong is added to `problems`, first of types and then what `kind.problems` says; None then.
    """
    if not isinstance(content, Mapping | None):
        problems.append(f"{where} = {show(content)}: must map keys to values")
        return None
    before, kinds, values = len(problems), get_type_hints(kind), dict[str, Any]()
    for key, value in (content or {}).items():
        if key not in kinds:
            problems.append(f"{where}.{key} = {show(value)}: unknown key{_meant(key, kinds, where)}")
        elif dataclasses.is_dataclass(kinds[key]):
            values[key] = read_settings(kinds[key], value, f"{where}.{key}", problems)
        elif fits := list(fitting(value, kinds[key])):
            values[key] = fits[0]
        else:
            problems.append(f"{where}.{key} = {misfit(value, kinds[key])}")
    needed = [one for one in dataclasses.fields(kind) if one.default is one.default_factory is dataclasses.MISSING]
    problems += [f"{where}.{one.name}: missing" for one in needed if one.name not in (content or {})]
    if len(problems) > before:
        return None
    settings = kind(**values)
    problems += [f"{where}.{problem}" for problem in settings.problems()]
    return settings if len(problems) == before else None


def with_places(content: Any, folder: Path) -> Any:
    """The content with each `corpus` that exists in `folder`, and not in the working directory, as its path there."""
    if not isinstance(content, dict):
        return content
    found = {key: with_places(value, folder) for key, value in content.items()}
    name = found.get("corpus")
    if isinstance(name, str) and name and not Path(name).exists() and (folder / name).exists():
        found["corpus"] = str((folder / name).resolve())
    return found


def _meant(key: Any, kinds: Mapping[str, Any], where: str) -> str:
    near = difflib.get_close_matches(str(key), kinds, n=1)
    return f"; did you mean {where}.{near[0]}?" if near else f"; choose from {', '.join(kinds)}"

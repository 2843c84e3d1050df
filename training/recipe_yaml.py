"""Recipes as text: plain YAML values only, read with YAML 1.2's scalars, and no key twice."""

import re
from pathlib import Path
from typing import Any

import yaml

from vanilla_transformer.configuration.errors import UsageError

_YAML = "tag:yaml.org,2002:"
# YAML 1.1, PyYAML's default, takes `no` (Norwegian), `on` and 12:30 for something else than text, and 1e-3 for text.
_SCALARS = (
    (f"{_YAML}null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (f"{_YAML}bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (f"{_YAML}int", r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    (f"{_YAML}float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    (f"{_YAML}float", r"[-+]?[0-9]+[eE][-+]?[0-9]+", list("-+0123456789")),
    (f"{_YAML}merge", r"<<", ["<"]),
)


# The types that a recipe's values have; any other tag, written out, is refused like one that constructs an object.
_PLAIN = {
    **{"null": "null", "bool": "true or false", "int": "a whole number", "float": "a number"},
    **{"str": "text", "seq": "a list", "map": "keys and values"},
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors = {
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_YAML) in _PLAIN
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str) and "\0" in value:
                raise ValueError("no text or file name holds a NUL")
            if isinstance(value, str):
                value.encode()  # "\ud800" is half a character
            return value
        except (ValueError, KeyError, IndexError):  # besides, "!!int abc", or more digits than Python converts
            problem = f"{ascii(node.value)[:40]} cannot be read as {_PLAIN[node.tag.removeprefix(_YAML)]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_YAML}merge":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} stands twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would take for something else, so that any reader gets the same values."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping that a YAML file holds; UsageError, with the line where there is one, for anything else."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"recipe {path}: no such file") from None
    except OSError as error:
        raise UsageError(f"recipe {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"recipe {path}: is not UTF-8 text (byte {error.start})") from None
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UsageError(f"recipe {path}{_reason(error)}") from None
    except RecursionError:
        raise UsageError(f"recipe {path}: is nested too deep") from None
    if not isinstance(value, dict):
        found = {"NoneType": "nothing", "list": "a list"}.get(type(value).__name__, "a single value")
        raise UsageError(f"recipe {path}: holds {found}; a recipe maps data, model, training, ... to their keys")
    return value


def read_value(text: str) -> Any:
    """One value as it stands behind a recipe's key; text that is no YAML is itself."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError):
        return text


def write_mapping(mapping: dict[str, Any]) -> str:
    """YAML that `read_mapping` reads back to an equal mapping."""
    return yaml.dump(mapping, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f", line {mark.line + 1}" if mark else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "is not YAML"
    if "could not determine a constructor" in problem:
        tag = problem.rsplit("'", 2)[1].replace(_YAML, "!!")
        return f"{line}: {tag} would construct an object; a recipe holds plain values only"
    return f"{line}: {problem}"

"""Values of a recipe's keys against their annotations: what fits, and what to say of what does not."""

import difflib
import math
import reprlib
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

LARGEST_NUMBER = 2**63 - 1  # what the libraries behind the recipe can hold
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring = 2, 200


def fitting(value: Any, kind: Any) -> Iterator[Any]:
    """The value as `kind`, or nothing: a bool is no number, a whole number is a float too, "1e-3" is one."""
    origin = get_origin(kind)
    if kind is Any:
        yield value
    elif origin in (Union, types.UnionType):
        for member in get_args(kind):
            yield from fitting(value, member)
    elif origin is Literal:
        if isinstance(value, str) and value in get_args(kind):
            yield value
    elif origin in (list, tuple):
        if isinstance(value, list):
            items = [item for entry in value for item in fitting(entry, get_args(kind)[0])]
            if len(items) == len(value):
                yield origin(items)
    elif kind is type(None):
        if value is None:
            yield value
    elif kind is float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            return
        if math.isfinite(number):
            yield number
    elif kind is int:
        if _is_number(value) and abs(value) <= LARGEST_NUMBER:
            yield value
    elif isinstance(value, origin or kind):
        yield value


def misfit(value: Any, kind: Any) -> str:
    """What is wrong with a value that does not fit, as it stands behind "key = "."""
    huge = _is_number(value) and abs(value) > LARGEST_NUMBER
    return f"{show(value)}: " + ("is beyond 2^63" if huge else f"must be {_describe(kind)}")


def hint(wrong: Any, names: Any, all_names: list[str], prefix: str = "") -> str:
    """The name that a wrong one was perhaps meant to be, or all of them, to end a sentence with."""
    near = difflib.get_close_matches(str(wrong), list(names), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else f"; choose from {', '.join(all_names)}"


def show(value: Any) -> str:
    """A value as a recipe writes it, on one line; a long one only as far as it helps to find it."""
    if isinstance(value, str) and value.isprintable():
        return value if len(value) <= 200 else f"{value[:200]}..."
    # repr alone would write out, again and again, what a YAML alias repeats
    shown = _SHORT.repr(value)
    return {"None": "null", "True": "true", "False": "false"}.get(shown, shown)


def _describe(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_describe, get_args(kind)))
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) in (list, tuple):
        return f"a list of {'texts' if get_args(kind)[0] is str else _describe(get_args(kind)[0])}"
    if (get_origin(kind) or kind) is dict:
        return "keys and values"
    return names[kind]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

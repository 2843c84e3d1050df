"""SIGKILL at an exact point of a run: before, after or in the middle of the n-th call of a function.

A process arms itself before it starts to train; the package knows nothing of it. Between two calls a run can be killed
from outside; these points are those that luck would hit once in a thousand kills.
"""

import os
import re
import signal
from collections.abc import Callable
from functools import wraps
from itertools import count
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple


class KillPoint(NamedTuple):
    """The `number`-th call of `call`; given `where`, a regular expression, only calls on paths that it finds count.

    The paths of a call are its arguments, space-separated, a file descriptor as the file that it stands for.
    "torn" lets the call return, and cuts in two what it added to the open file or argument that `where` finds.
    """

    call: str  # module.function or module.Class.method, as it is looked up when it is called: "os.rename"
    number: int = 1
    moment: Literal["before", "after", "torn"] = "before"
    where: str = ""


def arm(point: KillPoint) -> None:
    """Let this process, or one that it forks, die at the point."""
    owner_name, _, name = point.call.rpartition(".")
    owner = resolve_name(owner_name)
    setattr(owner, name, _deadly(getattr(owner, name), point))


def _deadly(call: Callable[..., Any], point: KillPoint) -> Callable[..., Any]:
    numbers = count(1)  # of the calls that count; some come from several threads

    @wraps(call)
    def counted(*arguments: Any, **options: Any) -> Any:
        met = point.moment == "torn" or re.search(point.where, " ".join(_paths(arguments, options)))
        if not met or next(numbers) != point.number:
            return call(*arguments, **options)
        if point.moment == "before":
            _die()
        size = _size(point, arguments)
        call(*arguments, **options)
        if point.moment == "torn":
            path = _file(point, arguments)
            assert path is not None, f"{point} tears no file"
            os.truncate(path, (size + os.path.getsize(path)) // 2)
        _die()

    return counted


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _paths(arguments: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
    return [path for value in (*arguments, *options.values()) if (path := _path(value)) is not None]


def _path(value: Any) -> str | None:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if type(value) is int:
        try:
            return os.readlink(f"/proc/self/fd/{value}")
        except OSError:
            return None
    return None


def _file(point: KillPoint, arguments: tuple[Any, ...]) -> str | None:
    """The file to tear: among the call's arguments, or open in this process."""
    opened = [_path(int(descriptor)) for descriptor in os.listdir("/proc/self/fd")]
    return next((path for path in [*_paths(arguments, {}), *opened] if path and re.search(point.where, path)), None)


def _size(point: KillPoint, arguments: tuple[Any, ...]) -> int:
    path = _file(point, arguments) if point.moment == "torn" else None
    return os.path.getsize(path) if path and os.path.exists(path) else 0

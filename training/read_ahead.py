"""The next item is made in a thread while the caller works on this one."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The items in order, always one of them ahead of the caller; what making one raises is raised in its place.

    The thread is a daemon: making an item may mean to wait for input that never comes, and a program that ends does
    not wait for it.
    """
    upcoming = _begin(items)
    while (item := upcoming.result()) is not None:
        upcoming = _begin(items)
        yield item


def _begin(items: Iterator[Item]) -> Future[Item | None]:
    """Begin to make the next item, which is None behind the last one."""
    made: Future[Item | None] = Future()

    def make() -> None:
        try:
            made.set_result(next(items, None))
        except BaseException as error:  # of whatever kind: it is the caller's
            made.set_exception(error)

    threading.Thread(target=make, name="read-ahead", daemon=True).start()
    return made

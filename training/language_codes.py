"""Finds a language among the codes that a file or archive uses: en in en-US, zh_cn in zh-CN."""

from collections.abc import Callable, Iterable
from functools import lru_cache

from vanilla_transformer.configuration.errors import CorpusError


@lru_cache(maxsize=4096)
def language_matches(wanted: str, available: tuple[str, ...]) -> tuple[str, ...]:
    """The codes in `available` that mean `wanted`, best kind of match only, in their order.

    Kinds, best first: the same code; the same but for case and "_" or "-"; a region or script of it (en -> en-US); the
    language without its region (en-US -> en). en-US never matches en-GB.
    """

    def plain(code: str) -> str:
        return code.replace("_", "-").casefold()

    kinds: list[Callable[[str], bool]] = [
        lambda code: code == wanted,
        lambda code: plain(code) == plain(wanted),
        lambda code: plain(code).startswith(plain(wanted) + "-"),
        lambda code: plain(wanted).startswith(plain(code) + "-"),
    ]
    for kind in kinds:
        if found := tuple(code for code in available if code and kind(code)):
            return found
    return ()


def pick_language(wanted: str, available: Iterable[str], where: str) -> str:
    """The one code in `available` that means `wanted`; raises CorpusError if there is none or no single one."""
    codes = tuple(available)
    found = language_matches(wanted, codes)
    if len(found) != 1:
        problem = f"language {wanted!r} could be any of {', '.join(found)}" if found else f"no language {wanted!r}"
        raise CorpusError(f"{where}: {problem}; found {', '.join(codes[:60]) or 'nothing'}")
    return found[0]

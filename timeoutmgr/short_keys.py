"""Caches by names of headers: a sender chooses these, and must not fill the memory with them."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, TypeVar

MOST_NAMES: Final = 64
MOST_CHARACTERS: Final = 4096

Names = TypeVar("Names", str, tuple[str, ...])
Found = TypeVar("Found")


def remembers_short(entries: int) -> Callable[[Callable[[Names], Found]], Callable[[Names], Found]]:
    """Return a decorator that keeps the last *entries* results for names that are few and short.

    For longer names the function is called each time. An error is never kept.
    """

    def decorate(function: Callable[[Names], Found]) -> Callable[[Names], Found]:
        remembered = lru_cache(maxsize=entries)(function)

        @wraps(function)
        def call(names: Names) -> Found:
            return remembered(names) if _is_short(names) else function(names)

        return call

    return decorate


def _is_short(names: str | tuple[str, ...]) -> bool:
    try:
        return len(names) <= MOST_NAMES and len("".join(names)) <= MOST_CHARACTERS
    except TypeError:  # a header of a program's own whose name is no text
        return False

"""A cache of names keeps few names, and short names only."""

from __future__ import annotations

from timeoutmgr.message.headers import MOST_CHARACTERS, MOST_NAMES, remembers_short


def calls_of(names: tuple[str, ...]) -> int:
    """Return how often a function is called that is asked twice about *names*."""
    calls = []

    @remembers_short(8)
    def count(given: tuple[str, ...]) -> int:
        calls.append(given)
        return len(given)

    assert count(names) == count(names) == len(names)
    return len(calls)


def test_few_and_short_names_are_remembered() -> None:
    assert calls_of(("a", "b")) == 1
    assert calls_of(("a" * MOST_CHARACTERS,)) == 1
    assert calls_of(("a",) * MOST_NAMES) == 1


def test_long_or_many_names_are_not_remembered() -> None:
    assert calls_of(("a" * (MOST_CHARACTERS + 1),)) == 2
    assert calls_of(("a",) * (MOST_NAMES + 1)) == 2


def test_names_that_are_no_text_are_not_remembered() -> None:
    assert calls_of((1, 2)) == 2  # type: ignore[arg-type]  # keys of another type

"""A cache of names keeps few names, and short names only."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house import trees
from timeoutmgr.message.headers import MOST_CHARACTERS, MOST_NAMES, remembers_short

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for room in ("timeoutmgr", "persistence", "satellites")
    for path in (ROOT / room).rglob("*.py")
]

OURS = {
    "timeoutmgr/plugins.py::_on_path",
    "timeoutmgr/database/sqlserver.py::insert_missing_statement",
}
"""Caches by folders of imports and by columns, which no sender chooses."""


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


def test_no_more_names_are_remembered_than_there_are_entries() -> None:
    calls = []

    @remembers_short(2)
    def count(given: str) -> int:
        calls.append(given)
        return len(given)

    for name in ("a", "b", "a", "c", "a"):
        assert count(name) == 1

    assert calls == ["a", "b", "c", "a"]  # the third name takes the place of both before it


def test_names_that_are_no_text_are_not_remembered() -> None:
    assert calls_of((1, 2)) == 2  # type: ignore[arg-type]  # keys of another type


def test_every_cache_by_the_names_of_headers_keeps_short_names_only() -> None:
    """A sender chooses the names: a plain cache of 1,024 sets of names keeps 64 MiB of them."""
    caches = {
        f"{path.relative_to(ROOT)}::{function.name}": _decorators(function)
        for path in SOURCES
        for function in ast.walk(trees()[path])
        if isinstance(function, ast.FunctionDef)
        if _decorators(function) & {"cache", "lru_cache", "remembers_short"}
        if _takes_names(function)
    }

    assert len(caches) >= 3
    assert {name for name, found in caches.items() if "remembers_short" not in found} == OURS


def _takes_names(function: ast.FunctionDef) -> bool:
    annotations = [one.annotation for one in function.args.args if one.annotation is not None]
    return "tuple[str, ...]" in map(ast.unparse, annotations)


def _decorators(function: ast.FunctionDef) -> set[str]:
    return {
        ast.unparse(one.func if isinstance(one, ast.Call) else one).rpartition(".")[2]
        for one in function.decorator_list
    }

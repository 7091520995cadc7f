"""A store answers like the model to any calls of processes in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import settings

from tests.persistence.stateful.running import TRYING, run
from tests.persistence.stateful.subjects import MemorySubject, SqlProcesses, SqlSubject


def test_memory_answers_as_the_model(unique: str) -> None:
    run(lambda: MemorySubject(unique, lambda store: store), settings(TRYING, max_examples=60))


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 12), ("postgres", 8), ("mysql", 5)])
def test_a_sql_store_answers_as_the_model(
    processes_of: Callable[[str], SqlProcesses], unique: str, kind: str, examples: int
) -> None:
    numbers = itertools.count()
    processes = processes_of(kind)

    run(
        lambda: SqlSubject(f"{unique}.{next(numbers)}", lambda store: store, processes),
        settings(TRYING, max_examples=examples),
    )

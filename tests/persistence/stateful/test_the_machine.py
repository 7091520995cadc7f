"""The machine can fail: each fault that is put into a store is found."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.persistence.stateful.running import CATCHING, run
from tests.persistence.stateful.subjects import MemorySubject, SqlProcesses, SqlSubject
from tests.persistence.stateful.wrong import IN_MEMORY, IN_SQL, Patch, Wrong, made_wrong

pytestmark = pytest.mark.mutants


@pytest.mark.parametrize("kind", IN_MEMORY, ids=lambda kind: kind.__name__)
def test_the_machine_catches_a_store_that(kind: type[Wrong], unique: str) -> None:
    with pytest.raises(AssertionError):
        run(lambda: MemorySubject(unique, lambda store: made_wrong(store, kind)), CATCHING)


@pytest.mark.parametrize("patch", IN_SQL, ids=lambda patch: patch.__name__)
def test_the_machine_catches_a_sql_store_where(
    patch: Patch,
    processes_of: Callable[[str], SqlProcesses],
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = itertools.count()
    processes = processes_of("sqlite")
    patch(monkeypatch)

    with pytest.raises(AssertionError):
        run(
            lambda: SqlSubject(f"{unique}.{next(numbers)}", lambda store: store, processes),
            CATCHING,
        )

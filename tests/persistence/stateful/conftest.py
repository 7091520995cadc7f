"""Processes on each kind of database; every example has its own endpoint there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.persistence.stateful.subjects import SqlProcesses
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql.claim import hints


@pytest.fixture(autouse=True)
def without_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every claim look at all gaps, so that what is handed out is one exact answer.

    In a burst, what another process frees amid it comes up to twenty chunks later; and what it
    stores before all that this one knows of, up to a second later.
    """
    monkeypatch.setattr(hints, "LONGEST_BURST", 1)
    monkeypatch.setattr(hints, "FULL_SCAN", 0.0)


@pytest.fixture
def processes_of(
    sql_of: Callable[[str], SqlPersistence],
) -> Iterator[Callable[[str], SqlProcesses]]:
    """Makes processes on the tables of a kind of database."""
    made: list[SqlProcesses] = []

    def make(kind: str) -> SqlProcesses:
        made.append(SqlProcesses(sql_of(kind)))
        return made[-1]

    yield make

    for processes in made:
        processes.close()

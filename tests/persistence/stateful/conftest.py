"""Processes on each kind of database; every example has its own endpoint there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.persistence.stateful.subjects import SqlProcesses
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql.claim import hints


@pytest.fixture(autouse=True)
def without_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every claim read all gaps, so that its keys are one exact answer.

    In a burst, a row that another process frees amid it comes up to twenty chunks later; a row
    that it stores before all keys known to this process, up to a second later.
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

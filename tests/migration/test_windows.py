"""A timeout due outside a run's window stays; overdue timeouts move on demand."""

from __future__ import annotations

import pytest

from tests.migration.conftest import HOUR, Move, names, pending
from tests.persistence.making import NOW, timeout
from timeoutmgr.errors import ConfigurationError, MigrationFailed
from timeoutmgr.migration import Window
from timeoutmgr.migration.runs import SAFETY


def test_a_timeout_due_before_the_cutoff_or_after_the_end_stays(moves: Move) -> None:
    instants = {
        "before": NOW + HOUR - 1,
        "first": NOW + HOUR,
        "last": NOW + 2 * HOUR - 1,
        "end": NOW + 2 * HOUR,
    }
    moves.source.store_many([timeout(name, due) for name, due in instants.items()])

    moves.run(window=Window(cutoff=NOW + HOUR, until=NOW + 2 * HOUR))

    assert names(pending(moves.target)) == ["first", "last"]
    assert names(pending(moves.source)) == ["before", "end"]


def test_a_timeout_due_within_the_safety_window_is_left_to_the_source(moves: Move) -> None:
    moves.source.store_many([timeout("soon", NOW + SAFETY - 1), timeout("edge", NOW + SAFETY)])

    moves.run(window=Window())

    assert names(pending(moves.target)) == ["edge"]
    assert names(pending(moves.source)) == ["soon"]


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="swap the two"):
        Window(cutoff=NOW, until=NOW)
    with pytest.raises(ConfigurationError, match="must not be negative"):
        Window(safety=-1)


def test_overdue_timeouts_move_only_when_asked_and_when_no_process_dispatches(moves: Move) -> None:
    moves.source.store_many([timeout("late", NOW - HOUR), timeout("later", NOW + HOUR)])
    chunk = moves.source.claim(NOW, 10, "poller")

    with pytest.raises(MigrationFailed, match="is dispatching overdue timeouts"):
        moves.run(window=Window(overdue=True))

    moves.source.release(chunk.token)
    assert moves.run(window=Window(overdue=True)).collected == 2
    assert names(pending(moves.target)) == ["late", "later"]

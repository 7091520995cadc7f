"""From store to store: all of it, once, with all that it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import select

from tests.migration.conftest import HOUR, Move, Pair, names, pending, some
from tests.persistence.making import NOW, timeout
from timeoutmgr.contracts import CancelResult, Key, Outcome, OutcomeKind, TimeoutState
from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration import Batch, Item, KeyRange
from timeoutmgr.migration.batch_step import hide, send
from timeoutmgr.persistence import SqlPersistence, SqlSettings


@pytest.mark.behaviour(135)
@pytest.mark.behaviour(136)
def test_all_arrive_with_all_that_they_are_and_the_counts_agree(moves: Move) -> None:
    given = some(10)
    moves.source.store_many(given)

    report = moves.run()

    assert pending(moves.target) == given
    assert pending(moves.source) == []
    assert (report.batches, report.batches_done) == (4, 4)
    assert (report.planned, report.collected, report.new, report.known) == (10, 10, 10, 0)
    assert report.verified
    [saved] = moves.parts().ledger.runs()
    assert saved.report == report.document()
    assert saved.ended == NOW


def test_nothing_to_move_is_a_run_that_is_complete(move: Move) -> None:
    report = move.run()

    assert (report.batches, report.collected, report.verified) == (0, 0, True)


def test_a_redelivered_store_message_does_not_bring_it_back_here(moves: Move) -> None:
    given = some(3)
    moves.source.store_many(given)
    moves.run()

    moves.source.store_many(given)

    assert pending(moves.source) == []


def test_the_history_tells_of_each_that_left(moves: Move) -> None:
    given = some(4)
    moves.source.store_many(given)

    moves.run()

    context = moves.source.context
    history = context.tables.history.c
    columns = (history.id, history.due, history.at, history.destination, history.attempt)
    mine = (history.endpoint == moves.endpoint, history.event == "migrated")
    with context.database.read() as connection:
        rows = connection.execute(
            select(*columns, history.run_id, history.node).where(*mine).order_by(history.id)
        ).all()
    [run] = moves.parts().ledger.runs()
    assert [tuple(row) for row in rows] == [
        (one.id, one.due, NOW, one.destination, one.attempts, run.id, context.node) for one in given
    ]


def test_where_history_is_not_wanted_none_is_written(
    postgres_url: str, unique: str, persistences_of: Callable[[str], Pair]
) -> None:
    _installed, target = persistences_of("postgres")
    settings = SqlSettings(clock="host", history="none")
    with closing(SqlPersistence(postgres_url, prefix="from_", settings=settings)) as source:
        move = Move((source, target), unique)
        move.source.store_many(some(4))
        move.run()
        history = move.source.context.tables.history
        with source.database.read() as connection:
            mine = select(history.c.event).where(history.c.endpoint == unique)
            assert connection.execute(mine).all() == []
    assert pending(move.target) == some(4)


def test_a_timeout_without_its_key_leaves_a_tombstone_all_the_same(
    persistences_of: Callable[[str], Pair], unique: str
) -> None:
    move = Move(persistences_of("postgres"), unique)
    given = some(4)
    move.source.store_many(given)
    keys = move.source.context.tables.keys
    lost = (keys.c.endpoint == unique, keys.c.id == "t001")
    with move.source_persistence.database.begin() as connection:
        connection.execute(keys.delete().where(*lost))

    move.run()
    move.source.store_many(given)

    assert pending(move.source) == []
    assert pending(move.target) == given


def test_it_can_go_there_and_back_again(moves: Move) -> None:
    given = some(4)
    moves.source.store_many(given)
    back = Move((moves.target_persistence, moves.source_persistence), moves.endpoint)

    moves.run()
    back.run()

    assert pending(moves.source) == given
    assert pending(moves.target) == []
    assert moves.source.cancel("t000") is CancelResult.CANCELLED
    assert moves.target.find("t000") == (TimeoutState.MIGRATED, None)


def test_a_timeout_that_ended_at_the_target_is_known_and_not_revived(
    moves: Move,
) -> None:
    moves.source.store_many(some(4))
    assert moves.target.cancel("t001") is CancelResult.WILL_BE_CANCELLED  # it overtakes the move

    report = moves.run()

    assert names(pending(moves.target)) == ["t000", "t002", "t003"]
    assert pending(moves.source) == []
    assert (report.new, report.known, report.verified) == (3, 1, True)


def test_the_flag_maybe_sent_moves_with_its_timeout(moves: Move) -> None:
    moves.source.store_many([timeout("a", NOW - 1)])
    chunk = moves.source.claim(NOW, 1, "poller")
    with moves.source.lock_for_dispatch(chunk.token, chunk.keys) as collected:
        again = Outcome(
            key=chunk.keys[0],
            kind=OutcomeKind.RETRY,
            at=NOW,
            maybe_sent=True,
        )
        collected.close([again])
    moves.source.reschedule("a", NOW + HOUR)

    moves.run()

    [arrived] = pending(moves.target)
    assert arrived.attempts == 1
    assert moves.target.cancel("a") is CancelResult.MAYBE_SENT


def test_counts_that_do_not_agree_stop_the_run_with_everything_in_its_place(moves: Move) -> None:
    moves.source.store_many(some(3))
    parts = moves.parts()
    run = moves.begin(parts)
    [batch] = parts.ledger.batches(run.id)
    hidden = hide(parts, run, batch)
    timeouts = moves.source.context.tables.timeouts
    this = (timeouts.c.endpoint == moves.endpoint, timeouts.c.id == "t001")
    with moves.source_persistence.database.begin() as connection:
        connection.execute(timeouts.delete().where(*this))

    with pytest.raises(MigrationFailed, match="3 timeouts were hidden and 2 read"):
        send(parts, run, hidden)

    assert names(pending(moves.source)) == ["t000", "t002"]
    assert pending(moves.target) == []
    parts.close()


def test_a_timeout_that_cannot_be_stored_is_named(move: Move) -> None:
    parts = move.parts()
    parts.target.open("r")
    item = Item(timeout=timeout("x" * 300, NOW + HOUR))

    with pytest.raises(MigrationFailed, match="cannot be stored: the id has 300 characters"):
        parts.target.deliver("r", Batch(no=0, range=KeyRange(Key(0, ""), Key(0, ""), 1)), [item])
    parts.close()


def test_a_moved_timeout_keeps_the_context_of_its_trace(move: Move) -> None:
    trace = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "vendor=1",
        "baggage": "tenant=acme",
    }
    [given] = some(1)
    message = replace(given.message, headers={**given.message.headers, **trace})
    move.source.store_many([replace(given, message=message)])

    move.run()

    [moved] = pending(move.target)
    assert trace.items() <= moved.message.headers.items()

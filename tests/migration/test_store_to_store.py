"""From store to store: all of it, once, with all that it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import select

from tests.migration.conftest import HOUR, SETTINGS, Move, Pair, names, pending, some
from tests.persistence.making import NOW, timeout
from tests.recurrence.fleet import Fleet
from timeoutmgr.contracts import (
    CancelResult,
    Key,
    LockedSchedule,
    Outcome,
    OutcomeKind,
    ScheduleRecord,
    Timeout,
    TimeoutState,
)
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.migration import Batch, BatchState, Item, KeyRange, Participants, Terms, begin
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


def _with_a_used_id(moves: Move) -> Timeout:
    """Store four timeouts at the source, and other content under the id of the second there."""
    other = timeout("t001", NOW + HOUR, body=b"other content")
    moves.source.store_many(some(4))
    moves.target.store_many([other])
    return other


def test_a_timeout_whose_id_has_other_content_at_the_target_stays(moves: Move) -> None:
    other = _with_a_used_id(moves)

    report = moves.run()

    assert pending(moves.source) == [some(4)[1]]
    assert pending(moves.target) == [some(4)[0], other, *some(4)[2:]]
    assert (report.new, report.known, report.returned, report.verified) == (3, 0, 1, True)
    assert moves.source.cancel("t001") is CancelResult.CANCELLED  # no longer hidden


def test_an_abort_returns_a_timeout_whose_id_has_other_content_at_the_target(moves: Move) -> None:
    other = _with_a_used_id(moves)
    parts = moves.parts()
    run = moves.begin(parts, batch=4)
    [batch] = parts.ledger.batches(run.id)
    sending = replace(hide(parts, run, batch), state=BatchState.SENDING)
    parts.ledger.move_batch(run.id, sending)
    parts.target.deliver(run.id, sending, parts.source.read(run.id, sending))
    parts.close()  # as a kill behind the delivery leaves it

    report = moves.abort()

    assert pending(moves.source) == [some(4)[1]]
    assert pending(moves.target) == [some(4)[0], other, *some(4)[2:]]
    assert (report.new, report.returned, report.verified) == (3, 1, True)


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


DAILY = "1 day at 15:00"


def _migrate(moves: Move, clock: Fleet) -> None:
    source, target = moves.source_persistence, moves.target_persistence
    at, name = clock.clock, moves.endpoint
    parts = Participants(
        source=source.migration_source(name, at),
        target=target.migration_target(name, at),
        ledger=source.migration_ledger(name, at),
        runner=name,
        clock=at,
    )
    terms = Terms(endpoint=name, source=parts.source.describe(), target=parts.target.describe())
    with closing(parts):
        parts.migrate(begin(parts, terms, lambda: name))


def _ends(moves: Move, stack: ExitStack) -> list[Fleet]:
    """Return fleets of processes at the source and at the target."""
    made = []
    for persistence, prefix in (
        (moves.source_persistence, "from_"),
        (moves.target_persistence, "into_"),
    ):
        database = persistence.database
        make = partial(SqlPersistence, database, prefix=prefix, settings=SETTINGS)
        made.append(Fleet(moves.endpoint, make))
        stack.enter_context(made[-1].closing)
    return made


def test_a_recurring_timeout_goes_on_at_the_target_without_a_second_run(moves: Move) -> None:
    with ExitStack() as stack:
        source, target = _ends(moves, stack)
        before = source.process(DAILY)
        before.step()
        before.recurring.pause("tick")
        before.recurring.resume("tick")
        [run] = source.timeouts()

        _migrate(moves, source)
        target.process(DAILY).step()

        assert [one.id for one in target.timeouts()] == [run.id]
        assert moves.target.schedules() == moves.source.schedules()


def test_the_pause_of_a_recurring_timeout_holds_at_the_target(moves: Move) -> None:
    with ExitStack() as stack:
        source, target = _ends(moves, stack)
        before = source.process(DAILY)
        before.step()
        before.recurring.pause("tick")

        _migrate(moves, source)
        after = target.process(DAILY)
        after.step()

        assert target.timeouts() == []
        assert [each.is_paused for each in after.recurring.list()] == [True]


def test_a_schedule_that_advanced_at_the_target_stays(move: Move) -> None:
    record = ScheduleRecord(name="tick", every="1 hour", done_until=NOW)
    newer = replace(record, done_until=NOW + HOUR)
    move.source.change_schedule("tick", lambda locked: locked.write(record))
    move.run()
    move.target.change_schedule("tick", lambda locked: locked.write(newer))

    move.run()

    assert move.target.schedules() == [newer]
    assert move.source.schedules() == [record]


def test_a_change_of_a_schedule_while_a_run_is_open_arrives_at_its_end(move: Move) -> None:
    record = ScheduleRecord(name="tick", every="1 hour", done_until=NOW)
    move.source.store_many(some(1))
    move.source.change_schedule("tick", lambda locked: locked.write(record))
    parts = move.parts()
    paused = replace(record, is_paused=True)

    def pause(_batch: Batch) -> None:
        assert move.target.schedules() == [record]
        move.source.change_schedule("tick", lambda locked: locked.write(paused))

    with closing(parts):
        parts.migrate(move.begin(parts), pause)

    assert move.target.schedules() == [paused]


@pytest.mark.parametrize("pauses_at_target", [True, False])
def test_a_pause_at_one_end_alone_is_a_problem(move: Move, pauses_at_target: bool) -> None:
    record = ScheduleRecord(name="tick", every="1 hour", done_until=NOW, is_paused=True)
    resumed = replace(record, done_until=NOW + HOUR, is_paused=False)
    ends = (move.target, move.source) if pauses_at_target else (move.source, move.target)
    ends[0].change_schedule("tick", lambda locked: locked.write(record))
    ends[1].change_schedule("tick", lambda locked: locked.write(resumed))

    with pytest.raises(MigrationRefused, match="'tick' is paused at one end only"):
        move.run()


def _write(locked: LockedSchedule, record: ScheduleRecord) -> None:
    locked.write(record)


def test_runs_of_one_instant_with_two_ids_are_a_problem_until_one_is_cancelled(move: Move) -> None:
    for store, run in ((move.source, "second"), (move.target, "first")):
        store.store_many([timeout(run, NOW + HOUR)])
        record = ScheduleRecord(
            name="tick", every="1 hour", done_until=NOW, run_due=NOW + HOUR, run_id=run
        )
        store.change_schedule("tick", partial(_write, record=record))

    with pytest.raises(MigrationRefused, match=r"'tick' was at .* as well; cancel timeout second"):
        move.run()

    assert move.source.cancel("second") is CancelResult.CANCELLED
    move.run()
    assert names(pending(move.target)) == ["first"]
    assert [record.run_id for record in move.target.schedules()] == ["first"]

"""From store to store: all of it, once, with all that it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import select
from sqlalchemy.engine import make_url

from tests.migration.conftest import HOUR, Move, Pair, names, pending, some
from tests.persistence.making import NOW, SECOND, SetClock, dispatch, ids, timeout
from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Key,
    Outcome,
    OutcomeKind,
    TimeoutState,
)
from timeoutmgr.errors import ConfigurationError, MigrationFailed, MigrationRefused
from timeoutmgr.migration import (
    Batch,
    BatchState,
    Item,
    Range,
    RunState,
    Window,
    begin,
    preview,
)
from timeoutmgr.migration.moving import hide, send
from timeoutmgr.migration.window import SAFETY
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
    assert (report.planned, report.taken, report.new, report.known) == (10, 10, 10, 0)
    assert report.verified
    [saved] = moves.parts().ledger.runs()
    assert saved.report == report.document()
    assert saved.ended == NOW


@pytest.mark.behaviour(130)
def test_a_preview_tells_all_and_changes_nothing(moves: Move) -> None:
    moves.source.store_many([*some(4), timeout("other", NOW + 9 * HOUR, destination="stock")])
    moves.source.store_many([timeout("soon", NOW + 1)])
    parts = moves.parts()

    found = preview(parts, moves.terms(parts))

    assert (found.survey.count, found.survey.left) == (5, 1)
    assert found.survey.earliest == NOW + HOUR
    assert found.survey.latest == NOW + 9 * HOUR
    assert found.survey.destinations == {"billing": 4, "stock": 1}
    assert found.problems == ()
    assert ["less than 4 hours" in warning for warning in found.warnings] == [True]
    assert len(pending(moves.source)) == 6
    assert parts.ledger.runs() == []


def test_what_is_due_later_than_four_hours_is_not_warned_of(move: Move) -> None:
    move.source.store_many(some(1, ahead=4 * HOUR))
    parts = move.parts()

    assert preview(parts, move.terms(parts)).warnings == ()


def test_what_is_due_soon_before_the_cutoff_or_after_the_end_stays(moves: Move) -> None:
    instants = {
        "soon": NOW + SAFETY - 1,
        "edge": NOW + SAFETY,
        "before": NOW + HOUR - 1,
        "first": NOW + HOUR,
        "last": NOW + 2 * HOUR - 1,
        "end": NOW + 2 * HOUR,
    }
    moves.source.store_many([timeout(name, due) for name, due in instants.items()])

    moves.run(window=Window(cutoff=NOW + HOUR, until=NOW + 2 * HOUR))

    assert names(pending(moves.target)) == ["first", "last"]
    assert names(pending(moves.source)) == ["soon", "edge", "before", "end"]


def test_what_is_due_within_the_safety_window_is_left_to_the_source(moves: Move) -> None:
    moves.source.store_many([timeout("soon", NOW + SAFETY - 1), timeout("edge", NOW + SAFETY)])

    moves.run(window=Window())

    assert names(pending(moves.target)) == ["edge"]
    assert names(pending(moves.source)) == ["soon"]


def test_batches_are_cut_nearest_due_first_also_among_many_of_one_instant(moves: Move) -> None:
    moves.source.store_many([timeout(f"t{number}", NOW + HOUR) for number in range(8)])
    moves.source.store_many([timeout("a", NOW + 2 * HOUR)])
    parts = moves.parts()

    ranges = [*parts.source.ranges(Window(), 3)]

    assert [(one.first.id, one.last.id, one.count) for one in ranges] == [
        ("t0", "t2", 3),
        ("t3", "t5", 3),
        ("t6", "a", 3),
    ]
    assert [*parts.source.ranges(Window(), 4)][-1].count == 1


def test_nothing_to_move_is_a_run_that_is_complete(move: Move) -> None:
    report = move.run()

    assert (report.batches, report.taken, report.verified) == (0, 0, True)


@pytest.mark.behaviour(132)
def test_a_hidden_batch_is_handed_to_nobody_and_the_others_go_their_ways(moves: Move) -> None:
    moves.source.store_many(some(5))
    parts = moves.parts()
    run = moves.begin(parts)
    first, second = parts.ledger.batches(run.id)

    hide(parts, run, first)

    moves.clock.at = NOW + 2 * HOUR  # all are due, and nobody has moved them yet
    chunk = moves.source.claim(moves.clock.at, 10, "poller")
    assert ids(chunk) == ["t003", "t004"]
    assert dispatch(moves.source, chunk, moves.clock.at) == ["t003", "t004"]
    assert names(pending(moves.source)) == ["t000", "t001", "t002"]  # hidden is not out of sight
    assert moves.source.statistics().pending == 3
    [_, untouched] = parts.ledger.batches(run.id)
    assert untouched == second
    parts.close()
    moves.abort()


def test_on_its_way_and_after_it_a_timeout_cannot_be_cancelled_or_moved_here(moves: Move) -> None:
    moves.source.store_many(some(3))
    parts = moves.parts()
    run = moves.begin(parts)
    [batch] = parts.ledger.batches(run.id)

    hidden = hide(parts, run, batch)
    before = [moves.source.cancel("t000"), moves.source.reschedule("t001", NOW + HOUR)]
    saga = moves.source.cancel_saga("saga 2")
    assert before == [CancelResult.TOO_LATE, ChangeResult.TOO_LATE]
    assert saga == 0

    send(parts, run, hidden)
    after = [moves.source.cancel("t000"), moves.source.reschedule("t001", NOW + HOUR)]

    assert after == before
    assert moves.source.find("t000") == (TimeoutState.MIGRATED, None)
    assert moves.target.cancel("t000") is CancelResult.CANCELLED
    parts.close()


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
    told = (history.id, history.due, history.at, history.destination, history.attempt)
    mine = (history.endpoint == moves.endpoint, history.event == "migrated")
    with context.database.read() as connection:
        rows = connection.execute(
            select(*told, history.run_id, history.node).where(*mine).order_by(history.id)
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


def test_what_had_lost_its_key_leaves_a_tombstone_all_the_same(
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


def test_what_ended_at_the_target_before_is_known_there_and_does_not_rise_again(
    moves: Move,
) -> None:
    moves.source.store_many(some(4))
    assert moves.target.cancel("t001") is CancelResult.UNKNOWN  # it overtakes the move

    report = moves.run()

    assert names(pending(moves.target)) == ["t000", "t002", "t003"]
    assert pending(moves.source) == []
    assert (report.new, report.known, report.verified) == (3, 1, True)


def test_a_mark_of_maybe_sent_goes_with_it(moves: Move) -> None:
    moves.source.store_many([timeout("a", NOW - 1)])
    chunk = moves.source.claim(NOW, 1, "poller")
    with moves.source.take_many(chunk.token, chunk.keys) as taken:
        again = Outcome(
            key=chunk.keys[0],
            kind=OutcomeKind.RETRY,
            at=NOW,
            next_try=NOW + SECOND,
            maybe_sent=True,
        )
        taken.close([again])
    moves.source.reschedule("a", NOW + HOUR)

    moves.run()

    [arrived] = pending(moves.target)
    assert arrived.attempts == 1
    assert moves.target.cancel("a") is CancelResult.MAYBE_SENT


def test_what_is_dispatched_or_cancelled_before_its_turn_is_not_missed(moves: Move) -> None:
    moves.source.store_many(some(6))
    parts = moves.parts()
    run = moves.begin(parts)

    moves.source.cancel("t004")
    moves.source.store_many([timeout("new", NOW + HOUR + 1)])  # into the range of the first batch
    parts.close()
    report = moves.run()

    assert names(pending(moves.target)) == ["t000", "new", "t001", "t002", "t003", "t005"]
    assert (report.planned, report.taken, report.verified) == (6, 6, True)
    assert report.run == run.id


def test_an_overdue_batch_of_an_interrupted_run_goes_on_all_the_same(move: Move) -> None:
    move.source.store_many(some(3))
    parts = move.parts()
    run = move.begin(parts)
    [batch] = parts.ledger.batches(run.id)
    hide(parts, run, batch)
    parts.close()
    move.clock.at = NOW + 2 * HOUR

    move.run()

    assert ids(move.target.claim(move.clock.at, 10, "poller")) == ["t000", "t001", "t002"]


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


@pytest.mark.behaviour(133)
@pytest.mark.parametrize(
    ("more", "difference"),
    [
        ({"batch": 4}, "batch was 3 and is 4"),
        (
            {"window": Window(cutoff=NOW + 1)},
            f"cutoff was {NOW} and is {NOW + 1}",
        ),
        ({"others": {"rename": "a=b"}}, "others was {} and is {'rename': 'a=b'}"),
    ],
)
def test_a_run_is_resumed_on_its_own_terms_only(
    move: Move, more: dict[str, object], difference: str
) -> None:
    move.source.store_many(some(3))
    parts = move.parts()
    move.begin(parts, window=Window(cutoff=NOW))
    parts.close()

    with pytest.raises(MigrationRefused) as refused:
        move.run(**{"window": Window(cutoff=NOW), **more})

    assert refused.value.reasons == [difference]
    assert move.run(window=Window(cutoff=NOW)).taken == 3


def test_a_run_that_another_process_works_at_is_left_alone(moves: Move) -> None:
    moves.source.store_many(some(3))
    busy = moves.parts()
    run = moves.begin(busy)
    late = moves.parts()

    with pytest.raises(MigrationRefused, match="another process is at work"):
        moves.begin(late)
    busy.close()

    assert moves.begin(late).id == run.id
    late.close()


@pytest.mark.behaviour(135)
def test_no_secret_is_stored(postgres_url: str, unique: str) -> None:
    url = make_url(postgres_url).set(password="s3cret").update_query_dict({"sslpassword": "s3cr3t"})
    persistence = SqlPersistence(url.render_as_string(hide_password=False), schema=unique)

    described = persistence.migration_source("e", SetClock()).describe()

    assert "s3cr" not in described
    assert described.endswith(f" {unique}.timeoutmgr_")
    persistence.close()


@pytest.mark.behaviour(134)
def test_an_abort_puts_back_what_is_not_at_the_target_and_leaves_what_is(moves: Move) -> None:
    moves.source.store_many(some(9))
    parts = moves.parts()
    run = moves.begin(parts)
    batches = [*parts.ledger.batches(run.id)]
    send(parts, run, hide(parts, run, batches[0]))
    halfway = hide(parts, run, batches[1])
    items = parts.source.read(run.id, halfway)
    parts.ledger.move_batch(run.id, _with_state(halfway, BatchState.SENDING))
    parts.target.deliver(run.id, halfway, items[:1])
    parts.close()

    report = moves.abort()

    assert names(pending(moves.target)) == ["t000", "t001", "t002", "t003"]
    assert names(pending(moves.source)) == ["t004", "t005", "t006", "t007", "t008"]
    assert (report.taken, report.new, report.returned, report.verified) == (6, 4, 2, True)
    moves.clock.at = NOW + 2 * HOUR
    assert len(moves.source.claim(moves.clock.at, 10, "poller").keys) == 5  # visible again
    assert moves.source.find("t003") == (TimeoutState.MIGRATED, None)


def test_after_an_abort_the_target_takes_nothing_from_a_late_process(moves: Move) -> None:
    moves.source.store_many(some(3))
    late = moves.parts()
    run = moves.begin(late)
    [batch] = late.ledger.batches(run.id)
    hidden = hide(late, run, batch)
    items = late.source.read(run.id, hidden)
    late.ledger.move_batch(run.id, _with_state(hidden, BatchState.SENDING))
    late.ledger.give_up(late.runner)  # its life is lost, and it does not know
    moves.abort()

    with pytest.raises(MigrationFailed, match="is shut"):
        late.target.deliver(run.id, hidden, items)

    assert pending(moves.target) == []
    assert names(pending(moves.source)) == ["t000", "t001", "t002"]
    with pytest.raises(MigrationFailed, match="cannot become"):
        late.ledger.move_batch(run.id, _with_state(hidden, BatchState.DONE))


def test_a_run_that_is_being_aborted_is_not_gone_on_with(move: Move) -> None:
    move.source.store_many(some(3))
    parts = move.parts()
    run = move.begin(parts)
    parts.ledger.move_run(run.id, RunState.ABORTING)
    parts.close()

    with pytest.raises(MigrationRefused, match="is being aborted"):
        move.run()

    move.abort()
    assert move.parts().ledger.open_run() is None


def test_what_cannot_be_stored_is_named(move: Move) -> None:
    parts = move.parts()
    parts.target.open("r")
    item = Item(timeout=timeout("x" * 300, NOW + HOUR))

    with pytest.raises(MigrationFailed, match="cannot be stored: the id has 300 characters"):
        parts.target.deliver("r", Batch(no=0, range=Range(Key(0, ""), Key(0, ""), 1)), [item])


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="swap the two"):
        Window(cutoff=NOW, until=NOW)
    with pytest.raises(ConfigurationError, match="must not be negative"):
        Window(safety=-1)


def test_terms_survive_being_written_down(move: Move) -> None:
    terms = move.terms(move.parts(), window=Window(cutoff=NOW + 1, until=NOW + 2, safety=3))

    assert type(terms).from_json(terms.to_json()) == terms
    assert json.loads(terms.to_json())["cutoff"] == NOW + 1  # to the microsecond


def _with_state(batch: Batch, state: BatchState) -> Batch:
    return replace(batch, state=state)


def test_the_overdue_is_taken_only_when_asked_and_when_nobody_dispatches(moves: Move) -> None:
    moves.source.store_many([timeout("late", NOW - HOUR), timeout("later", NOW + HOUR)])
    chunk = moves.source.claim(NOW, 10, "poller")

    with pytest.raises(MigrationFailed, match="is dispatching what is overdue"):
        moves.run(window=Window(overdue=True))

    moves.source.release(chunk.token)
    assert moves.run(window=Window(overdue=True)).taken == 2
    assert names(pending(moves.target)) == ["late", "later"]


def test_one_store_under_two_names_is_noticed_before_anything_is_lost(moves: Move) -> None:
    given = some(3)
    moves.source.store_many(given)
    same = Move((moves.source_persistence, moves.source_persistence), moves.endpoint)
    parts = same.parts()
    terms = replace(same.terms(parts), target="by another name")

    with pytest.raises(MigrationRefused, match="are the same tables"):
        begin(parts, terms, lambda: f"{moves.endpoint}r")

    parts.close()
    assert pending(moves.source) == given
    assert parts.ledger.open_run() is None


@pytest.mark.behaviour(131)
def test_from_a_store_into_which_a_run_is_open_nothing_is_moved(moves: Move) -> None:
    moves.source.store_many(some(3))
    parts = moves.parts()
    run = moves.begin(parts)
    parts.close()
    back = Move((moves.target_persistence, moves.source_persistence), moves.endpoint)

    with pytest.raises(MigrationRefused, match="nothing was moved") as refused:
        back.run()

    assert f"run {run.id} into it is open" in refused.value.reasons[0]
    assert f"run {run.id} out of it is open" in refused.value.reasons[1]
    moves.run()
    assert back.run().new == 3

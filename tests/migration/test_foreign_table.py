"""An NServiceBus endpoint's table moves in, and out of the sight of its own timeout manager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import MetaData, Table, func, select

from tests.migration.conftest import Pair, pending
from tests.migration.foreign import AT, Foreign, expected, row, rows
from timeoutmgr.errors import MigrationFailed, MigrationRefused, SchemaMissing
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import BatchState, Window, begin
from timeoutmgr.migration import runs as cutting
from timeoutmgr.migration.batch_step import hide


@pytest.fixture(params=("sqlite", "postgres", "mysql"))
def foreign(
    request: pytest.FixtureRequest, persistences_of: Callable[[str], Pair], unique: str
) -> Iterator[Foreign]:
    """A foreign table on every database that we speak."""
    made = Foreign(persistences_of(request.param), unique, request.param)
    yield made
    made.close()


def test_a_table_moves_in_and_its_own_manager_sees_it_no_more(foreign: Foreign) -> None:
    given = rows(7)
    foreign.fill(given)

    report = foreign.run(foreign.parts())

    assert pending(foreign.store) == expected(given, foreign.endpoint)
    assert foreign.left() == []
    assert (report.batches, report.collected, report.new, report.verified) == (3, 7, 7, True)


def test_an_abort_gives_the_table_back_the_rows_that_are_not_here(foreign: Foreign) -> None:

    given = rows(7)
    foreign.fill(given)
    parts = foreign.parts()
    run = begin(parts, foreign.terms(parts), lambda: f"{foreign.endpoint}r")
    batch = next(parts.ledger.batches(run.id))
    hidden = hide(parts, run, batch)
    assert len(foreign.left()) == 4
    parts.ledger.move_batch(run.id, replace(hidden, state=BatchState.SENDING))
    parts.target.deliver(run.id, hidden, parts.source.read(run.id, hidden)[:1])

    report = parts.abort(run)

    parts.close()
    assert len(pending(foreign.store)) == 1
    assert foreign.left() == sorted(str(one["Id"]) for one in given[1:])
    assert (report.collected, report.new, report.returned, report.verified) == (3, 1, 2, True)


def test_every_row_that_cannot_be_read_is_a_problem_and_nothing_moves(foreign: Foreign) -> None:
    bad = [row(Destination="sales.Timeouts"), row(Destination="other.Timeouts")]
    foreign.fill([*rows(3), *bad])
    parts = foreign.parts()

    with pytest.raises(MigrationRefused, match="belongs to") as refused:
        foreign.run(parts)

    reasons = "\n".join(refused.value.reasons)
    assert len(refused.value.reasons) == 2
    assert all(f"row {one['Id']}" in reasons for one in bad)
    assert len(foreign.left()) == 5
    parts.close()


def test_a_batch_that_is_aside_is_in_a_table_of_the_runs_own(foreign: Foreign) -> None:
    foreign.fill(rows(4))
    parts = foreign.parts()
    run = begin(parts, foreign.terms(parts), lambda: f"{foreign.endpoint}r")

    hide(parts, run, next(parts.ledger.batches(run.id)))

    aside = Table(f"timeoutmgr_{run.id}_{foreign.table.name}", MetaData())
    with foreign.persistence.database.read() as connection:
        assert connection.execute(select(func.count()).select_from(aside)).scalar_one() == 3
    parts.abort(run)
    parts.close()
    assert len(foreign.left()) == 4


def test_a_batch_of_large_bodies_has_as_many_as_fit_into_memory(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "MOST_BYTES", 1_000)
    foreign.fill(
        [
            row(State=bytes(size), Time=(AT + timedelta(seconds=place)).replace(tzinfo=None))
            for place, size in enumerate([500, 500, 1, 2_000, 0, 0, 0])
        ]
    )
    parts = foreign.parts()

    ranges = [*parts.source.ranges(Window(), 3)]

    assert [one.count for one in ranges] == [2, 1, 1, 3]
    assert foreign.run(parts).collected == 7


def test_a_run_that_was_planned_and_no_more_is_aborted(foreign: Foreign) -> None:
    foreign.fill(rows(4))
    parts = foreign.parts()
    terms, ranges = foreign.terms(parts), parts.source.ranges(Window(), 3)
    run = parts.ledger.create(f"{foreign.endpoint}r", terms, ranges, parts.runner)

    report = parts.abort(run)

    parts.close()
    assert (report.state, report.collected) == ("aborted", 0)
    assert len(foreign.left()) == 4


def test_a_row_that_came_since_the_survey_and_cannot_be_read_stays_where_it_is(
    foreign: Foreign,
) -> None:
    given = rows(4)
    foreign.fill(given)
    parts = foreign.parts()
    run = begin(parts, foreign.terms(parts), lambda: f"{foreign.endpoint}r")
    bad = row(Destination="sales.Timeouts", Time=given[1]["Time"])
    foreign.add([bad])

    report = parts.migrate(run)

    parts.close()
    assert (report.collected, report.new, foreign.left()) == (4, 4, [str(bad["Id"])])


def test_a_row_aside_whose_destination_is_refused_by_now_is_an_error_with_its_reason(
    foreign: Foreign,
) -> None:
    foreign.fill(rows(4))
    parts = foreign.parts()
    run = begin(parts, foreign.terms(parts), lambda: f"{foreign.endpoint}r")
    hide(parts, run, next(parts.ledger.batches(run.id)))
    narrow = replace(parts, source=foreign.source(Limits(allowed_destinations=("other",))))

    with pytest.raises(MigrationFailed, match="allowed_destinations"):
        narrow.abort(run)

    narrow.source.close()
    assert parts.abort(run).returned == 3
    parts.close()


def test_a_table_that_is_not_there_is_named(foreign: Foreign) -> None:
    parts = foreign.parts()

    with pytest.raises(SchemaMissing, match="_TimeoutData does not exist; name it with --table"):
        parts.source.survey(Window())

    parts.close()

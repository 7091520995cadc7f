"""A clock that was ahead for a moment: the schedule goes on by the clock that was set right."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recurrence.fleet import NOON, Fleet
from timeoutmgr.contracts import ScheduleRecord
from timeoutmgr.message.instants import Micros, to_micros
from timeoutmgr.recurrence.changes import needs_change
from timeoutmgr.recurrence.definition import CatchUp, RecurringTimeout

SECOND = 1_000_000
EVERY = (
    "5 seconds",
    "90 minutes",
    "1 day at 02:30 Europe/Berlin",
    "cron: */15 * * * * Australia/Lord_Howe",
    "1 week on sunday at 02:00 America/New_York",
)


@pytest.mark.parametrize("catch_up", [*CatchUp])
def test_the_next_run_is_stored_anew_when_the_clock_is_set_back(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, catch_up: CatchUp
) -> None:
    """The runs that the other clock had missed stay: ids by instant have each come once."""
    process = fleet.process("6 hours", catch_up=catch_up)
    process.step()
    fleet.dispatch()
    fleet.move_to(3, 12)
    process.step()
    sent = fleet.dispatch()
    fleet.move_to(1, 12, 5)
    caplog.clear()

    process.step()

    [line] = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert getattr(line, "event", None) == "recurring_run_replaced"
    assert getattr(line, "schedule", None) == "tick"
    assert "03 18:00" not in fleet.pending()
    for day, hour in [(1, 18), (2, 0), (2, 6), (2, 12), (2, 18), (3, 0), (3, 6), (3, 12), (3, 18)]:
        fleet.move_to(day, hour)
        process.step()
        sent += fleet.dispatch()
    assert len(sent) == len(set(sent)) == 9
    assert fleet.pending() == ["04 00:00"]


def test_a_restart_finds_the_run_of_a_clock_that_was_ahead(fleet: Fleet) -> None:
    fleet.move_to(3, 12)
    fleet.process("1 hour").step()
    fleet.move_to(1, 12)

    fleet.process("1 hour").step()

    assert fleet.pending() == ["01 13:00"]


def test_a_process_that_follows_a_newer_schedule_replaces_its_run_too(fleet: Fleet) -> None:
    old = fleet.process("1 hour")
    old.step()
    fleet.move_to(3, 12)
    fleet.process("20 minutes").step()
    fleet.dispatch()
    fleet.move_to(1, 12, 5)

    old.step()

    assert fleet.pending() == ["01 12:20"]


def test_a_schedule_of_a_clock_that_was_ahead_gives_way_to_a_later_process(fleet: Fleet) -> None:
    fleet.move_to(3, 12)
    old = fleet.process("1 hour")
    old.step()
    fleet.move_to(1, 12, 5)
    old.step()
    fleet.move_to(1, 12, 6)

    fleet.process("20 minutes").step()
    old.step()

    assert fleet.pending() == ["01 12:20"]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_schedule_configured_ahead_gives_way_though_its_run_is_the_next(
    fleet: Fleet, goes_on: bool
) -> None:
    oldest = fleet.process("12 hours")
    oldest.step()
    fleet.move_to(1, 14)
    ahead = fleet.process("1 day")
    ahead.step()
    fleet.move_to(1, 12, 5)
    if goes_on:
        ahead.step()
    oldest.step()
    assert fleet.pending() == ["02 00:00"], "that of the process that was configured ahead"
    fleet.move_to(1, 12, 6)

    fleet.process("20 minutes").step()
    ahead.step()
    oldest.step()

    assert fleet.pending() == ["01 12:20"]


def test_a_paused_schedule_stays_paused_when_the_clock_is_set_back(fleet: Fleet) -> None:
    fleet.move_to(3, 12)
    process = fleet.process("1 hour")
    process.step()
    process.recurring.pause("tick")
    fleet.move_to(1, 12)

    process.step()
    assert fleet.pending() == []

    process.recurring.resume("tick")
    process.step()
    assert fleet.pending() == ["01 13:00"]


def test_an_occurrence_that_was_sent_comes_no_second_time_after_a_step_back(fleet: Fleet) -> None:
    process = fleet.process("1 hour")
    process.step()
    fleet.move_to(1, 13)
    process.step()
    assert fleet.dispatch() == ["01 13:00"]

    for minute in (30, 58, 0):
        fleet.move_to(1, 13 if minute == 0 else 12, minute)
        process.step()

    assert fleet.dispatch() == []
    assert fleet.pending() == ["01 14:00"]


def test_processes_whose_clocks_differ_by_a_minute_keep_each_others_runs(fleet: Fleet) -> None:
    ahead, behind = fleet.process("1 second"), fleet.process("1 second")
    fleet.move_to(1, 12, 1)
    ahead.step()
    [run] = fleet.timeouts()
    fleet.move_to(1, 12, 0)

    behind.step()

    assert fleet.timeouts() == [run]


instants = st.integers(to_micros(NOON) // SECOND - 10**8, to_micros(NOON) // SECOND + 10**8)


@given(
    every=st.sampled_from(EVERY),
    chosen=instants.map(lambda at: at * SECOND),
    later=st.integers(-(10**9), 10**6).map(lambda by: by * SECOND),
)
def test_a_run_is_replaced_if_a_clock_within_a_minute_would_choose_an_earlier(
    every: str, chosen: Micros, later: Micros
) -> None:
    definition = RecurringTimeout(name="tick", message_type="Tick", body={}, every=every)
    after = definition.occurrences.after
    due, now = after(chosen), chosen + later
    assert due is not None
    record = ScheduleRecord(
        name="tick", every=definition.occurrences.text, done_until=chosen, run_due=due
    )

    earliest = after(now + 60 * SECOND)

    assert earliest is not None
    assert needs_change(record, definition, now) is (due <= now or earliest < due)
    if later >= -60 * SECOND:
        assert needs_change(record, definition, now) is (due <= now)

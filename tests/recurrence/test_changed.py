"""A schedule whose ``every`` changed: the process that started last decides."""

from __future__ import annotations

from tests.recurrence.fleet import Fleet


def test_a_changed_schedule_begins_anew(fleet: Fleet) -> None:
    fleet.process("1 day at 06:00").step()
    assert fleet.pending() == ["02 06:00"]
    fleet.move_to(1, 12, 30)

    fleet.process("1 hour").step()

    assert fleet.pending() == ["01 13:00"]


def test_a_pending_run_that_is_the_next_occurrence_too_stays(fleet: Fleet) -> None:
    fleet.process("1 hour").step()
    [before] = fleet.timeouts()
    fleet.move_to(1, 12, 30)

    fleet.process("30 minutes").step()

    assert fleet.timeouts() == [before]


def test_an_older_process_follows_the_schedule_of_a_newer(fleet: Fleet) -> None:
    old = fleet.process("1 hour")
    old.step()
    fleet.move_to(1, 12, 1)
    new = fleet.process("20 minutes")
    new.step()
    old.step()
    assert fleet.pending() == ["01 12:20"]

    fleet.move_to(1, 12, 20)
    old.step()
    new.step()

    assert fleet.pending() == ["01 12:20", "01 12:40"]


def test_a_change_catches_nothing_up(fleet: Fleet) -> None:
    fleet.process("1 day at 06:00", catch_up="all").step()
    fleet.move_to(5, 12, 30)

    fleet.process("1 hour", catch_up="all").step()

    assert fleet.pending() == ["02 06:00", "05 13:00"]


def test_a_run_of_a_schedule_that_left_the_configuration_goes_on_once(fleet: Fleet) -> None:
    fleet.process("1 hour").step()
    fleet.move_to(1, 14)

    [view] = fleet.process().recurring.list()

    assert (view.name, view.is_configured) == ("tick", False)
    assert fleet.dispatch() == ["01 13:00"]
    assert fleet.pending() == []

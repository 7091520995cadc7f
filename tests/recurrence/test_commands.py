"""List, pause, resume, run now and remove."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import pytest

from tests.recurrence.fleet import NOON, Fleet
from timeoutmgr.errors import CombinationRefused, UnknownSchedule
from timeoutmgr.message import headers
from timeoutmgr.recurrence.task import IDLE, WHILE_PAUSED


def test_a_list_shows_configured_and_kept_schedules(fleet: Fleet) -> None:
    process = fleet.process("1 hour", type="Report", destination="reports")

    [before] = process.recurring.list()
    process.step()
    [after] = process.recurring.list()

    assert (before.name, before.every, before.next) == ("tick", "1 hour", None)
    assert after.next == datetime(2030, 6, 1, 13, tzinfo=UTC)
    assert after.timeout_id == fleet.timeouts()[0].id
    assert (after.message_type, after.destination, after.catch_up) == ("Report", "reports", "one")


def test_a_pause_cancels_the_run_and_holds_in_all_processes(fleet: Fleet) -> None:
    one, other = fleet.process("1 hour"), fleet.process("1 hour")
    one.step()

    assert one.recurring.pause("tick")
    assert not other.recurring.pause("tick")

    assert other.step() == WHILE_PAUSED
    fleet.move_to(1, 14)
    assert other.step() == WHILE_PAUSED
    assert fleet.pending() == []
    assert [view.is_paused for view in other.recurring.list()] == [True]


def test_a_schedule_can_be_paused_before_its_first_run(fleet: Fleet) -> None:
    process = fleet.process("1 hour")

    process.recurring.pause("tick")
    process.step()
    fleet.move_to(1, 13, 30)
    process.recurring.resume("tick")

    assert fleet.pending() == ["01 13:00", "01 14:00"]


@pytest.mark.parametrize(
    ("catch_up", "runs"),
    [
        ("one", ["01 15:00", "01 16:00"]),
        ("all", ["01 13:00", "01 14:00", "01 15:00", "01 16:00"]),
        ("none", ["01 16:00"]),
    ],
)
def test_a_resume_follows_the_policy(fleet: Fleet, catch_up: str, runs: list[str]) -> None:
    process = fleet.process("1 hour", catch_up=catch_up)
    process.step()
    process.recurring.pause("tick")
    fleet.move_to(1, 15, 30)

    assert process.recurring.resume("tick")
    assert not process.recurring.resume("tick")

    assert fleet.pending() == runs
    assert process.step() == IDLE
    assert fleet.pending() == runs


def test_a_resume_before_the_run_stores_the_run_again(fleet: Fleet) -> None:
    process = fleet.process("1 hour")
    process.step()
    [before] = fleet.timeouts()

    for _ in range(3):
        process.recurring.pause("tick")
        process.recurring.resume("tick")

    [after] = fleet.timeouts()
    assert after.due == before.due
    assert after.id != before.id


def test_a_run_that_was_sent_before_the_pause_is_not_sent_again(fleet: Fleet) -> None:
    process = fleet.process("1 hour")
    process.step()
    fleet.move_to(1, 13)
    assert fleet.dispatch() == ["01 13:00"]

    process.recurring.pause("tick")
    process.recurring.resume("tick")

    assert fleet.pending() == ["01 14:00"]


def test_a_pause_beside_a_dispatch_lets_the_run_go(memory_fleet: Fleet) -> None:
    process = memory_fleet.process("1 hour")
    process.step()
    memory_fleet.move_to(1, 13)
    key = memory_fleet.timeouts()[0].key

    with memory_fleet.store.lock_for_dispatch("", [key]):
        process.recurring.pause("tick")
    assert memory_fleet.dispatch() == ["01 13:00"]
    process.recurring.resume("tick")

    assert memory_fleet.pending() == ["01 14:00"]


def test_a_resume_where_the_schedule_is_not_configured_leaves_the_run_to_others(
    fleet: Fleet,
) -> None:
    process, stranger = fleet.process("1 hour"), fleet.process()
    process.step()
    stranger.recurring.pause("tick")

    assert stranger.recurring.resume("tick")
    assert fleet.pending() == []

    process.step()
    assert fleet.pending() == ["01 13:00"]


def test_run_now_sends_one_message_and_moves_no_run(memory_fleet: Fleet) -> None:
    process = memory_fleet.process("1 hour", body=7)
    process.endpoint.install()
    process.step()

    sent = process.recurring.run_now("tick")

    assert memory_fleet.pending() == ["01 13:00"]
    assert sent.due is None
    transport = process.endpoint._parts.settings.transport
    with closing(transport.session()) as session:
        [received] = session.receiver(memory_fleet.name, prefetch=1).receive(1, 5.0)
    assert received.message.id == sent.message_id
    assert received.message.headers[headers.RECURRING] == "tick"


def test_remove_cancels_the_run_and_forgets_the_schedule(fleet: Fleet) -> None:
    process, stranger = fleet.process("1 hour"), fleet.process()
    process.step()

    stranger.recurring.remove("tick")

    assert fleet.pending() == []
    assert list(stranger.recurring.list()) == []


def test_a_schedule_that_is_removed_and_added_again_runs(fleet: Fleet) -> None:
    """Its next run has the instant of the run that the removal cancelled."""
    process, stranger = fleet.process("1 hour"), fleet.process()
    process.step()
    stranger.recurring.remove("tick")

    process.step()

    assert fleet.pending() == ["01 13:00"]


def test_a_configured_schedule_is_not_removed(fleet: Fleet) -> None:
    process = fleet.process("1 hour")

    with pytest.raises(CombinationRefused, match="out of the configuration first"):
        process.recurring.remove("tick")


@pytest.mark.parametrize("command", ["pause", "resume", "run_now", "remove"])
def test_an_unknown_name_is_refused_with_the_known_names(fleet: Fleet, command: str) -> None:
    process = fleet.process("1 hour")

    with pytest.raises(UnknownSchedule, match="'tock' here; known: tick"):
        getattr(process.recurring, command)("tock")


def test_a_cancel_by_a_pause_names_its_channel_in_the_history(sql_fleet: Fleet) -> None:
    process = sql_fleet.process("1 hour")
    process.step()
    [run] = sql_fleet.timeouts()

    process.recurring.pause("tick", channel="cli")

    history = process.endpoint.timeouts.history(run.id)
    assert history is not None
    assert [(one.event, one.channel) for one in history][-1] == ("cancelled", "cli")


def test_uninstall_forgets_the_schedules(sql_fleet: Fleet) -> None:
    sql_fleet.process("1 hour").step()

    persistence = sql_fleet.persistence()
    persistence.uninstall(sql_fleet.name, force=True)  # type: ignore[attr-defined]  # each database here can
    persistence.install()  # the tables are dropped with the last endpoint in them

    assert list(sql_fleet.process().recurring.list()) == []
    assert NOON.tzinfo is UTC

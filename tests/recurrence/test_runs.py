"""The next run is stored ahead, once for all processes, and missed runs follow the policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.recurrence.fleet import Fleet
from timeoutmgr import ToSend
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.endpoint.restoration import restored_messages, skip_runs
from timeoutmgr.message import headers
from timeoutmgr.recurrence import definition
from timeoutmgr.recurrence.task import IDLE

BY = ChangedBy(channel="cli")


def test_the_next_run_is_stored_ahead_and_no_further_run(fleet: Fleet) -> None:
    process = fleet.process("1 hour")

    process.step()
    process.step()

    assert fleet.pending() == ["01 13:00"]
    assert process.woken == [fleet.timeouts()[0].due]


def test_a_run_is_the_message_of_the_configuration(fleet: Fleet) -> None:
    process = fleet.process(
        "1 hour", type="DailyReport", body={"to": "all"}, destination="reports", headers={"a": "b"}
    )

    process.step()

    [run] = fleet.timeouts()
    assert run.destination == "reports"
    assert run.message.body == b'{"to": "all"}'
    given = run.message.headers
    assert given[headers.ENCLOSED_MESSAGE_TYPES] == "DailyReport"
    assert (given[headers.RECURRING], given["a"]) == ("tick", "b")


def test_the_run_after_is_stored_when_a_run_is_due(fleet: Fleet) -> None:
    process = fleet.process("1 hour")
    process.step()
    fleet.move_to(1, 12, 59)

    assert process.step() == 60
    assert fleet.pending() == ["01 13:00"]

    fleet.move_to(1, 13)
    process.step()

    assert fleet.pending() == ["01 13:00", "01 14:00"]
    assert fleet.dispatch() == ["01 13:00"]


def test_a_step_is_due_with_the_next_run_and_after_a_minute_at_most(fleet: Fleet) -> None:
    process = fleet.process("90 seconds")

    assert process.step() == IDLE
    fleet.move_to(1, 12, 0, 50)
    assert process.step() == 40


def test_processes_store_each_run_once(fleet: Fleet) -> None:
    processes = [fleet.process("10 minutes") for _ in range(3)]
    sent = []
    for minute in range(60):
        fleet.move_to(1, 12, minute)
        for process in processes[minute % 3 :]:
            process.step()
        sent += fleet.dispatch()

    assert sent == ["01 12:10", "01 12:20", "01 12:30", "01 12:40", "01 12:50"]
    assert fleet.pending() == ["01 13:00"]


def test_processes_with_other_bodies_have_no_conflict(fleet: Fleet) -> None:
    """Two versions of a program run side by side: the first that comes stores its message."""
    old, new = fleet.process("1 hour", body="old"), fleet.process("1 hour", body="new")

    for process in (old, new):
        process.step()
    fleet.move_to(1, 13)
    for process in (new, old):
        process.step()

    assert [run.message.body for run in fleet.timeouts()] == [b'"old"', b'"new"']


def test_the_same_instant_has_the_same_id_in_each_store(fleet: Fleet) -> None:
    process = fleet.process("1 hour")
    process.step()
    [run] = fleet.timeouts()
    fleet.store.change_schedule("tick", lambda locked: locked.delete())  # type: ignore[attr-defined]  # each store here keeps schedules

    process.step()

    assert [one.id for one in fleet.timeouts()] == [run.id]


@pytest.mark.parametrize(
    ("catch_up", "runs"),
    [
        ("one", ["01 16:00", "01 17:00"]),
        ("all", ["01 14:00", "01 15:00", "01 16:00", "01 17:00"]),
        ("none", ["01 17:00"]),
    ],
)
def test_the_policy_decides_about_missed_runs(fleet: Fleet, catch_up: str, runs: list[str]) -> None:
    """The run of 13:00 was sent in time; then no process lived to store the next run."""
    process = fleet.process("1 hour", catch_up=catch_up)
    process.step()
    fleet.move_to(1, 13)
    fleet.dispatch()
    fleet.move_to(1, 16, 30)

    fleet.process("1 hour", catch_up=catch_up).step()

    assert fleet.pending() == runs


@pytest.mark.parametrize(
    ("catch_up", "runs"),
    [
        ("one", ["01 13:00"]),
        ("all", ["01 13:00", "01 14:00", "01 15:00", "01 16:00"]),
        ("none", ["01 13:00"]),
    ],
)
def test_a_run_that_was_stored_before_an_outage_is_the_one_run(
    fleet: Fleet, catch_up: str, runs: list[str]
) -> None:
    process = fleet.process("1 hour", catch_up=catch_up)
    process.step()
    fleet.move_to(1, 16, 30)

    process.step()

    assert fleet.dispatch() == runs
    assert fleet.pending() == ["01 17:00"]


@pytest.mark.parametrize(
    ("catch_up", "runs"), [("one", ["01 18:00"]), ("all", ["01 17:00", "01 18:00"])]
)
def test_runs_that_a_lost_store_may_have_sent_are_skipped(
    fleet: Fleet, catch_up: str, runs: list[str]
) -> None:
    process = fleet.process("1 hour", catch_up=catch_up)
    process.step()
    fleet.move_to(1, 16, 30)
    fleet.store.cancel(fleet.timeouts()[0].id)

    for _ in range(2):
        skip_runs(fleet.store, fleet.clock.now(), BY)
    fleet.move_to(1, 18, 30)
    process.step()

    assert fleet.pending() == [*runs, "01 19:00"]
    assert restored_messages(process.endpoint.parts) == {}, "the queues are in another place"


def test_a_skip_leaves_a_run_to_come_and_a_schedule_without_a_first_run(fleet: Fleet) -> None:
    process = fleet.process("1 hour")
    process.recurring.pause("tick")
    skip_runs(fleet.store, fleet.clock.now(), BY)

    process.recurring.resume("tick")
    skip_runs(fleet.store, fleet.clock.now(), BY)

    assert fleet.pending() == ["01 13:00"]
    assert process.recurring.list()[0].timeout_id == fleet.timeouts()[0].id


def test_a_late_run_is_the_one_run_even_if_it_was_sent_before_the_step(fleet: Fleet) -> None:
    process = fleet.process("1 hour")
    process.step()
    fleet.move_to(1, 16, 30)
    assert fleet.dispatch() == ["01 13:00"]

    process.step()

    assert fleet.pending() == ["01 17:00"]


def test_all_missed_runs_have_a_limit(memory_fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeoutmgr.recurrence.changes.MOST_CAUGHT_UP", 3)
    process = memory_fleet.process("1 minute", catch_up="all")
    process.step()
    memory_fleet.move_to(1, 12, 1)
    memory_fleet.dispatch()
    memory_fleet.move_to(1, 20)

    process.step()

    assert memory_fleet.pending() == ["01 19:58", "01 19:59", "01 20:00", "01 20:01"]
    assert process.endpoint.snapshot()["recurring_runs_skipped"] == 1
    assert definition.MOST_CAUGHT_UP == 1000


def test_a_cancelled_run_is_skipped_alone(fleet: Fleet) -> None:
    process = fleet.process("1 hour")
    process.step()
    fleet.store.cancel(fleet.timeouts()[0].id)

    process.step()
    assert fleet.pending() == []

    fleet.move_to(1, 13)
    process.step()
    assert fleet.pending() == ["01 14:00"]


def test_a_schedule_whose_message_fails_in_middleware_does_not_stop_another(
    memory_fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    def of_tenant(message: ToSend) -> ToSend:
        tenants = {"Good": "acme"}
        headers = {"tenant": tenants[message.message_type]}
        return replace(message, options=replace(message.options, headers=headers))

    config = memory_fleet.configuration()
    config.recurring("bad", "Bad", {}, every="1 hour")
    config.recurring("tick", "Good", {}, every="1 hour")
    config.add_send_middleware(of_tenant)
    process = memory_fleet.of(config)

    process.step()

    assert [one.message.headers["tenant"] for one in memory_fleet.timeouts()] == ["acme"]
    assert process.endpoint.snapshot()["recurring_runs_refused"] == 1
    assert "could not store the next run of 'bad'" in caplog.text


def test_a_schedule_that_fails_does_not_stop_another(memory_fleet: Fleet) -> None:
    config = memory_fleet.configuration()
    config.recurring("bad", "Bad", {}, every="1 hour", destination="other.TimeoutsDispatcher")
    config.recurring("tick", "Tick", {}, every="1 hour")
    process = memory_fleet.of(config)

    assert process.step() == IDLE

    assert memory_fleet.pending() == ["01 13:00"]
    assert process.endpoint.snapshot()["recurring_runs_refused"] == 1

"""doctor and status fail for timeouts overdue, unstored, failed or deserted, and dead processes."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.cli.programs import Folder, wait_until
from timeoutmgr.cli.doctor.alerts import Thresholds, alerts
from timeoutmgr.cli.doctor.vitals import QueueVitals, StoreVitals
from timeoutmgr.contracts import Count, EndpointReport
from timeoutmgr.contracts.pauses import Pause
from timeoutmgr.contracts.reports import Level
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlTransport

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
PROCESS = {"host": "h1", "pid": 7, "breakers": {"Broker": "disarmed"}}


def levels(
    store: StoreVitals | None = None, queues: QueueVitals | None = None, **limits: Any
) -> dict[str, str]:
    return {each.check: each.level.value for each in alerts(store, queues, Thresholds(**limits))}


def queues(*, errors: int = 0, unstored: int = 0, waiting: int = 0) -> QueueVitals:
    return QueueVitals(error_queue="error", errors=errors, unstored=unstored, waiting=waiting)


def test_a_timeout_is_overdue_when_it_is_later_than_the_limit() -> None:
    late = StoreVitals(now=NOW, earliest=NOW - 60 * SECOND, processes=[PROCESS])
    later = StoreVitals(
        now=NOW, earliest=NOW - 60 * SECOND - 1, overdue=Count(5), processes=[PROCESS]
    )

    assert levels(late)["overdue"] == "ok"
    assert levels(later)["overdue"] == "fail"


def test_a_shell_reads_the_name_in_the_remedy_of_a_pause() -> None:
    pause = Pause(
        destination="mail; rm -r x",
        since=NOW,
        until=None,
        actor="me",
        reason=None,
        parked=Count(0),
        place=NOW,
    )

    [found] = (
        each
        for each in alerts(StoreVitals(now=NOW, earliest=None, pauses=[pause]), None, Thresholds())
        if each.check == "paused"
    )

    assert "`timeoutmgr resume 'mail; rm -r x'`" in found.remedy


def test_a_process_must_live_as_soon_as_timeouts_or_messages_wait() -> None:
    idle = StoreVitals(now=NOW, earliest=None, processes=[])
    pending = StoreVitals(now=NOW, earliest=NOW + SECOND, processes=[])
    alone = StoreVitals(now=NOW, earliest=NOW + SECOND, processes=[PROCESS])

    assert levels(idle, queues())["processes"] == "ok"
    assert levels(idle, queues(), min_processes=1)["processes"] == "fail"
    assert levels(idle, queues(waiting=1))["processes"] == "fail"
    assert levels(pending)["processes"] == "fail"
    assert levels(alone)["processes"] == "ok"
    assert levels(alone, min_processes=2)["processes"] == "fail"


def test_processes_without_heartbeats_are_not_counted_as_missing() -> None:
    delayed_store = StoreVitals(now=NOW, earliest=NOW + SECOND)

    found = {each.check: each for each in alerts(delayed_store, None, Thresholds())}

    assert found["processes"].level is Level.OK
    assert found["processes"].text.startswith("not checked")


def test_a_breaker_that_is_armed_warns_and_a_breaker_that_has_triggered_fails() -> None:
    def of(state: str) -> dict[str, str]:
        process = {**PROCESS, "breakers": {"Broker": state}}
        return levels(StoreVitals(now=NOW, earliest=None, processes=[process]))

    assert "breakers" not in of("disarmed")
    assert of("armed")["breakers"] == "warn"
    assert of("triggered")["breakers"] == "fail"


def test_messages_in_the_error_queue_fail_above_the_limit() -> None:
    assert levels(None, queues(errors=0))["error queue"] == "ok"
    assert levels(None, queues(errors=1))["error queue"] == "fail"
    assert levels(None, queues(errors=5), max_errors=5)["error queue"] == "ok"
    assert levels(None, queues(errors=6), max_errors=5)["error queue"] == "fail"


def test_unstored_messages_fail_above_the_limit_and_at_once_without_a_process() -> None:
    alive = StoreVitals(now=NOW, earliest=None, processes=[PROCESS])
    empty = StoreVitals(now=NOW, earliest=None, processes=[])

    assert levels(alive, queues(unstored=1_000))["unstored"] == "ok"
    assert levels(alive, queues(unstored=1_001))["unstored"] == "fail"
    assert levels(empty, queues(unstored=1))["unstored"] == "fail"
    assert levels(empty, queues(unstored=0))["unstored"] == "ok"
    assert levels(empty, queues(unstored=1), min_processes=0)["unstored"] == "ok"


def test_an_endpoint_without_a_process_is_named_with_its_first_due_time() -> None:
    deserted = EndpointReport(endpoint="old", earliest=NOW + 3_600 * SECOND, last_heartbeat=0)
    store = StoreVitals(now=NOW, earliest=None, processes=[], deserted=[deserted])

    found = {each.check: each for each in alerts(store, None, Thresholds())}

    assert found["other endpoints"].level is Level.FAIL
    assert "'old'" in found["other endpoints"].text
    assert "is due in 60 min" in found["other endpoints"].text


def _stored(folder: Folder, count: int) -> None:
    """Store *count* timeouts that are due in an hour, by a process that is killed then."""
    program = folder.start("run")
    program.wait_for("runs")
    for number in range(count):
        folder.run("send", folder.endpoint, "Hello", "{}", "--delay", "1h", "--id", f"m{number}")
    wait_until(lambda: folder.run("--json", "list").json()["total"] == count, "all are stored")
    program.stop(signal.SIGTERM)


def _by_check(ended: Any) -> dict[str, dict[str, str]]:
    document = ended.json()
    found = document["findings"] if "findings" in document else document["alerts"]
    return {each["check"]: each for each in found}


@pytest.mark.parametrize("command", ["doctor", "status"])
def test_overdue_timeouts_and_a_missing_process_end_the_command_with_1(
    folder: Folder, command: str
) -> None:
    _stored(folder, 3)
    with closing(sqlite3.connect(folder.path / "timeoutmgr.db")) as connection, connection:
        for table in ("timeouts", "timeout_keys"):
            connection.execute(
                f"UPDATE timeoutmgr_{table} SET due = due - {3_600 * 3 * SECOND + 1_800 * SECOND}"
            )

    ended = folder.run("--json", command)
    patient = folder.run("--json", command, "--max-overdue", "3h", "--min-processes", "0")
    shown = folder.run(command)

    found = _by_check(ended)
    assert ended.returncode == shown.returncode == 1
    assert (found["overdue"]["level"], found["processes"]["level"]) == ("fail", "fail")
    assert found["overdue"]["text"].startswith(
        "3 timeouts are overdue by more than 60 s, the oldest by 2 h (id "
    )
    assert "start a process" in found["processes"]["remedy"]
    assert "fail  overdue: 3 timeouts are overdue" in shown.stdout + shown.stderr
    assert patient.returncode == 0, patient.stdout


@pytest.mark.parametrize("command", ["doctor", "status"])
def test_messages_in_the_error_queue_end_the_command_with_1(folder: Folder, command: str) -> None:
    folder.run("install")
    url = f"sqlite:///{folder.path / 'timeoutmgr.db'}"
    with closing(SqlTransport(url)) as transport, closing(transport.session()) as session:
        session.send([Outgoing("error", Message(id=f"m{number}")) for number in range(3)])

    ended = folder.run("--json", command)
    allowed = folder.run(command, "--max-errors", "3")

    assert ended.returncode == 1
    assert _by_check(ended)["error queue"]["text"] == "3 messages in 'error'; the limit is 0"
    assert allowed.returncode == 0, allowed.stdout + allowed.stderr


@pytest.mark.parametrize("command", ["doctor", "status"])
def test_messages_that_no_process_stores_end_the_command_with_1(
    folder: Folder, command: str
) -> None:
    folder.run("install")
    folder.run("send", folder.endpoint, "Hello", "{}", "--delay", "1h")

    ended = folder.run("--json", command)

    assert ended.returncode == 1
    unstored = _by_check(ended)["unstored"]
    assert unstored["text"] == "1 messages wait for the timeout manager, and no process lives"


@pytest.mark.parametrize("command", ["doctor", "status"])
def test_timeouts_of_a_renamed_endpoint_end_the_command_with_1(
    folder: Folder, command: str
) -> None:
    _stored(folder, 1)
    folder.variables["TIMEOUTMGR_ENDPOINT"] = f"{folder.endpoint}x"
    folder.run("install")

    ended = folder.run("--json", command)

    assert ended.returncode == 1
    text = _by_check(ended)["other endpoints"]["text"]
    assert text.startswith(f"endpoint {folder.endpoint!r} has timeouts here and no live process")


@pytest.mark.parametrize("command", ["doctor", "status"])
def test_a_running_endpoint_passes_all_checks(folder: Folder, command: str) -> None:
    program = folder.start("run")
    program.wait_for("runs")
    folder.run("send", folder.endpoint, "Hello", "{}", "--delay", "1h")
    wait_until(lambda: folder.run("--json", "list").json()["total"] == 1, "it is stored")
    wait_until(lambda: folder.run(command).returncode == 0, "its process has left a heartbeat")

    program.stop()

    assert folder.run(command).returncode == 1


def test_a_sender_whose_clock_is_ahead_is_a_warning_with_its_name() -> None:
    process = {**PROCESS, "senders_ahead": "billing by 600 s"}
    store = StoreVitals(now=NOW, earliest=None, processes=[PROCESS, process])

    [found] = [each for each in alerts(store, None, Thresholds()) if each.check == "sender clocks"]

    assert found.level is Level.WARN
    assert "billing by 600 s" in found.text

"""``timeoutmgr restored``: the report of a recovery, and each decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cli.programs import Ended, Folder
from tests.persistence.making import SECOND, timeout
from tests.support.makers import a_message
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import ScheduleRecord
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.message.message import Outgoing
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.sql import SqlTransport

WHY = ("--reason", "disk of db-1 lost")


class Recovered:
    """A folder whose store is as of an hour ago: two timeouts were due since, one is to come."""

    def __init__(self, folder: Folder, store: Any) -> None:
        self.folder = folder
        self.store = store
        now = store.now()
        self.at = datetime.fromtimestamp(now // SECOND, UTC) - timedelta(hours=1)
        ago = {"a": 1800, "b": 900, "later": -7200, "old": 7200}
        store.store_many([timeout(name, now - past * SECOND) for name, past in ago.items()])
        self.dues = self.pending()
        tick = ScheduleRecord(
            name="tick", every="1 hour", done_until=1, run_due=now - 1, run_id="a"
        )
        store.change_schedule("tick", lambda locked: locked.write(tick))

    def run(self, *given: str) -> Ended:
        return self.folder.run("--json", "restored", "--at", self.at.isoformat(), *given, *WHY)

    def skipped_runs(self) -> bool:
        [tick] = self.store.schedules()
        return tick.done_until > 1 and tick.run_id is None

    def pending(self) -> dict[str, str]:
        found = self.folder.run("--json", "list").json()["timeouts"]
        return {each["id"]: each["due"] for each in found}


@pytest.fixture
def recovered(folder: Folder) -> Iterator[Recovered]:
    assert folder.run("install").returncode == 0
    with closing(SqlPersistence(f"sqlite:///{folder.path / 'timeoutmgr.db'}")) as persistence:
        yield Recovered(folder, persistence.timeouts(folder.endpoint, SystemClock()))


def test_a_window_without_a_decision_is_a_finding_and_nothing_is_changed(
    recovered: Recovered,
) -> None:
    done = recovered.run()

    assert done.returncode == 6, done.stdout + done.stderr
    assert done.json()["window"]["timeouts"] == 2
    assert done.json()["window"]["by_destination"] == {"billing": 2}
    assert done.json()["due_before_window"] == 1
    assert done.json()["decision"] is None
    assert recovered.pending() == recovered.dues
    [row] = recovered.folder.run("--json", "audit", "list").json()["audit"]
    assert (row["action"], row["reason"], row["expected"]) == ("restored", WHY[1], 2)


def test_a_held_window_has_its_due_times_again_after_an_undo(recovered: Recovered) -> None:
    done = recovered.run("--window", "hold", "--expect", "2")
    held = recovered.pending()
    undone = recovered.folder.run("runs", "undo", done.json()["run"]["id"], *WHY)

    assert (done.returncode, done.json()["run"]["changed"]) == (0, 2), done.stdout + done.stderr
    assert {name for name, due in held.items() if due.startswith("9999")} == {"a", "b"}
    assert undone.returncode == 0
    assert recovered.pending() == recovered.dues
    assert recovered.skipped_runs()


@pytest.mark.parametrize(("decision", "kept"), [("hold", {"held"}), ("cancel", set())])
def test_a_timeout_that_a_pause_held_at_the_restore_is_of_the_window(
    recovered: Recovered, decision: str, kept: set[str]
) -> None:
    store, now = recovered.store, recovered.store.now()
    store.store_many([timeout("held", now - 7200 * SECOND, destination="held")])
    store.pause("held", None, ChangedBy(channel="cli"))
    chunk = store.claim(now, 10, "o")
    parked = [key for key in chunk.keys if key.id == "held"]
    with store.lock_for_dispatch(chunk.token, parked) as locked:
        assert not locked.timeouts
        locked.close([])
    store.release(chunk.token)
    dues = recovered.pending()

    found = recovered.run()
    done = recovered.run("--window", decision)

    assert (found.returncode, found.json()["window"]["timeouts"]) == (6, 3)
    assert found.json()["due_before_window"] == 1
    assert (done.returncode, done.json()["run"]["changed"]) == (0, 3), done.stdout + done.stderr
    assert set(recovered.pending()) == {"later", "old", *kept} | ({"a", "b"} if kept else set())
    if kept:
        recovered.folder.run("runs", "undo", done.json()["run"]["id"], *WHY)
        assert recovered.pending() == dues


def test_a_cancelled_window_is_removed_and_all_else_stays(recovered: Recovered) -> None:
    done = recovered.run("--window", "cancel")

    assert (done.returncode, done.json()["run"]["changed"]) == (0, 2), done.stdout + done.stderr
    assert set(recovered.pending()) == {"later", "old"}
    assert recovered.skipped_runs()


def test_a_window_that_is_sent_again_stays_as_it_is(recovered: Recovered) -> None:
    done = recovered.run("--window", "send")

    assert done.returncode == 0, done.stdout + done.stderr
    assert recovered.pending() == recovered.dues
    assert not recovered.skipped_runs()


@pytest.mark.parametrize(("decision", "code"), [(None, 6), ("cancel", 6), ("send", 0)])
def test_messages_of_restored_queues_may_be_handled_again(
    folder: Folder, recovered: Recovered, decision: str | None, code: int
) -> None:
    """So may a message that a handler had when the database broke: its lease came back."""
    recovered.run("--window", "cancel")
    queue = folder.endpoint
    with (
        closing(SqlTransport(f"sqlite:///{folder.path / 'timeoutmgr.db'}")) as transport,
        closing(transport.session()) as session,
        closing(session.receiver(queue, prefetch=1)) as receiver,
    ):
        session.send([Outgoing(queue, a_message("1")), Outgoing(queue, a_message("2"))])
        receiver.receive(1, 1.0)

        done = recovered.run(*(() if decision is None else ("--window", decision)))

    assert done.returncode == code, done.stdout + done.stderr
    assert done.json()["window"]["timeouts"] == 0
    assert done.json()["queues"] == {
        queue: 2,
        f"{queue}.Timeouts": 0,
        f"{queue}.TimeoutsDispatcher": 0,
    }


def test_another_number_than_expected_changes_nothing(recovered: Recovered) -> None:
    refused = recovered.run("--window", "cancel", "--expect", "3")

    assert refused.returncode == 2
    assert recovered.pending() == recovered.dues


def test_a_running_process_is_refused_before_anything_is_released(recovered: Recovered) -> None:
    recovered.store.heartbeat("mine", {})

    refused = recovered.run("--window", "hold")

    assert refused.returncode == 2
    assert "have worked on the store since" in refused.stdout
    assert recovered.pending() == recovered.dues


def test_people_read_the_window_and_what_to_do(recovered: Recovered) -> None:
    said = recovered.folder.run("restored", "--at", recovered.at.isoformat(), *WHY)

    assert "to billing" in said.stdout
    assert "give --window hold, send or cancel" in said.stdout

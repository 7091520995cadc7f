"""list, show, cancel, reschedule and their like need the store alone."""

from __future__ import annotations

import pytest

from tests.cli.programs import Folder
from timeoutmgr import EndpointConfiguration, SendOptions, ToSend
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.transport.sql import SqlTransport

IDS = ["m1", "m2", "m3", "m4"]
NO_BROKER = "amqp://guest:guest@127.0.0.1:1//"


@pytest.fixture(params=["sqlite", "postgres"])
def ids(request: pytest.FixtureRequest, folder: Folder, unique: str) -> list[str]:
    """Timeouts in a store, whose endpoint has a broker that is away from here on."""
    url = (
        f"sqlite:///{folder.path / 'store.db'}"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    folder.variables |= {
        "TIMEOUTMGR_PERSISTENCE": url,
        "TIMEOUTMGR_PERSISTENCE_OPTIONS_PREFIX": f"{unique}_",
    }
    stored = _stored(url, folder.endpoint, f"{unique}_")
    folder.variables["TIMEOUTMGR_TRANSPORT"] = NO_BROKER
    return stored


def _stored(url: str, name: str, prefix: str) -> list[str]:
    config = EndpointConfiguration(name)
    config.use_transport(SqlTransport(url, prefix=prefix))
    config.use_persistence(SqlPersistence(url, prefix=prefix))
    config.enable_feature(TimeoutManager())
    endpoint = Endpoint(config)
    try:
        endpoint.install()
        found: list[str] = []
        messages = [
            ToSend(name, "Hello", {}, SendOptions(message_id=each, saga_id=each, delay=3_600))
            for each in IDS
        ]
        endpoint.store_many(
            messages, on_sent=lambda sent: found.extend(str(each.id) for each in sent)
        )
        return found
    finally:
        endpoint.close()


def test_timeouts_are_listed_and_shown_while_the_broker_is_away(
    folder: Folder, ids: list[str]
) -> None:
    listed = folder.run("--json", "list")
    shown = folder.run("--json", "show", ids[0])

    assert listed.returncode == 0, listed.stdout
    assert sorted(each["id"] for each in listed.json()["timeouts"]) == sorted(ids)
    assert (shown.returncode, shown.json()["state"]) == (0, "pending")


def test_timeouts_are_cancelled_while_the_broker_is_away(folder: Folder, ids: list[str]) -> None:
    cancelled = folder.run("--json", "cancel", ids[0])
    by_saga = folder.run("--json", "cancel-saga", "m2")

    assert (cancelled.returncode, cancelled.json()["results"]) == (0, {ids[0]: "cancelled"})
    assert (by_saga.returncode, by_saga.json()["cancelled"]) == (0, 1)


def test_a_reschedule_while_the_broker_is_away_reports_that_the_poller_was_not_woken(
    folder: Folder, ids: list[str]
) -> None:
    moved = folder.run("--json", "reschedule", ids[0], "--at", "2090-01-01T00:00Z")
    sent = folder.run("--json", "send-now", ids[1])
    shown = folder.run("--json", "show", ids[0]).json()

    assert (moved.returncode, moved.json()["result"]) == (0, "changed")
    assert (sent.returncode, sent.json()["result"]) == (0, "changed")
    assert shown["due"] == "2090-01-01T00:00:00+00:00"
    assert "which polls within a minute" in sent.stderr
    assert "polls" not in moved.stderr, "who is polled before the due time needs no wake"

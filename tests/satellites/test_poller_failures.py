"""A poll that fails is told and counted, and the next one comes all the same."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.satellites.polling import AWAY, DAY, Loop
from tests.support.clock import START
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.resilience.breakers import BreakerState


@pytest.mark.behaviour(56)
@pytest.mark.parametrize(
    "error", [AWAY, TransportUnavailable("gone"), RuntimeError("a bug"), ValueError("a bug")]
)
def test_the_loop_outlives_every_error(loop: Loop, error: Exception) -> None:
    loop.store.fail("claim", error, error)
    keys = loop.harness.put(1, START - 10 * 365 * DAY)

    loop.started()

    assert loop.telemetry.snapshot()["polls_failed"] == 2
    assert loop.harness.claimed() == [keys]


@pytest.mark.behaviour(56, 76)
def test_an_outage_arms_the_breaker_and_its_end_disarms_it(loop: Loop) -> None:
    away = threading.Event()
    away.set()

    def ready() -> None:
        if away.is_set():
            raise AWAY

    loop.ready = ready
    loop.poller.start()
    assert loop.telemetry.reaches("polls_failed", 3)
    states = [loop.fetch.state]

    away.clear()
    assert loop.telemetry.reaches("polls", 1)
    states.append(loop.fetch.state)

    assert states == [BreakerState.ARMED, BreakerState.DISARMED]


def test_a_failed_poll_is_logged_with_the_documented_sentence(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.store.fail("claim", AWAY)

    with caplog.at_level(logging.WARNING):
        loop.started()

    assert "poller could not fetch timeouts from the storage" in caplog.text


def test_a_poll_whose_ids_cannot_be_sent_blames_no_storage(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.store.fail("claim", TransportUnavailable("the broker is away"))

    with caplog.at_level(logging.WARNING):
        loop.started()

    assert "poller could not send ids of timeouts: the broker is away" in caplog.text
    assert "storage" not in "".join(one for one in caplog.messages if one.startswith("poller"))


def test_failing_polls_leave_one_session_open_at_most(loop: Loop) -> None:
    loop.store.fail("claim", *[StorageUnavailable("away") for _ in range(5)])

    loop.started()

    assert loop.transport.open_sessions <= 1


def test_a_poller_whose_thread_does_not_start_can_be_stopped_and_started(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        loop.poller.start()
    loop.poller.stop()
    monkeypatch.undo()

    loop.started()

    assert loop.telemetry.snapshot()["polls"] == 1

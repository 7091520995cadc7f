"""A sender whose clock is ahead of the store's is counted, named in the log and reported."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.clock import START, FakeClock
from tests.support.forks import ended_in_a_child
from tests.support.makers import SECOND, a_timeout
from tests.support.waiting import eventually
from timeoutmgr import Endpoint
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.contracts.reports import SENDERS_AHEAD
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import with_headers
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.satellites.housekeeping import Housekeeping
from timeoutmgr.satellites.timeout_manager.sender_clocks import SenderClocks
from timeoutmgr.telemetry import Counters
from timeoutmgr.testing import RecordingTelemetry, configure


class Gate:
    """Sender clocks over a store whose clock is *offset* ahead of the host's."""

    def __init__(self, offset: Micros | None = 0) -> None:
        self.clock = FakeClock()
        self.telemetry = Counters()
        self.senders = SenderClocks(lambda: offset, self.clock, self.telemetry)

    @property
    def counted(self) -> float:
        return self.telemetry.snapshot().get("senders_ahead", 0)


def sent(ahead: Micros, sender: str = "billing", *, now: Micros = START) -> Timeout:
    made = a_timeout()
    named = {**made.message.headers, headers.ORIGINATING_ENDPOINT: sender}
    return replace(made, created=now + ahead, message=with_headers(made.message, named))


def test_a_child_that_is_forked_while_a_sender_is_noted_notes_senders_too() -> None:
    gate = Gate()

    def note_in_the_child() -> int:
        gate.senders.compare([sent(60 * SECOND)])
        return 0 if gate.senders.report() else 1

    with gate.senders._lock:
        ended = ended_in_a_child(note_in_the_child)

    assert ended == 0


@pytest.mark.parametrize(
    ("ahead", "offset", "counted"),
    [
        (30 * SECOND, 0, 0),
        (30 * SECOND + 1, 0, 1),
        (-600 * SECOND, 0, 0),
        # By the store's clock, not by the host's, which may be wrong.
        (600 * SECOND, 600 * SECOND, 0),
        (0, -31 * SECOND, 1),
        (600 * SECOND, None, 0),
    ],
)
def test_a_sender_is_compared_with_the_stores_clock(
    ahead: Micros, offset: Micros | None, counted: int
) -> None:
    gate = Gate(offset)

    gate.senders.compare([sent(ahead)])

    assert gate.counted == counted
    assert bool(gate.senders.report()) is bool(counted)


def test_a_sender_is_logged_by_name_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    with caplog.at_level(logging.WARNING):
        for _ in range(13):
            now = gate.clock.now()
            ahead = [sent(600 * SECOND, name, now=now) for name in ("billing", "shop\nERROR")]
            gate.senders.compare(ahead)
            gate.clock.advance(10.0)

    lines = [record.getMessage() for record in caplog.records]
    assert gate.counted == 26
    assert sum("sender billing has a clock 600 s ahead" in line for line in lines) == 3
    assert sum("sender shop\\nERROR has a clock" in line for line in lines) == 3
    assert len(lines) == 6


def test_names_of_strangers_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    with caplog.at_level(logging.WARNING):
        for number in range(99):
            gate.senders.compare([sent(600 * SECOND, f"{number}\n" + "x" * 5000)])

    assert max(len(record.getMessage()) for record in caplog.records) < 400
    assert len(gate.senders.report()[SENDERS_AHEAD]) < 20 * 100


def test_a_report_names_the_senders_of_the_last_hour() -> None:
    gate = Gate()
    gate.senders.compare([sent(600 * SECOND, "billing")])
    gate.clock.advance(1800)
    gate.senders.compare([sent(45 * SECOND, "shop", now=gate.clock.now())])

    assert gate.senders.report() == {SENDERS_AHEAD: "billing by 600 s, shop by 45 s"}
    gate.clock.advance(1801)
    assert gate.senders.report() == {SENDERS_AHEAD: "shop by 45 s"}
    gate.clock.advance(3600)
    assert gate.senders.report() == {}


def an_hour_ahead() -> dict[str, str]:
    hour = timedelta(hours=1) // timedelta(microseconds=1)
    return {headers.TIME_SENT: to_wire(SystemClock().now() + hour)}


def wait_for_comparison(telemetry: RecordingTelemetry) -> None:
    eventually(lambda: "clock_offset_seconds" in telemetry.snapshot(), "the clocks are compared")


def test_a_manager_reports_a_sender_with_its_heartbeat(unique: str) -> None:
    telemetry = RecordingTelemetry()
    config = configure(unique, features=[TimeoutManager()], telemetry=telemetry)
    with Endpoint(config) as endpoint:
        wait_for_comparison(telemetry)
        with telemetry.expect("senders_ahead"):
            endpoint.send_local("Ping", None, delay=3600, headers=an_hour_ahead())

        context = endpoint._parts.features
        [house] = [each for each in context.tasks if isinstance(each, Housekeeping)]
        house.keep_house()
        assert context.store is not None
        [process] = context.store.processes()
        assert process.state[SENDERS_AHEAD] == f"{unique} by 3600 s"


def test_a_delayed_message_store_counts_a_sender_too(unique: str, sqlite_url: str) -> None:
    telemetry = RecordingTelemetry()
    config = configure(unique, persistence=None, telemetry=telemetry)
    store = DelayedDeliverySettings(SqlDelayedMessageStore(sqlite_url))
    config.use_transport(sqlite_url, delayed_delivery=store)
    with Endpoint(config) as endpoint:
        wait_for_comparison(telemetry)
        with telemetry.expect("senders_ahead"):
            endpoint.send_local("Ping", None, delay=3600, headers=an_hour_ahead())

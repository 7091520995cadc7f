"""The promises while the storage is away at the start, comes and goes, or stays away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.acceptance.gate import Gate
from tests.acceptance.matrix import EMBEDDED, REFERENCE, REPRESENTATIVE, SERVED, Pair, matrix
from tests.acceptance.place import LATER, PROMPT, SOON, Party, Place
from tests.services.private import PrivateServer
from tests.support.waiting import eventually
from timeoutmgr import CriticalErrorContext
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.satellites import TimeoutManager

SENTENCE = "Repeated failures when fetching timeouts from storage, endpoint will be terminated."
SHORT = timedelta(seconds=1)
LONG = timedelta(minutes=2)


class Alarm:
    """A critical error hook that keeps its errors."""

    def __init__(self) -> None:
        self.raised: list[tuple[float, CriticalErrorContext]] = []
        self._rang = threading.Semaphore(0)

    def __call__(self, context: CriticalErrorContext) -> None:
        """Keep *context*."""
        self.raised.append((time.monotonic(), context))
        self._rang.release()

    def wait(self, timeout: float = 15) -> CriticalErrorContext:
        """Return its next error."""
        assert self._rang.acquire(timeout=timeout), "no critical error was raised"
        return self.raised[-1][1]


def gated(place: Place, wait: timedelta, **settings: object) -> tuple[Gate, Alarm, Party]:
    """Return a party whose store is behind a gate, and the alarm at its critical errors."""
    gate, alarm = Gate(place.persistence()), Alarm()
    party = Party(
        place,
        persistence=gate,
        manager=TimeoutManager(time_to_wait_before_critical_error=wait),
        **settings,
    )
    party.config.define_critical_error_action(alarm)
    return gate, alarm, party


@matrix(pairs=SERVED)
@pytest.mark.behaviour(76)
def test_an_endpoint_starts_without_its_storage_and_works_when_it_is_back(place: Place) -> None:
    gate, alarm, party = gated(place, LONG)
    gate.shut()

    party.start()
    sent = party.endpoint.send_local("Ping", 1, delay=SOON)
    assert gate.asked_in_vain.acquire(timeout=10)
    gate.open()

    assert party.inbox.wait_for_id(sent.message_id).lateness >= 0
    assert alarm.raised == []


@matrix(pairs=REPRESENTATIVE, all_modes=True)
@pytest.mark.behaviour(32)
def test_messages_wait_in_their_queue_while_the_storage_is_away(place: Place) -> None:
    gate, alarm, party = gated(place, LONG)
    party.start()
    party.telemetry.wait_for("polls", 1)
    gate.shut()

    sent = [party.endpoint.send_local("Ping", number, delay=SOON) for number in range(20)]
    party.telemetry.wait_for("storage_failures", 1)
    eventually(
        lambda: place.session.count(f"{party.name}.Timeouts") >= 10,  # the pump has received a few
        "messages wait in .Timeouts",
    )
    gate.open()

    arrived = party.inbox.wait_for(20)
    assert {a.id for a in arrived} == {s.message_id for s in sent}
    assert len(arrived) == 20
    assert place.session.count(party.config.error_queue) == 0
    assert party.telemetry.counted("moved_to_error") == 0
    assert alarm.raised == []


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(75)
def test_storage_that_comes_and_goes_below_the_limit_raises_nothing(place: Place) -> None:
    gate, alarm, party = gated(place, timedelta(seconds=4))
    party.start()
    party.telemetry.wait_for("polls", 1)

    for number in range(5):
        gate.shut()
        party.endpoint.send_local("Ping", number, delay=SOON)
        assert gate.asked_in_vain.acquire(timeout=10)
        gate.open()
        party.inbox.wait_for(number + 1)

    assert alarm.raised == []
    assert party.endpoint.critical_error is None


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(68, 69, 70, 71, 77, 78, 80)
def test_storage_that_stays_away_raises_one_critical_error_in_time(place: Place) -> None:
    gate, alarm, party = gated(place, SHORT)
    party.start()
    party.telemetry.wait_for("polls", 1)
    away_since = time.monotonic()
    gate.shut()

    context = alarm.wait()

    took = time.monotonic() - away_since
    assert context.error == SENTENCE
    assert "away, as the test wants it" in str(context.exception)
    assert SHORT.total_seconds() <= took
    assert took < SHORT.total_seconds() + PROMPT
    sent = party.endpoint.send_local("Ping", 1, delay=SOON)
    party.telemetry.wait_for("storage_failures", 1)
    assert len(alarm.raised) == 1
    assert party.endpoint.critical_error == (SENTENCE, context.exception)

    context.stop()

    assert party.endpoint.wait(0)
    gate.open()
    party.endpoint.start()
    party.inbox.wait_for_id(sent.message_id)
    assert len(alarm.raised) == 1


@matrix(pairs=[EMBEDDED, REFERENCE])
@pytest.mark.behaviour(81)
def test_without_a_hook_a_critical_error_stops_the_endpoint(place: Place) -> None:
    gate = Gate(place.persistence())
    manager = TimeoutManager(time_to_wait_before_critical_error=timedelta(0))
    party = Party(place, persistence=gate, manager=manager)
    gate.shut()

    party.start()

    assert party.endpoint.wait(15)
    assert party.endpoint.critical_error is not None
    assert party.endpoint.critical_error[0] == SENTENCE


@matrix(pairs=[EMBEDDED, REFERENCE])
@pytest.mark.behaviour(70, 82)
def test_hooks_run_in_order_and_again_at_the_next_outage(place: Place) -> None:
    gate, alarm, party = gated(place, timedelta(0))
    order: list[str] = []
    both = threading.Semaphore(0)

    def breaks(_context: CriticalErrorContext) -> None:
        order.append("breaks")
        raise RuntimeError("the hook itself is broken")

    def last(_context: CriticalErrorContext) -> None:
        order.append("last")
        both.release()

    party.config.define_critical_error_action(breaks)
    party.config.define_critical_error_action(last)
    gate.shut()
    party.start()
    assert both.acquire(timeout=15)
    gate.open()
    # A triggered breaker probes again after ten seconds; a wake makes it probe now.
    party.telemetry.wait_for("polls", 1, timeout=20)

    gate.shut()
    party.endpoint.send_local("Ping", 1, delay=0)

    assert both.acquire(timeout=15)
    assert order[:4] == ["breaks", "last"] * 2
    assert {context.error for _, context in alarm.raised} <= {
        SENTENCE,
        SENTENCE.replace("fetching timeouts from storage", "storing timeouts"),
    }


@matrix(pairs=[REFERENCE])
@pytest.mark.behaviour(32, 75, 76)
@pytest.mark.slow
def test_a_real_database_may_be_away_at_the_start_and_be_killed_later(
    place: Place, private_server: Callable[[str], PrivateServer]
) -> None:
    server = private_server("postgres")
    place = _with_store(place, server.url)
    alarm = Alarm()
    manager = TimeoutManager(time_to_wait_before_critical_error=LONG)
    party = Party(place, manager=manager)
    party.config.define_critical_error_action(alarm)
    server.stop()

    party.start()
    first = party.endpoint.send_local("Ping", 1, delay=SOON)
    party.telemetry.wait_for("storage_failures", 1)
    server.start()
    party.inbox.wait_for_id(first.message_id)
    stored = party.endpoint.send_local("Ping", 2, delay=2 * timedelta(seconds=1))
    party.wait_until_stored(stored.id)

    server.kill()
    waiting = party.endpoint.send_local("Ping", 3, delay=SOON)
    party.telemetry.wait_for("polls_failed", 2, timeout=30)
    server.start()

    party.inbox.wait_for_id(stored.message_id, timeout=30)
    party.inbox.wait_for_id(waiting.message_id, timeout=30)
    assert alarm.raised == []
    assert place.session.count(party.config.error_queue) == 0
    assert len({a.id for a in party.inbox.arrived}) == 3


@matrix(pairs=[Pair("postgres", "postgres")])
@pytest.mark.behaviour(76)
@pytest.mark.slow
def test_a_killed_database_of_queue_and_store_returns_with_all_messages(
    place: Place, private_server: Callable[[str], PrivateServer]
) -> None:
    server = private_server("postgres")
    place = _with_store(place, server.url, also_transport=True)
    alarm = Alarm()
    party = Party(place)
    party.config.define_critical_error_action(alarm)
    server.stop()
    with pytest.raises(TransportUnavailable):
        party.start()
    server.start()
    party.start()
    sent = [party.endpoint.send_local("Ping", n, delay=8 + n / 100) for n in range(50)]
    party.wait_until_stored(*(each.id for each in sent))

    server.kill()
    party.telemetry.wait_for("polls_failed", 1, timeout=30)
    server.start()

    arrived = party.inbox.wait_for(50, timeout=60)
    assert {a.id for a in arrived} == {s.message_id for s in sent}
    assert alarm.raised == []


@matrix(pairs=[EMBEDDED, REFERENCE])
def test_the_gate_leaves_the_tested_behaviour_unchanged(place: Place) -> None:
    _gate, _alarm, party = gated(place, LONG)
    party.start()

    sent = party.endpoint.send_local("Ping", 1, delay=SOON)
    kept = party.endpoint.send_local("Ping", 1, delay=LATER)

    assert party.inbox.wait_for_id(sent.message_id).lateness < PROMPT
    assert party.endpoint.timeouts.count() <= 2
    party.wait_until_stored(kept.id)


def _with_store(place: Place, url: str, *, also_transport: bool = False) -> Place:
    """Return *place* with its store (and transport) on a server of the test's own."""
    urls = {**place.urls, "postgres": url}
    if not also_transport:
        assert place.pair.transport != "postgres"
    moved = Place(place.pair, urls, place.name)
    place.closing.push(moved.closing)
    return moved

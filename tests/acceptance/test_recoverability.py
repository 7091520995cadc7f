"""A handler that fails is tried again, later again, and its message then kept whole with why."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.acceptance.matrix import (
    EACH_ONCE,
    RECEIVE_ONLY,
    REFERENCE,
    REPRESENTATIVE,
    SERVED,
    Pair,
    matrix,
)
from tests.acceptance.place import LATER, SOON, Party, Place
from tests.support.waiting import eventually
from timeoutmgr import HandlerContext, RecoverabilitySettings
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire

QUICK = RecoverabilitySettings(immediate=2, delayed=2, increase=timedelta(milliseconds=100))


class Broken(Exception):
    """The error of a handler here."""


class Flaky:
    """A handler that fails as often as a message's body says."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._lock = threading.Lock()
        self.tries: Counter[str] = Counter()
        self.seen: list[dict[str, str]] = []

    def __call__(self, body: Any, context: HandlerContext) -> None:
        """Fail, or hand the message to the inbox."""
        with self._lock:
            self.tries[context.message_id] += 1
            self.seen.append(dict(context.headers))
            tries = self.tries[context.message_id]
        context.send_local("Sent while failing", tries)
        if tries <= body["failures"]:
            raise Broken(f"try {tries}: naïve ☂")
        self._party.inbox(body, context)


@matrix(pairs=SERVED, all_modes=True)
@pytest.mark.behaviour(127, 128)
def test_a_delayed_message_that_fails_is_tried_later_and_later_again(place: Place) -> None:
    fails_and_is_tried_later_twice(place, SOON)


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(127, 128)
def test_a_failing_message_is_tried_later_and_later_again(place: Place) -> None:
    fails_and_is_tried_later_twice(place, None)


def fails_and_is_tried_later_twice(place: Place, delay: timedelta | None) -> None:
    """Send a message that fails four times."""
    party = Party(place, recoverability=QUICK)
    flaky = Flaky(party)
    party.config.add_handler("Flaky", flaky)
    party.start()

    sent = party.endpoint.send_local("Flaky", {"failures": 4}, delay=delay, headers={"own": "ä"})

    arrival = party.inbox.wait_for_id(sent.message_id)
    party.inbox.wait_for(2)
    assert flaky.tries[sent.message_id] == 5
    assert [seen.get(headers.RETRIES) for seen in flaky.seen] == [None, None, "1", "1", "2"]
    second, third = (from_wire(flaky.seen[n][headers.RETRIES_TIMESTAMP]) for n in (2, 4))
    assert third - second >= 100_000
    assert arrival.at - third >= 200_000
    assert arrival.headers["own"] == "ä"
    assert arrival.message.body == b'{"failures": 4}'
    assert [a.body for a in party.inbox.arrived if a.message_type == "Sent while failing"] == [5]
    eventually(lambda: party.endpoint.timeouts.count() == 0, "every retry is closed")


@matrix(pairs=SERVED)
@pytest.mark.behaviour(65)
def test_a_message_that_keeps_failing_is_in_the_error_queue_whole(place: Place) -> None:
    party = Party(place, recoverability=RecoverabilitySettings(delayed=0))
    flaky = Flaky(party)
    party.config.add_handler("Flaky", flaky)
    party.start()

    sent = party.endpoint.send_local("Flaky", {"failures": 99}, delay=SOON, headers={"own": "ä"})

    copy = party.errors.wait_for_id(sent.message_id)
    assert flaky.tries[sent.message_id] == 5
    assert copy.body == b'{"failures": 99}'
    assert copy.headers["own"] == "ä"
    assert copy.headers[headers.FAILED_QUEUE] == party.name
    assert copy.headers[headers.EXCEPTION_TYPE].endswith("Broken")
    assert copy.headers[headers.EXCEPTION_MESSAGE] == "try 5: naïve ☂"
    assert "raise Broken" in copy.headers[headers.EXCEPTION_STACK]
    assert copy.headers[headers.PROCESSING_ENDPOINT] == party.name
    needed = headers.FAILURE_HEADERS | {headers.RELATED_TO_TIMEOUT}
    assert needed <= set(copy.headers)
    assert party.inbox.arrived == []
    assert len(party.errors.poll()) == 1


@matrix(pairs=(REFERENCE, Pair("rabbitmq", "sqlite"), Pair("sqlite", "sqlite", RECEIVE_ONLY)))
def test_earlier_sends_of_a_handler_come_once_when_a_later_send_failed(place: Place) -> None:
    party = Party(place, recoverability=RecoverabilitySettings(immediate=3, delayed=0))

    def send_two(_body: Any, context: HandlerContext) -> None:
        context.send_local("Reminder", {}, delay=SOON)
        context.send(f"{place.name}-nobody", "Lost", {})

    party.config.add_handler("Order", send_two)
    party.start()

    sent = party.endpoint.send_local("Order", {})

    party.errors.wait_for_id(sent.message_id)
    party.inbox.wait_for(1)
    eventually(lambda: party.endpoint.timeouts.count() == 0, "no timeout is left")
    assert [one.message_type for one in party.inbox.arrived] == ["Reminder"]


@matrix(pairs=REPRESENTATIVE)
def test_a_message_without_a_handler_goes_to_the_error_queue_at_once(place: Place) -> None:
    party = Party(place)
    config = place.configuration(f"{place.name}-b", handler=None)
    config.add_handler("Known", party.inbox)
    endpoint = place.run(config)
    errors = place.received(config.error_queue)

    sent = endpoint.send_local("Unknown", {})
    broken = endpoint.send_local("Known", b"{", content_type="application/json")

    assert "no handler" in errors.wait_for_id(sent.message_id).headers[headers.EXCEPTION_MESSAGE]
    assert (
        "the body is no"
        in (errors.wait_for_id(broken.message_id).headers[headers.EXCEPTION_MESSAGE])
    )


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(91)
def test_a_missing_error_queue_loses_nothing(place: Place) -> None:
    party = Party(place, recoverability=RecoverabilitySettings(immediate=1, delayed=0))
    flaky = Flaky(party)
    party.config.add_handler("Flaky", flaky)
    party.start()
    place.session.delete_queues([party.config.error_queue])

    sent = party.endpoint.send_local("Flaky", {"failures": 10**6})
    party.telemetry.wait_for("transport_failures", 1)
    place.queue(party.config.error_queue)

    copy = party.errors.wait_for_id(sent.message_id)
    assert copy.headers[headers.FAILED_QUEUE] == party.name
    assert place.session.count(party.name) == 0


@matrix(pairs=REPRESENTATIVE, all_modes=True)
def test_a_message_sent_back_from_the_error_queue_is_handled(place: Place) -> None:
    from timeoutmgr.resilience.error_copy import without_failure

    party = Party(place, recoverability=RecoverabilitySettings(immediate=1, delayed=0))
    flaky = Flaky(party)
    party.config.add_handler("Flaky", flaky)
    party.start()
    sent = party.endpoint.send_local("Flaky", {"failures": 1}, delay=SOON)
    copy = party.errors.wait_for_id(sent.message_id)

    place.put(copy.headers[headers.FAILED_QUEUE], without_failure(copy))

    arrival = party.inbox.wait_for_id(sent.message_id)
    assert not headers.FAILURE_HEADERS & set(arrival.headers)
    assert arrival.message.body == b'{"failures": 1}'


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(129)
def test_delayed_retries_that_nothing_can_delay_are_refused_at_the_start(place: Place) -> None:
    config = place.plain(place.name, handler=lambda body, context: None)
    config.recoverability = QUICK

    with pytest.raises(ConfigurationError, match="delayed retries are configured"):
        place.run(config)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(67)
def test_no_more_messages_are_handled_at_once_than_configured(place: Place) -> None:
    party = Party(place, concurrency=2)
    together = threading.Barrier(2, timeout=10)
    inside: Counter[str] = Counter()
    most: list[int] = []
    lock = threading.Lock()

    @party.config.handler("Slow")
    def slow(_body: Any, context: HandlerContext) -> None:
        with lock:
            inside["now"] += 1
            most.append(inside["now"])
        if not together.broken:
            try:
                together.wait(0.3)
            except threading.BrokenBarrierError:
                together.reset()
        with lock:
            inside["now"] -= 1
        party.inbox(_body, context)

    party.start()
    for number in range(6):
        party.endpoint.send_local("Slow", number)

    party.inbox.wait_for(6)
    assert max(most) <= 2


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(97)
def test_stop_waits_for_running_handlers(place: Place) -> None:
    party = Party(place)
    begun, finish = threading.Event(), threading.Event()

    @party.config.handler("Slow")
    def slow(body: Any, context: HandlerContext) -> None:
        begun.set()
        assert finish.wait(10)
        party.inbox(body, context)

    party.start()
    sent = party.endpoint.send_local("Slow", {})
    pending = party.endpoint.send_local("Later", {}, delay=LATER)
    assert begun.wait(10)
    stopping = threading.Thread(target=party.endpoint.stop)
    stopping.start()
    stopping.join(0.1)
    assert stopping.is_alive()

    finish.set()
    stopping.join(10)

    assert not stopping.is_alive()
    assert len(party.inbox.of(sent.message_id)) == 1
    eventually(lambda: place.session.count(party.name) == 0, "the message is settled")
    assert pending.id is not None

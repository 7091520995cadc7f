"""Delayed messages through the levels of a real broker."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import timedelta
from itertools import pairwise

import amqp
import pytest

from tests.acceptance.place import PROMPT
from tests.native.fleet import Fleet, names
from timeoutmgr import Endpoint, RecoverabilitySettings, SendOptions, ToSend
from timeoutmgr.clock import SystemClock
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import DelayTooLong, InvalidMessage, Unroutable, Unsupported
from timeoutmgr.message.instants import from_micros, from_wire
from timeoutmgr.native.levels import LEVELS, read_routing_key
from timeoutmgr.native.names import OURS
from timeoutmgr.testing import Inbox

SECOND = 1_000_000


@pytest.mark.behaviour(4, 108, 109)
def test_each_arrives_once_it_is_due(fleet: Fleet) -> None:
    sales, _ = fleet.with_inbox(fleet.native(f"{fleet.stem}.sales"))
    _, inbox = fleet.with_inbox(fleet.native(f"{fleet.stem}.billing"))

    at = from_micros(SystemClock().now() + 2 * SECOND + 300_000)
    sent = [
        sales.send(f"{fleet.stem}.billing", "Remind", {}, delay=delay) for delay in (0, 0.4, 1, 3)
    ]
    sent.append(sales.send(f"{fleet.stem}.billing", "Remind", {}, deliver_at=at))

    arrived = inbox.wait_for(len(sent))
    assert {one.id for one in arrived} == {one.message_id for one in sent}
    assert all(0 <= one.lateness < PROMPT for one in arrived)
    due = {one.id: from_wire(one.headers["NServiceBus.DeliverAt"]) for one in arrived}
    assert [from_micros(due[one.message_id]) for one in sent] == [one.due for one in sent]


@pytest.mark.behaviour(111, 112)
def test_a_dotted_name_is_not_misrouted(fleet: Fleet) -> None:
    destinations = names(fleet.stem, ["sales", "eu.sales", "eu.sales.sales"])
    inboxes = {name: fleet.with_inbox(fleet.native(name)) for name in destinations}
    sender = inboxes[destinations[0]][0]

    sender.send_many(
        ToSend(destinations[n % 3], "Remind", destinations[n % 3], SendOptions(delay=1))
        for n in range(1000)
    )

    for name, (_, inbox) in inboxes.items():
        expected = 334 if name == destinations[0] else 333
        assert Counter(one.body for one in inbox.wait_for(expected)) == {name: expected}
    assert sum(len(inbox.arrived) for _, inbox in inboxes.values()) == 1000


@pytest.mark.behaviour(114)
def test_a_message_that_is_delayed_three_times_is_delivered(fleet: Fleet) -> None:
    name = f"{fleet.stem}.sales"
    inbox = Inbox()
    config = fleet.native(name)

    @config.handler("Again")
    def again(left: int, context: HandlerContext) -> None:
        inbox(left, context)
        if left:
            # Passed on with all that it came with, as a forwarder does.
            kept = {key: text for key, text in context.headers.items() if key.startswith("x-")}
            context.send_local("Again", left - 1, delay=1, headers=kept)

    endpoint = fleet.start(config)
    endpoint.send_local("Again", 2, delay=1)

    arrived = inbox.wait_for(3)
    assert [one.body for one in arrived] == [2, 1, 0]
    assert not [key for one in arrived for key in one.headers if key.lower().startswith("x-")]


@pytest.mark.behaviour(114, 127, 128)
def test_delayed_retries_go_through_the_levels(fleet: Fleet) -> None:
    config = fleet.native(f"{fleet.stem}.sales")
    config.recoverability = RecoverabilitySettings(
        immediate=1, delayed=2, increase=timedelta(seconds=1)
    )
    attempts = Inbox()

    @config.handler("Fails")
    def fails(body: object, context: HandlerContext) -> None:
        attempts(body, context)
        if len(attempts.arrived) < 3:
            raise RuntimeError("not yet")

    sent = fleet.start(config).send_local("Fails", {"order": 7})

    tried = attempts.wait_for(3)
    assert {one.id for one in tried} == {sent.message_id}
    assert [one.headers.get("NServiceBus.Retries") for one in tried] == [None, "1", "2"]
    assert [round((b.at - a.at) / SECOND) for a, b in pairwise(tried)] == [1, 2]
    assert fleet.errors() == []


# --- at the door ------------------------------------------------------------------------------


@pytest.fixture
def sales(fleet: Fleet) -> Endpoint:
    return fleet.start(fleet.native(f"{fleet.stem}.sales"))


@pytest.mark.behaviour(107)
def test_a_delay_beyond_the_levels_is_refused_when_sent(sales: Endpoint) -> None:
    with pytest.raises(DelayTooLong, match="3106 days"):
        sales.send_local("Remind", {}, delay=2**28 + 1)


@pytest.mark.behaviour(110)
def test_a_destination_that_does_not_exist_is_refused_when_sent(
    sales: Endpoint, fleet: Fleet
) -> None:
    with pytest.raises(Unroutable, match="nowhere"):
        sales.send(f"{fleet.stem}.nowhere", "Remind", {}, delay=1)


@pytest.mark.behaviour(110)
def test_an_unbound_destination_is_bound_when_sent(sales: Endpoint, fleet: Fleet) -> None:
    queue = fleet.queue(f"{fleet.stem}.plain")

    sales.send(queue, "Remind", {}, delay=0)

    with closing(fleet.session.receiver(queue, prefetch=1)) as receiver:
        [received] = receiver.receive(1, 5.0)
    # By the binding: what the satellite of unroutable messages sends on has a key of its own.
    assert read_routing_key(received.routing_key or "") == (0, queue)


@pytest.mark.behaviour(112)
def test_a_destination_with_a_wildcard_for_a_word_is_refused_when_sent(
    sales: Endpoint, fleet: Fleet
) -> None:
    with pytest.raises(InvalidMessage, match="messages for other queues"):
        sales.send(f"{fleet.stem}.#", "Remind", {}, delay=1)


def test_abilities_of_a_store_are_unsupported_with_the_alternative(sales: Endpoint) -> None:
    with pytest.raises(Unsupported, match="fallback_to_store"):
        sales.send_local("Remind", {}, delay=1, cancellable=True)
    with pytest.raises(Unsupported, match="timeoutmgr status"):
        sales.timeouts  # noqa: B018 - asking is what is refused
    with pytest.raises(Unsupported, match="saga"):
        sales.clear_timeouts("order-7")


@pytest.mark.behaviour(114)
def test_the_brokers_marks_of_a_delay_stay_behind(
    fleet: Fleet, sales: Endpoint, raw_channel: amqp.Channel
) -> None:
    seen, kept = fleet.queue(f"{fleet.stem}.seen"), fleet.queue(f"{fleet.stem}.kept")
    for queue in (seen, kept):
        sales.send(queue, "Remind", {}, delay=1)

    with closing(fleet.session.receiver(kept, prefetch=1)) as receiver:
        [received] = receiver.receive(1, 5.0)
    on_the_wire = raw_channel.basic_get(seen).headers

    assert "x-death" in on_the_wire
    assert not [name for name in received.message.headers if name.startswith("x-")]
    with pytest.raises(InvalidMessage, match="steers the broker"):
        sales.send(kept, "Remind", {}, delay=1, headers={"X-Death": "again"})


def test_each_level_is_counted(fleet: Fleet, sales: Endpoint) -> None:
    far = fleet.queue(f"{fleet.stem}.far")
    before = {name: fleet.session.count(name) for name in OURS.level_names}

    sales.send(far, "Remind", {}, delay=2**20 + 7)

    after = {name: fleet.session.count(name) for name in OURS.level_names}
    assert len(after) == LEVELS
    assert after[OURS.level_name(20)] == before[OURS.level_name(20)] + 1

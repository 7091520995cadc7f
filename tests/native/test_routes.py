"""Which way a delayed message takes, decided without a broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.fleet import held_by
from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_composer, a_message
from timeoutmgr import SendOptions
from timeoutmgr.errors import DelayTooLong, InvalidMessage, Unsupported
from timeoutmgr.message import headers
from timeoutmgr.message.headers import DELIVER_AT
from timeoutmgr.message.instants import Micros, from_wire, to_wire
from timeoutmgr.message.message import Outgoing
from timeoutmgr.native.infrastructure import delay_topology
from timeoutmgr.native.levels import MAX_SECONDS, read_routing_key, routing_key
from timeoutmgr.native.names import (
    CELERY,
    NSERVICEBUS_V1,
    NSERVICEBUS_V2,
    OURS,
    NameSet,
    NativeRoute,
    delay_in_seconds,
    to_levels,
)
from timeoutmgr.sender.composer import Composer
from timeoutmgr.transport.amqp.frames import content_header
from timeoutmgr.transport.envelope import seal


def to_store(outgoing: Outgoing, _due: Micros) -> Outgoing:
    return Outgoing("sales.Timeouts", outgoing.message)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def a_route(clock: FakeClock, *, falls_back: bool) -> NativeRoute:
    return NativeRoute(names=OURS, clock=clock, falls_back=falls_back, stored=to_store)


@pytest.mark.parametrize(
    ("names", "exchange"),
    [
        (OURS, "timeoutmgr.v1.delay-level-02"),
        (NSERVICEBUS_V2, "nsb.v2.delay-level-02"),
        (CELERY.prefixed("shop"), "shop_celery_delayed_2"),
    ],
)
def test_it_enters_the_level_of_its_highest_bit_with_its_due_instant_in_a_header(
    names: NameSet, exchange: str, clock: FakeClock
) -> None:
    routed = to_levels(Outgoing("billing", a_message()), START + 5 * SECOND, names, clock)

    assert routed.destination == "billing"
    assert routed.via is not None
    assert routed.via.address() == (exchange, routing_key(5, "billing"))
    assert routed.message.headers[DELIVER_AT] == to_wire(START + 5 * SECOND)


@pytest.mark.behaviour(108)
@given(
    st.integers(0, MAX_SECONDS * SECOND), st.sampled_from([OURS, NSERVICEBUS_V2, NSERVICEBUS_V1])
)
def test_the_levels_keep_a_message_until_it_is_due_and_hardly_longer(
    micros: int, names: NameSet
) -> None:
    routed = to_levels(Outgoing("billing", a_message()), START + micros, names, FakeClock())
    assert routed.via is not None
    exchange, key = routed.via.address()
    read = read_routing_key(key)
    assert read is not None
    arguments = {one.name: one.arguments or {} for one in delay_topology(names).queues}

    queues = [names.level_name(level) for level in held_by(read[0])]
    if exchange not in names.level_names:
        queues = [exchange, *queues]
    held = sum(arguments[queue]["x-message-ttl"] for queue in queues) * 1000

    assert exchange == (queues[0] if queues else names.level_name(0))
    assert micros <= held < micros + SECOND // names.parts + len(queues) * 1000 * names.margin + 1


@pytest.mark.behaviour(108)
def test_the_delay_counts_from_when_it_is_written(clock: FakeClock) -> None:
    routed = to_levels(Outgoing("billing", a_message()), START + 10 * SECOND, OURS, clock)
    assert routed.via is not None

    clock.advance(7.2)
    assert routed.via.address() == ("timeoutmgr.v1.delay-part-7-of-8", routing_key(2, "billing"))
    clock.advance(60)
    assert routed.via.address() == (OURS.level_name(0), routing_key(0, "billing"))


@pytest.mark.parametrize(
    ("wait", "is_stored"),
    [
        (-SECOND, False),
        (0, False),
        (1, True),
        (SECOND // 2, True),
        (SECOND, False),
        (MAX_SECONDS * SECOND, False),
        (MAX_SECONDS * SECOND + 1, True),
    ],
)
def test_a_store_gets_delays_beyond_the_levels(
    wait: int, is_stored: bool, clock: FakeClock
) -> None:
    routed = a_route(clock, falls_back=True)(Outgoing("billing", a_message()), START + wait)

    assert (routed.destination == "sales.Timeouts") is is_stored
    assert (routed.via is None) is is_stored


def test_without_fallback_nothing_is_stored(clock: FakeClock) -> None:
    route = a_route(clock, falls_back=False)
    short = route(Outgoing("billing", a_message()), START + 1)

    assert short.via is not None
    assert short.via.address() == ("timeoutmgr.v1.delay-part-1-of-8", routing_key(0, "billing"))
    with pytest.raises(DelayTooLong):
        route(Outgoing("billing", a_message()), START + MAX_SECONDS * SECOND + 1)


# --- NServiceBus' own header for a delay ------------------------------------------------------

GOLDEN: Final = (
    b"\x00\x3c\x00\x00"  # the class basic, weight 0
    b"\x00\x00\x00\x00\x00\x00\x00\x02"  # the size of the body
    b"\xf0\x80"  # content type, encoding, headers, delivery mode, message id
    b"\x10application/json"
    b"\x05utf-8"
    b"\x00\x00\x00\xbd"  # the size of the headers
    b"\x15NServiceBus.MessageIdS\x00\x00\x00\x02m1"
    b"\x14NServiceBus.TimeSentS\x00\x00\x00\x1c2026-01-01 00:00:00:000000 Z"
    b"\x15NServiceBus.DeliverAtS\x00\x00\x00\x1c2026-01-01 00:00:04:200000 Z"
    b"\x2dNServiceBus.Transport.RabbitMQ.DelayInSecondsI\x00\x00\x00\x05"
    b"\x02"  # persistent
    b"\x02m1"
)
"""The content header of a message that waits 4.2 s from its TimeSent in NServiceBus' levels."""


def header_of(routed: Outgoing) -> bytes:
    """Return the content header of *routed*, as a session writes it."""
    assert routed.via is not None
    numbers = routed.via.numbers(routed.message)
    return content_header(seal(routed.message, numbers), len(routed.message.body))


@pytest.mark.parametrize("names", [NSERVICEBUS_V2, NSERVICEBUS_V1], ids=lambda names: names.name)
def test_a_delay_in_nservicebus_levels_is_an_integer_of_amqp(names: NameSet) -> None:
    sent = a_message("m1", time_sent="2026-01-01 00:00:00:000000 Z")
    at = from_wire("2026-01-01 00:00:00:000000 Z")

    routed = to_levels(Outgoing("billing", sent), at + 4_200_000, names, FakeClock(at))

    assert header_of(routed) == GOLDEN


@pytest.mark.parametrize("names", [OURS, CELERY], ids=lambda names: names.name)
def test_a_delay_in_other_levels_is_no_header(names: NameSet, clock: FakeClock) -> None:
    sent = a_message("m1", time_sent=to_wire(START))

    routed = to_levels(Outgoing("billing", sent), START + SECOND, names, clock)

    assert b"DelayInSeconds" not in header_of(routed)


@pytest.mark.behaviour(119)
@pytest.mark.parametrize(
    ("sent", "due", "seconds"),
    [
        (START, START, 0),
        (START, START + 1, 1),
        (START, START + SECOND, 1),
        (START, START + SECOND + 1, 2),
        (START - 3600 * SECOND, START + SECOND, 3601),
        (START + 10 * SECOND, START + SECOND, -9),
        (START, START + (2**31 - 1) * SECOND, 2**31 - 1),
        (START, START + (2**31 - 1) * SECOND + 1, None),
    ],
)
def test_a_delay_in_seconds_counts_from_time_sent_and_is_rounded_up(
    sent: Micros, due: Micros, seconds: int | None
) -> None:
    assert delay_in_seconds(a_message(time_sent=to_wire(sent)), due) == seconds


def test_a_message_without_a_time_sent_gets_the_present(clock: FakeClock) -> None:
    plain = Outgoing("billing", a_message())
    unreadable = Outgoing("billing", a_message(time_sent="yesterday"))

    routed, odd = (
        to_levels(each, START + 5 * SECOND, NSERVICEBUS_V2, clock) for each in (plain, unreadable)
    )

    assert routed.via is not None
    assert routed.message.headers[headers.TIME_SENT] == to_wire(START)
    assert routed.via.numbers(routed.message) == {headers.DELAY_IN_SECONDS: 5}
    assert odd.message.headers[headers.TIME_SENT] == "yesterday"
    assert b"DelayInSeconds" not in header_of(odd)


# --- requests ---------------------------------------------------------------------------------


def a_native_composer(clock: FakeClock, *, falls_back: bool) -> Composer:
    route = a_route(clock, falls_back=falls_back)
    stored = to_store if falls_back else None
    made = a_composer(clock, route)
    return replace(made, cancellable_delays=stored, remembering_delays=stored)


def test_a_message_in_the_broker_has_no_id_for_a_cancel(clock: FakeClock) -> None:
    composer = a_native_composer(clock, falls_back=True)
    options = SendOptions(delay=timedelta(seconds=7))

    native = composer.compose("billing", "Remind", {}, options)
    stored = composer.compose("billing", "Remind", {}, replace(options, cancellable=True))

    assert native.sent.id is None
    assert native.sent.due is not None
    assert stored.sent.id is not None
    assert stored.outgoing.destination == "sales.Timeouts"


def test_a_cancellable_message_is_refused_where_no_store_may_keep_it(clock: FakeClock) -> None:
    composer = a_native_composer(clock, falls_back=False)

    with pytest.raises(Unsupported, match=r"cancellable=True.*fallback_to_store=True"):
        composer.compose("billing", "Remind", {}, SendOptions(delay=7, cancellable=True))
    with pytest.raises(Unsupported, match="storing a delayed message"):
        composer.compose("billing", "Remind", {}, SendOptions(delay=7), stored=True)
    with pytest.raises(InvalidMessage, match="cancellable=True is given, and the message is not"):
        composer.compose("billing", "Remind", {}, SendOptions(cancellable=True))


def test_delay_levels_refuse_options_that_need_remembered_ids(clock: FakeClock) -> None:
    composer = a_native_composer(clock, falls_back=True)
    options = SendOptions(delay=timedelta(seconds=7), message_id="m1", on_conflict="replace")

    with pytest.raises(Unsupported, match=r"on_conflict.*cancellable=True"):
        composer.compose("billing", "Remind", {}, options)
    stored = composer.compose("billing", "Remind", {}, replace(options, cancellable=True))

    assert stored.outgoing.message.headers[headers.ON_CONFLICT] == "replace"

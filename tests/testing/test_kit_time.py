"""The clock of the testing kit: order, instants, spans."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from freezegun import freeze_time
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.testing.kit import START, Shop
from timeoutmgr import Endpoint, HandlerContext, SendOptions, ToSend, TransactionMode
from timeoutmgr.errors import ConfigurationError, InvalidMessage

SPANS = st.integers(0, 12).map(lambda hours: timedelta(hours=hours))
SCHEDULES = st.lists(st.tuples(SPANS, st.booleans()), max_size=12)
"""For each message its delay, and whether its handler sends it once more, 3 hours later."""


def schedule(shop: Shop, messages: list[tuple[timedelta, bool]]) -> None:
    def repeat(body: list[object], context: HandlerContext) -> None:
        number, again = body
        shop.noted.append((number, shop.kit.now))
        if again:
            context.send_local("Repeat", [f"{number} again", False], delay=timedelta(hours=3))

    shop.config.add_handler("Repeat", repeat)
    kit = shop.open()
    for number, (delay, again) in enumerate(messages):
        kit.send_local("Repeat", [number, again], delay=delay)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEDULES, SPANS)
def test_an_advance_delivers_what_is_due_once_in_order_and_nothing_early(
    messages: list[tuple[timedelta, bool]], span: timedelta
) -> None:
    shop = Shop()
    schedule(shop, messages)

    shop.kit.advance(span)

    due = [(START + delay, number) for number, (delay, _again) in enumerate(messages)]
    again = [(at + timedelta(hours=3), f"{n} again") for at, n in due if messages[n][1]]
    # Of one instant: a message sent at the start was sent before one that a handler sent.
    order = sorted(due) + sorted(again, key=lambda pair: pair[0])
    expected = [pair for pair in sorted(order, key=lambda pair: pair[0]) if pair[0] <= START + span]
    assert [(at, number) for number, at in shop.noted] == expected
    assert len(shop.kit.scheduled()) == len(due) + sum(
        messages[n][1] for at, n in due if at <= START + span
    ) - len(expected)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEDULES, SPANS, SPANS)
def test_two_advances_are_one_advance_by_their_sum(
    messages: list[tuple[timedelta, bool]], first: timedelta, second: timedelta
) -> None:
    split, whole = Shop(), Shop()
    schedule(split, messages)
    schedule(whole, messages)

    split.kit.advance(first)
    split.kit.advance(second)
    whole.kit.advance(first + second)

    assert split.noted == whole.noted
    assert split.kit.now == whole.kit.now
    assert [one.due for one in split.kit.scheduled()] == [one.due for one in whole.kit.scheduled()]


def test_many_messages_of_one_instant_leave_in_order_of_sending() -> None:
    shop = Shop()
    kit = shop.open()
    for number in range(30):
        kit.send_local("Note", number, deliver_at=START + timedelta(days=1))

    kit.advance(days=1)

    assert shop.bodies == list(range(30))


@pytest.mark.parametrize("mode", TransactionMode)
def test_a_handler_sees_the_due_time_and_its_messages_are_handled_within_the_span(
    mode: TransactionMode,
) -> None:
    shop = Shop()
    shop.config.transaction_mode = mode
    shop.config.accept_loss()
    seen: list[datetime] = []

    @shop.config.handler("Chain")
    def chain(left: int, context: HandlerContext) -> None:
        seen.append(shop.kit.now)
        if left:
            context.send_local("Chain", left - 1, delay=timedelta(hours=1))
            context.send("mail", "Letter", "the same each time")

    kit = shop.open()
    kit.send_local("Chain", 3, delay=timedelta(days=1))

    kit.advance(days=1, hours=2)

    assert seen == [START + timedelta(days=1, hours=hours) for hours in range(3)]
    assert kit.now == START + timedelta(days=1, hours=2)
    kit.advance_to(START + timedelta(days=2))
    assert len(seen) == 4
    assert len(kit.sent(destination="mail")) == 3


def test_a_frozen_clock_of_the_host_moves_along_and_handlers_read_it() -> None:
    shop = Shop()
    read: list[datetime] = []

    @shop.config.handler("Read")
    def read_clock(body: object, context: HandlerContext) -> None:
        read.append(datetime.now(UTC))
        context.send_local("Note", 1, deliver_at=datetime.now(UTC) + timedelta(hours=1))

    kit = shop.open()
    with freeze_time(kit.now) as frozen:
        kit.on_move(frozen.move_to)
        kit.send_local("Read", 1, delay=timedelta(days=1))
        kit.advance(days=2)

        assert read == [START + timedelta(days=1)]
        assert shop.noted == [(1, START + timedelta(days=1, hours=1))]
        assert datetime.now(UTC) == kit.now == START + timedelta(days=2)


@pytest.mark.parametrize(
    "send",
    [
        lambda endpoint, one: endpoint.send_local("Note", 1, deliver_at=one.options.deliver_at),
        lambda endpoint, one: endpoint.send_many([one]),
        lambda endpoint, one: endpoint.store_many([one]),
    ],
    ids=["send", "send_many", "store_many"],
)
def test_a_due_time_from_the_hosts_clock_is_within_an_advance_of_as_much(
    send: Callable[[Endpoint, ToSend], object],
) -> None:
    with freeze_time("2031-01-01") as host:
        shop = Shop()
        kit = shop.open(start=None)
        host.tick(timedelta(microseconds=1500))  # a test takes a moment before it reads the clock
        in_14_days = datetime.now(UTC) + timedelta(days=14)

        send(kit.endpoint, ToSend("sales", "Note", 1, SendOptions(deliver_at=in_14_days)))
        kit.advance(days=13, hours=23)
        assert shop.bodies == []
        kit.advance(hours=1)

        assert shop.bodies == [1]


def test_a_clock_that_a_test_moves_itself_is_followed_to_the_microsecond() -> None:
    late = []
    for micros in range(309_700, 309_708):
        shop = Shop()
        with freeze_time(datetime(2026, 11, 30, microsecond=micros)) as frozen:
            kit = shop.open(start=None)
            kit.on_move(frozen.move_to)
            frozen.tick(timedelta(days=5))
            kit.send_local("Note", 1, deliver_at=datetime.now(UTC) + timedelta(days=1))
            kit.advance(days=1)
        late += [] if shop.bodies else [micros]

    assert late == []


def test_a_given_start_stands_still_whatever_the_host_says() -> None:
    kit = Shop().open()

    kit.send_local("Note", 1, deliver_at=START + timedelta(days=1))

    assert kit.now == START


def test_the_clock_moves_only_forward() -> None:
    kit = Shop().open()

    with pytest.raises(ConfigurationError, match=r"only forward.* got a move by -1 day, 0:00:00"):
        kit.advance(days=-1)
    with pytest.raises(InvalidMessage, match="no time zone"):
        kit.advance_to(datetime(2031, 1, 1))
    with pytest.raises(InvalidMessage, match="a duration is a timedelta, got 5"):
        kit.advance(5)  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize("span", [timedelta(days=366 * 8000), timedelta.max])
def test_the_clock_does_not_leave_the_calendar(span: timedelta) -> None:
    kit = Shop().open()

    with pytest.raises(ConfigurationError, match="until the year 9999"):
        kit.advance(span)

    assert kit.now == START
    kit.advance_to(last := datetime.max.replace(tzinfo=UTC))
    assert kit.now == last

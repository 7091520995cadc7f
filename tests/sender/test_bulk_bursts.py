"""A bulk on a session that sends without waiting: messages on their way are reported."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from tests.sender.test_bulk import LATER, QUEUE, Bulk, orders
from timeoutmgr import BulkInterrupted, SendOptions, ToSend
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import (
    DeliveryUnknown,
    InvalidMessage,
    TransportUnavailable,
    Unroutable,
)
from timeoutmgr.sender.bulk import BURST, BURST_BYTES, WINDOW


@pytest.fixture
def bulk() -> Iterator[Bulk]:
    made = Bulk(starts=True)
    yield made
    made.endpoint.close()


def numbered(*numbers: int, destination: str = "billing") -> Iterator[ToSend]:
    """Yield messages with ids of their own."""
    for number in numbers:
        yield ToSend(destination, "Bill", 1, SendOptions(delay=60.0, message_id=f"m{number}"))


def ids(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


def unsent(error: BulkInterrupted) -> list[str | None]:
    return [one.options.message_id for one in error.unsent]


def test_a_burst_is_sent_while_the_next_is_drawn(bulk: Bulk) -> None:
    sent_when_drawn: list[int] = []

    def draw() -> Iterator[ToSend]:
        for order in orders(2 * BURST + 1):
            sent_when_drawn.append(len(bulk.transport.ids(QUEUE)))
            yield order

    bulk.send(draw())

    assert sent_when_drawn == [0] * BURST + [BURST] * BURST + [2 * BURST]
    assert [len(sent) for sent in bulk.reported] == [2 * BURST + 1]


def test_a_burst_of_large_bodies_is_smaller(bulk: Bulk) -> None:
    bulk.send(orders(4, body=bytes(BURST_BYTES // 2)))

    assert [step for step in bulk.transport.journal if "started" in step] == ["started 2"] * 2


def test_the_answers_are_asked_for_once_a_window(bulk: Bulk) -> None:
    bulk.send(orders(WINDOW + 1))

    steps = [step.split()[0] for step in bulk.transport.journal if step[0] in "sa"]
    turns = [step for step, before in zip(steps[1:], steps, strict=False) if step != before]
    assert turns.count("asked") == 2
    assert bulk.transport.ids(QUEUE) == [
        one.message_id for reported in bulk.reported for one in reported
    ]


def test_a_lost_broker_reports_the_sent_messages_and_returns_the_rest(bulk: Bulk) -> None:
    def draw() -> Iterator[ToSend]:
        yield from numbered(*range(BURST))
        bulk.transport.fail("start_sending", TransportUnavailable("away"))
        yield from numbered(*range(BURST, 3 * BURST))

    messages = draw()

    error = bulk.interrupted(messages)

    assert isinstance(error.__cause__, TransportUnavailable)
    assert error.sent == len(bulk.reported[0]) == BURST
    assert unsent(error) == ids(*range(BURST, 2 * BURST))
    assert bulk.send(chain(error.unsent, messages)) == 2 * BURST
    assert bulk.transport.ids(QUEUE) == ids(*range(3 * BURST))


def test_an_error_about_a_missing_destination_reports_the_messages_sent_before(bulk: Bulk) -> None:
    wrong = numbered(BURST + 1, destination="nowhere")

    error = bulk.interrupted(chain(numbered(*range(BURST + 1)), wrong, numbered(BURST + 2)))

    assert isinstance(error.__cause__, Unroutable)
    assert error.sent == len(bulk.reported[0]) == BURST
    assert unsent(error) == ids(BURST, BURST + 1, BURST + 2)


def test_a_window_with_an_unsent_end_counts_the_answers_to_its_beginning(bulk: Bulk) -> None:
    doubt = SendResult.UNKNOWN
    bulk.transport.script(QUEUE, *[SendResult.CONFIRMED] * BURST, doubt, SendResult.CONFIRMED)

    error = bulk.interrupted(numbered(*range(BURST + 2)))

    assert isinstance(error.__cause__, DeliveryUnknown)
    assert (error.sent, unsent(error)) == (BURST + 1, ids(BURST))


def test_a_wrong_message_behind_a_refused_message_is_reported_too(bulk: Bulk) -> None:
    bulk.transport.script(QUEUE, SendResult.CONFIRMED, SendResult.UNKNOWN)
    wrong = ToSend("billing", "", 1, LATER)

    error = bulk.interrupted(chain(numbered(0, 1), [wrong]))

    assert isinstance(error.__cause__, InvalidMessage)
    assert (error.sent, unsent(error)) == (1, ["m1", None])
    assert error.unsent[-1] is wrong


def test_a_wrong_message_is_the_cause_where_the_broker_is_away_too(bulk: Bulk) -> None:
    bulk.transport.fail("start_sending", TransportUnavailable("away"))
    wrong = ToSend("billing", "", 1, LATER)

    error = bulk.interrupted(chain(numbered(0), [wrong]))

    assert isinstance(error.__cause__, InvalidMessage)
    assert (error.sent, unsent(error)) == (0, ["m0", None])


def test_an_error_of_the_iterable_is_the_cause_if_messages_remain_unsent(bulk: Bulk) -> None:
    bulk.transport.script(QUEUE, SendResult.UNKNOWN)

    def broken() -> Iterator[ToSend]:
        yield from numbered(0, 1)
        raise OSError("the file ends here")

    error = bulk.interrupted(broken())

    assert isinstance(error.__cause__, OSError)
    assert (error.sent, unsent(error)) == (1, ["m0"])


def test_an_error_in_on_sent_does_not_hide_refused_messages(bulk: Bulk) -> None:
    bulk.transport.script(QUEUE, SendResult.UNKNOWN)

    def full(_sent: object) -> None:
        raise OSError("no space is left")

    with pytest.raises(BulkInterrupted) as caught:
        bulk.endpoint.send_many(numbered(0, 1), on_sent=full)

    assert isinstance(caught.value.__cause__, OSError)
    assert unsent(caught.value) == ["m0"]


def test_an_item_that_makes_no_message_comes_back_with_any_defect(bulk: Bulk) -> None:
    odd = ToSend("billing", "Bill", 1, options=None)  # type: ignore[arg-type]  # as a caller may

    error = bulk.interrupted(chain(numbered(0), [odd]))

    assert (error.sent, error.unsent) == (1, (odd,))


def test_drawn_messages_may_be_sent_on_the_way(bulk: Bulk) -> None:
    def draw() -> Iterator[ToSend]:
        for order in orders(BURST + 1):
            bulk.endpoint.send("billing", "Drawn", 1)
            yield order

    assert bulk.send(draw()) == BURST + 1
    assert len(bulk.transport.ids("billing")) == BURST + 1


def test_an_interrupt_while_drawing_closes_the_session(bulk: Bulk) -> None:
    def interrupted() -> Iterator[ToSend]:
        yield from orders(BURST)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bulk.send(interrupted())

    assert (bulk.transport.opened_sessions, bulk.transport.open_sessions) == (1, 0)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pytest

from tests.support.ports import FakeTransport
from timeoutmgr import BulkInterrupted, Endpoint, EndpointConfiguration, SendOptions, Sent, ToSend
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import (
    ConfigurationError,
    DeliveryUnknown,
    InvalidMessage,
    TransportUnavailable,
    Unroutable,
)
from timeoutmgr.persistence.memory import MemoryPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.sender.bulk import WINDOW, WINDOW_BYTES

QUEUE = "sales.Timeouts"
LATER = SendOptions(delay=3600.0)


class Bulk:
    """An endpoint on a simulated transport, and the reports of its bulks."""

    def __init__(self, *, managed: bool = True, starts: bool = False) -> None:
        queues = ("billing", QUEUE, "sales.TimeoutsDispatcher")
        self.transport = FakeTransport(*queues, starts=starts)
        config = EndpointConfiguration("sales")
        config.use_transport(self.transport, accept_loss=True)
        if managed:
            config.use_persistence(MemoryPersistence(accept_loss=True))
            config.enable_feature(TimeoutManager())
        else:
            config.use_external_timeout_manager(QUEUE)
        self.endpoint = Endpoint(config)
        self.reported: list[Sequence[Sent]] = []

    def send(self, messages: Iterator[ToSend]) -> int:
        return self.endpoint.send_many(messages, on_sent=self.reported.append)

    def store(self, messages: Iterator[ToSend]) -> int:
        return self.endpoint.store_many(messages, on_sent=self.reported.append)

    def interrupted(self, messages: Iterator[ToSend]) -> BulkInterrupted:
        with pytest.raises(BulkInterrupted) as caught:
            self.send(messages)
        return caught.value


def orders(count: int, options: SendOptions = LATER, body: object = 1) -> Iterator[ToSend]:
    return (ToSend("billing", "Bill", body, options) for _ in range(count))


@pytest.fixture
def bulk() -> Iterator[Bulk]:
    made = Bulk()
    yield made
    made.endpoint.close()


def test_all_are_sent_to_the_timeout_manager_and_counted(bulk: Bulk) -> None:
    assert bulk.send(orders(3)) == 3

    sent = [one.message_id for one in bulk.reported[0]]
    assert bulk.transport.ids(QUEUE) == sent
    assert all(one.id is not None and one.due is not None for one in bulk.reported[0])


def test_a_message_without_a_delay_goes_straight_to_its_queue(bulk: Bulk) -> None:
    bulk.send(orders(2, SendOptions()))

    assert len(bulk.transport.ids("billing")) == 2


def test_none_at_all_is_fine(bulk: Bulk) -> None:
    assert (bulk.send(orders(0)), bulk.reported) == (0, [])


def test_a_bulk_is_drawn_and_reported_window_by_window(bulk: Bulk) -> None:
    drawn_when_reported: list[int] = []
    drawn = 0

    def draw() -> Iterator[ToSend]:
        nonlocal drawn
        for order in orders(2 * WINDOW + 1):
            drawn += 1
            yield order

    count = bulk.endpoint.send_many(draw(), on_sent=lambda _sent: drawn_when_reported.append(drawn))

    assert count == 2 * WINDOW + 1
    assert drawn_when_reported == [WINDOW, 2 * WINDOW, 2 * WINDOW + 1]


def test_a_window_of_large_bodies_is_smaller(bulk: Bulk) -> None:
    bulk.send(orders(3, body=bytes(WINDOW_BYTES // 2)))

    assert [len(sent) for sent in bulk.reported] == [2, 1]


def test_an_interrupted_bulk_goes_on_where_it_stopped_under_the_same_ids(bulk: Bulk) -> None:
    messages = orders(WINDOW + 2)
    bulk.transport.fail("send", TransportUnavailable("away"))

    error = bulk.interrupted(messages)

    assert (error.sent, len(error.unsent)) == (0, WINDOW)
    assert isinstance(error.__cause__, TransportUnavailable)
    assert bulk.send(chain(error.unsent, messages)) == WINDOW + 2
    assert len(set(bulk.transport.ids(QUEUE))) == WINDOW + 2


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (SendResult.UNKNOWN, DeliveryUnknown),
        (SendResult.REFUSED, TransportUnavailable),
        (SendResult.UNROUTABLE, Unroutable),
    ],
)
def test_a_refused_message_is_reported_apart_from_its_window(
    bulk: Bulk, answer: SendResult, cause: type[Exception]
) -> None:
    bulk.transport.script(QUEUE, SendResult.CONFIRMED, answer, SendResult.CONFIRMED)

    error = bulk.interrupted(orders(3))

    assert isinstance(error.__cause__, cause)
    assert error.sent == 2
    [unsure] = error.unsent
    confirmed = {sent.message_id for sent in bulk.reported[0]}
    assert len(confirmed) == 2
    assert unsure.options.message_id not in confirmed
    assert unsure.options.delay == LATER.delay


def test_messages_before_a_wrong_message_are_sent(bulk: Bulk) -> None:
    wrong = ToSend("billing", "", 1, LATER)
    rest = orders(2)

    error = bulk.interrupted(chain(orders(3), [wrong], rest))

    assert (error.sent, error.unsent) == (3, (wrong,))
    assert isinstance(error.__cause__, InvalidMessage)
    assert len(bulk.transport.ids(QUEUE)) == 3
    assert len(list(rest)) == 2


def test_messages_before_an_error_of_the_iterable_are_sent(bulk: Bulk) -> None:
    def broken() -> Iterator[ToSend]:
        yield from orders(2)
        raise OSError("the file ends here")

    with pytest.raises(OSError, match="ends here"):
        bulk.send(broken())

    assert len(bulk.transport.ids(QUEUE)) == len(bulk.reported[0]) == 2


def test_an_item_that_is_not_a_message_is_refused_at_the_door(bulk: Bulk) -> None:
    messages: list[ToSend] = [("billing", "Bill", 1)]  # type: ignore[list-item]  # as a caller may

    with pytest.raises(BulkInterrupted, match="ToSend"):
        bulk.endpoint.send_many(messages)


def test_a_missing_destination_of_a_delayed_message_is_found_before_anything_is_sent(
    bulk: Bulk,
) -> None:
    error = bulk.interrupted(chain(orders(1), [ToSend("nowhere", "Bill", 1, LATER)]))

    assert isinstance(error.__cause__, Unroutable)
    assert (error.sent, len(error.unsent), bulk.transport.ids(QUEUE)) == (0, 2, [])


def test_storing_passes_the_queue_by_under_the_same_ids(bulk: Bulk) -> None:
    options = SendOptions(delay=3600.0, message_id="order-7")
    bulk.store(iter([ToSend("billing", "Bill", 1, options)]))
    [[stored]] = bulk.reported

    assert stored.id is not None
    found = bulk.endpoint.timeouts.show(stored.id)
    assert found is not None
    assert found[1] is not None
    assert (found[1].destination, found[1].message.id) == ("billing", "order-7")
    assert bulk.endpoint.send("billing", "Bill", 1, options).id == stored.id


def test_storing_wakes_nobody_for_what_a_poll_finds_in_time(bulk: Bulk) -> None:
    assert bulk.store(orders(1, SendOptions(delay=121.0))) == 1

    assert bulk.transport.ids(QUEUE) == []


def test_storing_wakes_the_manager_only_for_something_earlier(bulk: Bulk) -> None:
    dues = chain(
        orders(WINDOW, SendOptions(delay=100.0)),
        orders(WINDOW, SendOptions(delay=110.0)),
        orders(WINDOW, SendOptions(delay=60.0)),
    )

    assert bulk.store(dues) == 3 * WINDOW

    assert len(bulk.transport.ids(QUEUE)) == 2


def test_a_wake_that_is_lost_loses_nothing(bulk: Bulk) -> None:
    bulk.transport.fail("send", TransportUnavailable("away"))

    assert bulk.store(orders(1)) == 1

    assert bulk.endpoint.timeouts.count() == 1


def test_only_delayed_messages_can_be_stored(bulk: Bulk) -> None:
    with pytest.raises(BulkInterrupted, match="not delayed") as caught:
        bulk.store(orders(1, SendOptions()))

    assert isinstance(caught.value.__cause__, InvalidMessage)


def test_without_a_timeout_manager_of_its_own_nothing_can_be_stored() -> None:
    bulk = Bulk(managed=False)

    with pytest.raises(ConfigurationError, match="use send_many"):
        bulk.store(orders(1))

    assert bulk.send(orders(1)) == 1

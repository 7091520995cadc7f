"""A confirm counts for the message of its tag, or for all up to the tag, and for no other."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from amqp import spec
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed

from tests.transport.confirming import Broker, Said, ack, nack, publishing, publishings, returned
from timeoutmgr.contracts import SendResult
from timeoutmgr.transport.amqp.frames import publish_method

CONFIRMED, REFUSED = SendResult.CONFIRMED, SendResult.REFUSED
UNROUTABLE, UNKNOWN = SendResult.UNROUTABLE, SendResult.UNKNOWN


def sent(count: int, *said: Said) -> list[SendResult]:
    return Broker(*said).window().send(publishings(*(f"m{n}" for n in range(count))))


def test_a_confirm_of_all_up_to_a_tag_ends_at_it() -> None:
    results = sent(3, ack(2, multiple=True), nack(3))

    assert results == [CONFIRMED, CONFIRMED, REFUSED]


def test_a_refusal_of_all_up_to_a_tag_spares_earlier_confirms() -> None:
    results = sent(3, ack(2), nack(3, multiple=True))

    assert results == [REFUSED, CONFIRMED, REFUSED]


def test_a_return_belongs_to_the_queue_that_it_names() -> None:
    broker = Broker(returned("there", "m"), ack(2, multiple=True))

    results = broker.window().send([publishing("m", "here"), publishing("m", "there")])

    assert results == [CONFIRMED, UNROUTABLE]


def test_a_return_of_a_message_sent_twice_counts_for_the_unconfirmed_send() -> None:
    broker = Broker()
    window = broker.window()
    first = window.start(publishings("m"))
    broker.said.append(ack(1))
    window.finish(first)
    second = window.start(publishings("m"))
    broker.said += [returned("q", "m"), ack(2)]

    assert (window.finish(first), window.finish(second)) == ([CONFIRMED], [UNROUTABLE])


def test_a_return_of_a_message_twice_under_way_counts_for_the_send_confirmed_first() -> None:
    results = [
        Broker(returned("q", "m"), *confirms).window().send(publishings("m", "m"))
        for confirms in ([ack(1), ack(2)], [ack(2), ack(1)])
    ]

    assert results == [[UNROUTABLE, CONFIRMED], [CONFIRMED, UNROUTABLE]]


def test_a_return_does_not_belong_to_a_refused_message() -> None:
    broker = Broker(returned("q", "m"), nack(1), ack(2))

    assert broker.window().send(publishings("m", "m")) == [REFUSED, UNROUTABLE]


def test_a_return_of_no_message_under_way_does_not_count_for_a_later_message() -> None:
    broker = Broker(returned("q", "late"), ack(1))
    window = broker.window()
    window.send(publishings("m"))
    broker.said.append(ack(2))

    assert window.send(publishings("late")) == [CONFIRMED]


def test_a_return_belongs_to_the_message_of_its_exchange() -> None:
    events, audit = (
        replace(one, method=publish_method("q", exchange))
        for one, exchange in zip(publishings("m", "m"), ("events", "audit"), strict=True)
    )
    broker = Broker(returned("q", "m", "audit"), ack(2, multiple=True))

    assert broker.window().send([events, audit]) == [CONFIRMED, UNROUTABLE]


def test_a_returned_message_is_unroutable_also_without_its_confirm() -> None:
    assert sent(2, returned("q", "m1"), ConnectionResetError()) == [UNKNOWN, UNROUTABLE]


def test_each_start_has_its_own_answers_in_any_order_of_the_questions() -> None:
    broker = Broker(ack(3), ack(2), nack(1))
    window = broker.window()
    one, other = window.start(publishings("a", "b")), window.start(publishings("c"))

    assert (window.finish(other), window.finish(one)) == ([CONFIRMED], [REFUSED, CONFIRMED])


def test_a_finish_waits_for_the_answers_of_its_own_start_only() -> None:
    broker = Broker(ack(1))
    window = broker.window()
    one, other = window.start(publishings("a")), window.start(publishings("b"))

    results, spent = window.finish(one), window.spent

    assert (results, spent) == ([CONFIRMED], False)
    assert window.finish(other) == [UNKNOWN]


def test_a_start_without_a_finish_does_not_hinder_a_later_send() -> None:
    broker = Broker(ack(2, multiple=True))
    window = broker.window()
    window.start(publishings("a"))

    assert window.send(publishings("b")) == [CONFIRMED]
    assert not window.spent


def test_waiting_answers_are_read_before_the_next_write() -> None:
    broker = Broker(*(returned("q", one) for one in "abc"))
    window = broker.window()

    window.start(publishings("a", "b"))
    window.start(publishings("c"))

    assert broker.read_when_published == [0, 0, 3]


class Slow(Broker):
    """A broker that answers only while the client waits."""

    def idle(self) -> None:
        self.said.append(ack(len(self.published), multiple=True))


def test_no_more_messages_than_the_window_size_are_under_way() -> None:
    broker = Slow()
    window = broker.window(size=3)

    started = [window.start(publishings("1", "2")), window.start(publishings(*"345678"))]

    assert broker.published == [str(tag).encode() for tag in range(1, 9)]
    assert broker.read_when_published == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [window.finish(one) for one in started] == [[CONFIRMED] * 2, [CONFIRMED] * 6]


class Sluggish(Broker):
    """A broker that confirms a message every four seconds; a window waits for ten."""

    def idle(self) -> None:
        self.clock.advance(4)
        self._confirmed += 1
        self.said.append(ack(self._confirmed))

    _confirmed = 0


@pytest.mark.parametrize(
    ("each", "results"),
    [(4, [*[CONFIRMED] * 3, *[UNKNOWN] * 3]), (3, [CONFIRMED] * 6), (2, [CONFIRMED] * 6)],
)
def test_the_time_out_of_a_window_starts_anew_after_each_confirmed_part(
    each: int, results: list[SendResult]
) -> None:
    assert Sluggish().window(size=6, each=each).send(publishings(*"abcdef")) == results


def test_a_message_not_written_in_an_alarm_is_refused_and_uses_no_tag() -> None:
    broker = Broker()
    window = broker.window()
    before = window.start(publishings("a"))
    broker.blocked = True
    during = window.start(publishings("b", "c"))
    broker.blocked = False
    after = window.start(publishings("d"))
    broker.said += [ack(1), ack(2)]

    results = [window.finish(one) for one in (before, during, after)]

    assert results == [[CONFIRMED], [REFUSED] * 2, [CONFIRMED]]
    assert broker.published == [b"a", b"d"]


@pytest.mark.parametrize("blocked", [False, True])
def test_a_message_started_after_a_lost_answer_is_not_written(blocked: bool) -> None:
    broker = Broker(ack(1))
    window = broker.window()
    one, other = window.start(publishings("a", "b")), window.start(publishings("c"))
    broker.blocked = blocked

    results = [window.finish(one), window.finish(other)]
    broker.blocked = False
    results += [window.send(publishings("d"))]

    assert results == [[CONFIRMED, UNKNOWN], [UNKNOWN], [UNKNOWN]]
    assert broker.published == [b"a", b"b", b"c"]
    assert (window.spent, broker.broken is None) == (True, blocked)


def test_an_answer_after_a_lost_answer_is_ignored() -> None:
    broker = Broker(ack(1))
    window = broker.window()
    one, other = window.start(publishings("a", "b")), window.start(publishings("c"))
    broker.blocked = True  # so that the connection is kept
    window.finish(one)

    broker.said.append(ack(3))
    broker.pump(0)

    assert window.finish(other) == [UNKNOWN]


def test_an_answer_before_the_end_of_the_connection_counts() -> None:
    broker = Broker(ack(1), nack(3), ConnectionResetError())
    window = broker.window()
    one, other = window.start(publishings("a", "b")), window.start(publishings("c"))

    assert window.finish(one) == [CONFIRMED, UNKNOWN]
    assert window.finish(other) == [REFUSED]


def test_messages_beyond_a_window_are_unknown_if_its_first_messages_are_not_confirmed() -> None:
    broker = Broker(ack(1), ack(2), ack(3), ConnectionResetError())

    results = broker.window(size=2).send(publishings(*"abcdef"))

    assert results == [CONFIRMED] * 3 + [UNKNOWN] * 3
    assert broker.published == [b"a", b"b", b"c", b"d"]


# --- an exchange that is missing: the broker closes the channel, and names no message -----------

NO_EXCHANGE = NotFound("NOT_FOUND - no exchange 'level-02' in vhost '/'", spec.Basic.Publish)


def test_a_message_alone_to_a_missing_exchange_is_refused() -> None:
    assert sent(1, NO_EXCHANGE) == [REFUSED]


def test_of_several_messages_any_may_have_been_accepted_before_an_exchange_was_missing() -> None:
    assert sent(2, NO_EXCHANGE) == [UNKNOWN, UNKNOWN]
    assert sent(2, ack(1), NO_EXCHANGE) == [CONFIRMED, REFUSED]


def test_a_message_with_a_queue_besides_a_missing_exchange_is_unknown() -> None:
    [message] = publishings("m")

    results = Broker(NO_EXCHANGE).window().send([replace(message, to_queue=b"past it")])

    assert results == [UNKNOWN]


TOO_LARGE = PreconditionFailed("message size 2 is larger than max size 1", spec.Basic.Publish)
NOT_FOR_US = AccessRefused("access to exchange 'amq.default' refused", spec.Basic.Publish)


@pytest.mark.parametrize("error", [TOO_LARGE, NOT_FOR_US], ids=["too large", "not for us"])
def test_a_message_alone_that_the_broker_closes_the_channel_over_is_refused(
    error: Exception,
) -> None:
    assert sent(1, error) == [REFUSED]
    assert sent(2, ack(1), error) == [CONFIRMED, REFUSED]


def test_a_large_message_with_a_queue_besides_its_exchange_is_refused() -> None:
    [message] = publishings("m")

    results = Broker(TOO_LARGE).window().send([replace(message, to_queue=b"past it")])

    assert results == [REFUSED]


def test_the_first_messages_to_a_default_exchange_that_is_not_for_us_are_all_refused() -> None:
    to_queue = [replace(one, method=publish_method("q")) for one in publishings(*"abc")]
    elsewhere = [replace(one, method=publish_method("q", "e")) for one in publishings("d")]

    assert Broker(NOT_FOR_US).window().send(to_queue) == [REFUSED] * 3
    assert Broker(TOO_LARGE).window().send(to_queue) == [UNKNOWN] * 3
    assert Broker(NOT_FOR_US).window().send([*elsewhere, *to_queue]) == [UNKNOWN] * 4
    later = Broker(ack(1), NOT_FOR_US).window().send(to_queue)
    assert later == [CONFIRMED, UNKNOWN, UNKNOWN]


def test_a_publish_is_unknown_if_another_request_was_not_found() -> None:
    assert sent(1, NotFound("no queue", spec.Queue.Declare)) == [UNKNOWN]


def test_the_log_has_the_missing_exchange_and_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "timeoutmgr"):
        sent(1, NO_EXCHANGE)

    [line] = caplog.messages
    assert "no exchange 'level-02' in vhost '/'" in line
    assert "timeoutmgr install" in line

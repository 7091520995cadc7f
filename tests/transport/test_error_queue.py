"""The error queue gets a failed message whole, else a minimal copy, else a bare copy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from tests.support.unprintable import UNPRINTABLE, Unprintable
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.error_queue import ErrorQueue, FailedMessage, SendAnswer

CONFIRMED, REFUSED = SendResult.CONFIRMED, SendResult.REFUSED
INVALID = InvalidMessage("cannot be written")


def failed(message_id: str) -> FailedMessage:
    """Return a message that failed on its way to ``sales``."""
    message = Message(id=message_id, headers={"kind": "order"}, body=b"body")
    return FailedMessage(message, ValueError("no such order"), "sales")


def scripted(
    sent: list[Outgoing], *answers: Sequence[SendAnswer]
) -> Callable[[Sequence[Outgoing]], list[SendAnswer]]:
    """Return a function that appends messages to *sent*, and returns the next of *answers*."""
    left = iter(answers)

    def send(outgoing: Sequence[Outgoing]) -> list[SendAnswer]:
        sent.extend(outgoing)
        return list(next(left))

    return send


def moved(
    messages: Sequence[FailedMessage], *answers: Sequence[SendAnswer]
) -> tuple[list[SendAnswer], list[Message]]:
    """Return the answers, and the copies that were sent to the queue ``error``."""
    sent: list[Outgoing] = []
    error_queue = ErrorQueue("error", "shop", 0)
    found = error_queue.move(messages, scripted(sent, *answers))
    assert {one.destination for one in sent} == {"error"}
    return found, [one.message for one in sent]


def test_whole_copies_go_together() -> None:
    answers, copies = moved([failed("a"), failed("b")], [CONFIRMED, CONFIRMED])

    assert answers == [CONFIRMED, CONFIRMED]
    assert [copy.id for copy in copies] == ["a", "b"]
    for copy in copies:
        assert copy.headers["kind"] == "order"
        assert copy.headers[headers.FAILED_QUEUE] == "sales"
        assert copy.headers[headers.PROCESSING_ENDPOINT] == "shop"
        assert headers.EXCEPTION_STACK in copy.headers


def test_a_refused_copy_is_followed_by_a_minimal_copy() -> None:
    answers, copies = moved([failed("a"), failed("b")], [CONFIRMED, REFUSED], [CONFIRMED])

    assert answers == [CONFIRMED, CONFIRMED]
    assert [copy.id for copy in copies] == ["a", "b", "b"]
    assert headers.EXCEPTION_STACK not in copies[-1].headers
    assert copies[-1].headers[headers.EXCEPTION_MESSAGE] == "no such order"


def test_a_message_that_cannot_go_out_as_it_came_gets_a_bare_copy() -> None:
    answers, copies = moved([failed("a")], [INVALID], [INVALID], [CONFIRMED])

    assert answers == [CONFIRMED]
    assert copies[-1].headers[headers.ORIGINAL_ID] == '"a"'
    assert "kind" not in copies[-1].headers
    assert copies[-1].body == b"body"


def test_a_message_whose_error_has_no_text_gets_each_kind_of_copy() -> None:
    one = FailedMessage(failed("a").message, Unprintable(), "sales")

    answers, copies = moved([one], [INVALID], [INVALID], [CONFIRMED])

    assert answers == [CONFIRMED]
    reasons = [copy.headers[headers.EXCEPTION_MESSAGE] for copy in copies]
    assert reasons == [UNPRINTABLE[Unprintable]] * 3


@pytest.mark.parametrize("answer", [SendResult.UNKNOWN, SendResult.UNROUTABLE])
def test_no_smaller_copy_follows_an_answer_that_is_no_refusal(answer: SendResult) -> None:
    answers, copies = moved([failed("a")], [answer])

    assert (answers, len(copies)) == ([answer], 1)


def test_a_refused_minimal_copy_is_the_last() -> None:
    answers, copies = moved([failed("a")], [REFUSED], [REFUSED])

    assert (answers, len(copies)) == ([REFUSED], 2)


def test_a_smaller_copy_is_logged_with_the_refusal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        moved([failed("a")], [INVALID], [CONFIRMED])

    assert "smaller copy of message 'a': cannot be written" in caplog.text

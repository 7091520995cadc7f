"""Each message of a bulk is reported as taken or comes back, after any error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.sender.test_bulk import QUEUE, Bulk
from timeoutmgr import BulkInterrupted, SendOptions, ToSend
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.sender.bulk import BURST, WINDOW

ANSWERS = (*[SendResult.CONFIRMED] * 50, *(each for each in SendResult))
NUMBERED = {
    f"m{number}": ToSend("billing", "Bill", 1, SendOptions(delay=9.0, message_id=f"m{number}"))
    for number in range(WINDOW + 2 * BURST)
}


def noted(messages: Iterable[ToSend], drawn: list[str | None]) -> Iterator[ToSend]:
    for message in messages:
        drawn.append(message.options.message_id)
        yield message


@settings(max_examples=60)
@given(
    starts=st.booleans(),
    count=st.integers(0, len(NUMBERED)),
    answers=st.lists(st.sampled_from(ANSWERS), max_size=300),
    away=st.sets(st.integers(0, 20), max_size=5),
)
def test_each_drawn_message_is_reported_or_comes_back_in_order(
    starts: bool, count: int, answers: list[SendResult], away: set[int]
) -> None:
    bulk = Bulk(starts=starts)
    bulk.transport.script(QUEUE, *answers)
    calls = 0

    def sometimes_away(method: str) -> None:
        nonlocal calls
        calls += 1
        if calls in away:
            raise TransportUnavailable(f"away in {method}")

    bulk.transport.called = sometimes_away  # type: ignore[method-assign]  # each call may fail
    messages: Iterator[ToSend] = iter(list(NUMBERED.values())[:count])
    is_over = False
    with closing(bulk.endpoint):
        while not is_over:
            drawn: list[str | None] = []
            bulk.reported.clear()
            error: BulkInterrupted | None = None
            try:
                sent = bulk.send(noted(messages, drawn))
                is_over = True
            except BulkInterrupted as interrupted:
                error, sent = interrupted, interrupted.sent
                messages = chain(error.unsent, messages)

            reported = [one.message_id for window in bulk.reported for one in window]
            unsent = [one.options.message_id for one in error.unsent] if error else []
            assert sent == len(reported)
            assert unsent == [one for one in drawn if one not in set(reported)]
            assert reported == [one for one in drawn if one in set(reported)]

    assert set(bulk.transport.ids(QUEUE)) == set(list(NUMBERED)[:count])

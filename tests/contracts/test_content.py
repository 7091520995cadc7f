"""Headers added on the way leave the content of a message as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.makers import a_message
from timeoutmgr.contracts import Timeout
from timeoutmgr.contracts.timeouts import ADDED_ON_THE_WAY, SIZE, content_of, is_same
from timeoutmgr.deadletter import delivery_headers as marks
from timeoutmgr.message.instants import LATEST
from timeoutmgr.message.message import with_headers

TEXT = st.text(max_size=8)


def a_timeout(destination: str = "q", body: bytes = b"", **given: str) -> Timeout:
    message = with_headers(a_message("m", body), given)
    return Timeout(id="t", due=7, destination=destination, message=message)


@given(st.dictionaries(TEXT, TEXT, max_size=4), st.binary(max_size=9), TEXT)
def test_the_order_of_headers_is_no_content(
    headers: dict[str, str], body: bytes, destination: str
) -> None:
    one, other = (
        replace(
            a_timeout(destination, body),
            message=with_headers(a_message("m", body), dict(items)),
        )
        for items in (headers.items(), reversed(headers.items()))
    )

    assert content_of(one) == content_of(other)
    assert len(content_of(one)) < SIZE == len(content_of(replace(one, due_given=True)))


@pytest.mark.parametrize(
    "other",
    [
        a_timeout("qa", b"b", n="v"),
        a_timeout("q", b"ab", n="v"),
        a_timeout("q", b"b", n="va"),
        a_timeout("q", b"b", na="v"),
        a_timeout("q", b"b", n="v", o=""),
        a_timeout("q", b"b"),
        a_timeout("q", b'"]b', n="v"),
        a_timeout("q", b"\0b", n="v"),
        a_timeout("q", b"", n="v\0b"),
        a_timeout("q", b"", n="v\0b\0"),
    ],
)
def test_parts_of_content_do_not_run_into_each_other(other: Timeout) -> None:
    assert not is_same(content_of(a_timeout("q", b"b", n="v")), content_of(other))


@given(st.integers(0, LATEST), st.integers(0, LATEST))
def test_a_due_time_tells_two_apart_only_if_both_gave_it(one: int, other: int) -> None:
    given, again = (replace(a_timeout(), due=due, due_given=True) for due in (one, other))
    reckoned = replace(a_timeout(), due=other)

    assert is_same(content_of(given), content_of(again)) is (one == other)
    assert is_same(content_of(given), content_of(reckoned))
    assert is_same(content_of(reckoned), content_of(given))


def test_markers_of_a_node_are_no_content() -> None:
    assert {marks.SOURCE_NODE, marks.SOURCE_GUID, marks.HOPS} <= ADDED_ON_THE_WAY

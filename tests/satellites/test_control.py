from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.contracts import Key
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message import headers
from timeoutmgr.message.instants import EARLIEST, LATEST
from timeoutmgr.message.message import Message
from timeoutmgr.satellites.control import (
    MOST_KEYS,
    ChunkOrder,
    SingleOrder,
    chunk_message,
    read_control,
)


def chunk(body: object, version: str = "1") -> Message:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(id="c1", headers={headers.CHUNK_VERSION: version}, body=content)


@given(
    st.text(),
    st.lists(st.builds(Key, st.integers(EARLIEST, LATEST), st.text()), max_size=20),
)
def test_a_chunk_survives_its_control_message(token: str, keys: list[Key]) -> None:
    assert read_control(chunk_message(token, keys, "c1")) == ChunkOrder(token, tuple(keys))


@pytest.mark.behaviour(17)
def test_a_control_message_has_the_header_of_a_control_message() -> None:
    message = chunk_message("t", [], "c1")

    assert message.headers["NServiceBus.ControlMessage"] == "True"
    assert message.headers["NServiceBus.MessageIntent"] == "Send"
    assert message.headers["NServiceBus.MessageId"] == message.id == "c1"


@pytest.mark.behaviour(17)
def test_a_single_id_of_nservicebus_is_read_from_its_header() -> None:
    message = Message(id="c1", headers={"Timeout.Id": "abc"})

    assert read_control(message) == SingleOrder("abc")


@pytest.mark.parametrize("given_headers", [{}, {"Timeout.Id": ""}, {"timeout.id": "abc"}])
def test_a_message_without_an_order_is_rejected(given_headers: dict[str, str]) -> None:
    with pytest.raises(MessageRejected, match="not a control message"):
        read_control(Message(id="c1", headers=given_headers))


@pytest.mark.parametrize("version", ["", "0", "2", "1.0", "x" * 5000])
def test_a_chunk_of_another_version_is_rejected_with_both_versions(version: str) -> None:
    with pytest.raises(MessageRejected, match=r"reads '1'") as rejected:
        read_control(chunk({"token": "t", "keys": []}, version))

    assert len(str(rejected.value)) < 300


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"{",
        b"[" * 200_000,
        [],
        None,
        {},
        {"token": "t"},
        {"keys": []},
        {"token": 5, "keys": []},
        {"token": "t", "keys": None},
        {"token": "t", "keys": 5},
        {"token": "t", "keys": [1]},
        {"token": "t", "keys": [[1]]},
        {"token": "t", "keys": [[1, "a", 2]]},
        {"token": "t", "keys": [["1", "a"]]},
        {"token": "t", "keys": [[1.5, "a"]]},
        {"token": "t", "keys": [[True, "a"]]},
        {"token": "t", "keys": [[LATEST + 1, "a"]]},
        {"token": "t", "keys": [[1, None]]},
    ],
)
def test_a_chunk_whose_body_is_no_chunk_is_rejected(body: Any) -> None:
    with pytest.raises(MessageRejected, match="cannot be read"):
        read_control(chunk(body))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
names = st.sampled_from([headers.CHUNK_VERSION, headers.TIMEOUT_ID]) | st.text()


@given(
    st.dictionaries(names, st.just("1") | st.text()),
    st.binary()
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries({"token": json_values, "keys": json_values}).map(
        lambda value: json.dumps(value).encode()
    ),
)
def test_every_arriving_message_is_an_order_or_rejected(
    given_headers: dict[str, str], body: bytes
) -> None:
    try:
        order = read_control(Message(id="c1", headers=given_headers, body=body))
    except MessageRejected:
        return
    assert isinstance(order, ChunkOrder | SingleOrder)


@pytest.mark.parametrize(
    "message",
    [
        Message(id="c", headers={headers.TIMEOUT_ID: "\ud800"}),
        chunk_message("\ud800", [Key(1, "a")], "c"),
        chunk_message("t", [Key(1, "\udfff")], "c"),
        chunk_message("t", [Key(n, "a") for n in range(MOST_KEYS + 1)], "c"),
    ],
    ids=["id", "token", "key", "too many keys"],
)
def test_an_order_that_no_poller_sends_is_rejected(message: Message) -> None:
    with pytest.raises(MessageRejected):
        read_control(message)


def test_an_order_of_the_largest_chunk_is_read() -> None:
    order = read_control(chunk_message("t", [Key(n, "a") for n in range(MOST_KEYS)], "c"))

    assert isinstance(order, ChunkOrder)
    assert len(order.keys) == MOST_KEYS

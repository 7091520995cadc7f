"""An entry of a Redis list may be nested to any depth; no such entry is lost."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest
import redis

from tests.transport.traffic import receive, send
from timeoutmgr.contracts import Receiver, TransportSession
from timeoutmgr.transport.kombu_transport import KombuTransport

DEPTHS: Final = [*range(900, 1000), 5_000]
"""A depth that cannot be read, and all depths that can be read and perhaps not written again."""

DEFECT: Final = "the envelope is no JSON table"


@pytest.fixture
def transport(redis_url: str) -> Iterator[KombuTransport]:
    with closing(KombuTransport(redis_url, accept_loss=True)) as transport:
        yield transport


def test_an_item_of_any_depth_is_received_and_may_be_released(
    redis_url: str, session: TransportSession, queue: str, receiver: Receiver
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for depth in DEPTHS:
            client.lpush(queue, item(depth))
            [received] = receive(receiver, 1)
            receiver.release([received])
            [again] = receive(receiver, 1)
            receiver.ack([again])
            assert (received.defect, received.message.body) == (DEFECT, item(depth).encode())
            assert (again.defect, again.message.body) == (DEFECT, item(depth).encode())
    send(session, queue, "behind")

    assert [one.message.id for one in receive(receiver, 1)] == ["behind"]


def test_a_little_nesting_is_read(redis_url: str, queue: str, receiver: Receiver) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.lpush(queue, item(50))

    [received] = receive(receiver, 1)

    assert received.message.body == b"body"
    assert received.defect == "the value of header 'a' is of type list"


def item(depth: int) -> str:
    body = base64.b64encode(b"body").decode()
    whole = json.dumps({"body": body, "headers": 0, "properties": {"body_encoding": "base64"}})
    return whole.replace('"headers": 0', f'"headers": {{"a": {"[" * depth}{"]" * depth}}}')

"""What the tests of brokers share."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import amqp
import pytest


@pytest.fixture
def raw_channel(rabbitmq_url: str) -> Iterator[amqp.Channel]:
    """A channel of py-amqp's own: what a stranger can do to our queues."""
    parts = urlsplit(rabbitmq_url)
    with amqp.Connection(
        f"{parts.hostname}:{parts.port or 5672}",
        userid=parts.username,
        password=parts.password,
        virtual_host=unquote(parts.path[1:]),
    ) as connection:
        yield connection.channel()

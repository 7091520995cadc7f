"""A stranger's payload in a NOTIFY does no harm; every user of the database may send a NOTIFY."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import text

from tests.support.waiting import eventually
from timeoutmgr.database.notifications import channel_of
from timeoutmgr.transport.sql import SqlTransport

LONGEST = 7_900


@pytest.fixture
def transport(postgres_url: str, prefix: str) -> Iterator[SqlTransport]:
    """A transport that listens."""
    with closing(SqlTransport(postgres_url, prefix=prefix)) as transport:
        transport.install()
        with closing(transport.session()) as session:
            session.create_queues(["q"])
        yield transport


@pytest.mark.parametrize("payload", ["[" * LONGEST, '{"a":' * (LONGEST // 5), "no JSON", "7"])
def test_a_strange_notify_is_logged_and_does_not_end_the_listening(
    transport: SqlTransport,
    prefix: str,
    payload: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    notice = text("SELECT pg_notify(:channel, :payload)")
    given = {"channel": channel_of(f"{prefix}queue_messages"), "payload": payload}
    with closing(transport.session()) as session, closing(session.receiver("q", prefetch=1)):

        def is_logged() -> bool:
            # Repeat the notice: a notice before LISTEN is not heard.
            with transport.database.begin() as connection:
                connection.execute(notice, given)
            return "NOTIFY" in caplog.text

        with caplog.at_level(logging.WARNING):
            eventually(is_logged, "the listener logs the notice")

    assert "ignores an unknown NOTIFY" in caplog.text
    assert "no NOTIFY from" not in caplog.text

"""PostgreSQL's plans of the queue's statements: made for a short queue, used on a long queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from sqlalchemy import text

from tests.persistence.explaining import USES, rows_read
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlTransport

ROWS: Final = 100_000
BATCH: Final = 100
FEW: Final = 4
_MOST: Final = 3_000
"""Rows that a statement may read: the head of the queue, or a batch several times over."""
_FILL: Final = """
INSERT INTO {table} (queue, message_id, headers, body, content_type, content_encoding, enqueued)
SELECT 'q', 'long ' || n, '{{}}', decode(repeat('61', 200), 'hex'), 'text/plain', 'utf-8', 0
FROM generate_series(1, :rows) AS n
"""
_LEASE_FOR_A_DEAD_OWNER: Final = """
UPDATE {table} SET lease_owner = 'dead', lease_until = 9000000000000000
WHERE sequence = (SELECT min(sequence) FROM {table})
"""


class Queue:
    """A queue in tables of its own, used on one connection."""

    def __init__(self, url: str, prefix: str) -> None:
        self.database = Database(url, DatabaseSettings(pool_size=1))
        self.transport = SqlTransport(self.database, prefix=prefix)
        self.table = f"{prefix}queue_messages"
        self.transport.install()
        self.session = self.transport.session()
        self.session.create_queues(["q"])
        self.receiver = self.session.receiver("q", prefetch=0)

    def sql(self, statement: str, **values: Any) -> None:
        with self.database.begin() as connection:
            connection.execute(text(statement.format(table=self.table)), values)

    def use(self, count: int) -> None:
        """Free, lease, renew, give back and acknowledge *count* messages, as receivers do."""
        leases = self.transport._leases
        assert leases.free_dead_owners("q")
        self.receiver.release(self.receiver.receive(count, 0))
        received = self.receiver.receive(count, 0)
        assert len(received) == count
        leases.renew(self.receiver.held())
        assert len(leases.leased(self.receiver.held())) == count
        self.receiver.ack(received[: count // 2])
        with self.session.transaction() as transaction:
            self.receiver.ack(received[count // 2 :], transaction=transaction)


@pytest.fixture
def queue(postgres_url: str, prefix: str) -> Iterator[Queue]:
    """A queue whose table nobody but the test analyses."""
    made = Queue(postgres_url, prefix)
    made.sql("ALTER TABLE {table} SET (autovacuum_enabled = off)")
    yield made
    made.transport.close()


@pytest.mark.parametrize("analysed", [True, False])
def test_plans_of_a_short_queue_read_little_of_a_long_queue(
    queue: Queue, messages: Callable[..., list[Outgoing]], analysed: bool
) -> None:
    queue.session.send(messages(FEW))
    if analysed:
        queue.sql("ANALYZE {table}")
    for _ in range(USES):
        queue.sql(_LEASE_FOR_A_DEAD_OWNER)
        queue.use(FEW)
        queue.session.send(messages(FEW))
    queue.sql(_FILL, rows=ROWS)
    queue.sql(_LEASE_FOR_A_DEAD_OWNER)

    with rows_read(queue.database.engine, queue.table) as read:
        queue.use(BATCH)

    assert len([statement for statement in read if queue.table in statement]) >= 8
    assert {statement: rows for statement, rows in read.items() if rows > _MOST} == {}


def test_a_search_for_expired_messages_reads_no_message_without_an_end(
    mysql_url: str, prefix: str, messages: Callable[..., list[Outgoing]]
) -> None:
    queue = Queue(mysql_url, prefix)
    queue.session.send(messages(BATCH))
    queue.session.send([replace(messages(1)[0], time_to_live=-1)])

    before = _entries_read(queue.database)
    assert queue.transport.remove_expired(BATCH, lambda *_given: None) == 1
    read = _entries_read(queue.database) - before

    assert read < BATCH
    queue.transport.close()


def _entries_read(database: Database) -> int:
    """Return how many entries of indexes the only connection of *database* has walked over."""
    with database.read() as connection:
        found = connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read_next'")).one()
    return int(found[1])


def test_an_acknowledgement_leaves_the_plans_of_earlier_statements_alone(
    queue: Queue, messages: Callable[..., list[Outgoing]]
) -> None:
    queue.session.send(messages(1))
    received = queue.receiver.receive(1, 0)
    settings = text("SELECT current_setting('enable_seqscan'), current_setting('enable_sort')")

    with queue.session.transaction() as transaction:
        of_a_handler = tuple(transaction.execute(settings).one())
        queue.receiver.ack(received, transaction=transaction)
    with queue.database.read() as connection:
        of_the_next_user = tuple(connection.execute(settings).one())

    assert of_a_handler == of_the_next_user == ("on", "on")


def test_a_lease_stays_on_the_page_of_its_message(queue: Queue) -> None:
    sent = [Outgoing("q", Message(id=str(number), body=bytes(512))) for number in range(BATCH)]
    queue.session.send(sent)
    pages = text(f"SELECT sequence, (ctid::text::point)[0] FROM {queue.table} ORDER BY 1")
    with queue.database.read() as connection:
        before = connection.execute(pages).all()

    queue.receiver.receive(BATCH, 0)

    with queue.database.read() as connection:
        assert connection.execute(pages).all() == before
    assert len({page for _sequence, page in before}) > 1

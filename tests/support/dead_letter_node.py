"""A node's dead-letter queues in one database file, and the service that stores dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tests.support.makers import a_timeout
from timeoutmgr.contracts import Clock, Timeout
from timeoutmgr.database import Database
from timeoutmgr.deadletter import DeadLetterStore, NodeQueue, StoredCopy, StoredCopyQueue
from timeoutmgr.deadletter import delivery_headers as marks
from timeoutmgr.deadletter.manager import QueueManager, Quotas
from timeoutmgr.deadletter.service import DeadLetterService, JournalingRules
from timeoutmgr.message.validation import Limits
from timeoutmgr.telemetry import Counters


class DeadLetterNode:
    """Node ``n1`` in a database of its own, which no simulated transaction spans."""

    def __init__(self, url: str, clock: Clock, quotas: Quotas | None = None) -> None:
        self.database: Final = Database(url)
        store = DeadLetterStore(self.database, clock=clock)
        store.install()
        store.add_node("n1", "g1")
        self.manager: Final = QueueManager(store=store, node="n1", quotas=quotas or Quotas())
        self.service: Final = DeadLetterService(
            manager=self.manager,
            endpoint="sales",
            rules=JournalingRules(),
            clock=clock,
            telemetry=Counters(),
            limits=Limits(),
            joins=False,
        )

    def dead(self, box: NodeQueue = NodeQueue.DEADLETTER) -> list[StoredCopy]:
        """Return the stored dead letters."""
        return StoredCopyQueue(self.manager, box).peek()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Rename the table of dead letters meanwhile, so that the store is unavailable."""
        with self.database.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE timeoutmgr_dead_letters RENAME TO away")
        yield
        with self.database.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE away RENAME TO timeoutmgr_dead_letters")

    def close(self) -> None:
        """Close the connections to the file."""
        self.database.dispose()


def asking(made: Timeout, **given: str) -> Timeout:
    """Return *made*, whose message asks for a dead letter; keywords are names in ``marks``."""
    named = {getattr(marks, name.upper()): value for name, value in given.items()}
    headers = {**made.message.headers, marks.JOURNAL: "1", **named}
    return replace(made, message=replace(made.message, headers=headers))


def an_asking(message_id: str, destination: str, **given: str) -> Timeout:
    """Return a timeout whose message asks for a dead letter."""
    return asking(a_timeout(message_id, destination=destination), **given)

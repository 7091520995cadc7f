"""Dead letters and nodes with just the fields that a test is about."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from tests.support.clock import START, FakeClock
from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass
from timeoutmgr.database import Database
from timeoutmgr.deadletter.manager import QueueManager, Quotas
from timeoutmgr.deadletter.queues import StoredCopyQueue
from timeoutmgr.deadletter.store import DeadLetterStore
from timeoutmgr.deadletter.stored_copy import NodeQueue, StoredCopy
from timeoutmgr.message.message import Message


def a_stored_copy(message_id: str = "m1", destination: str = "billing", **given: Any) -> StoredCopy:
    """Return a stored copy whose sender asks for dead letters; *body* goes to its message."""
    body = given.pop("body", b"{}")
    plain = StoredCopy(
        message=Message(id=message_id, headers={"name": message_id}, body=body),
        destination=destination,
        message_class=MessageClass.NACK_BAD_DST_Q,
        kept=START,
        source="sales",
        journal=JournalLevel.DEADLETTER,
    )
    return replace(plain, **given)


class Nodes:
    """One store and a clock; nodes by the last character of their name."""

    def __init__(self, store: DeadLetterStore, unique: str) -> None:
        self.clock = FakeClock()
        self.store = DeadLetterStore(store.database, prefix="dead_", clock=self.clock)
        self._unique = unique

    @property
    def database(self) -> Database:
        return self.store.database

    def manager(self, name: str = "a", **quotas: int | None) -> QueueManager:
        node = f"{self._unique}-{name}"
        self.store.add_node(node, str(uuid.uuid4()))
        return QueueManager(store=self.store, node=node, quotas=Quotas(**quotas))


def queues(manager: QueueManager) -> tuple[StoredCopyQueue, StoredCopyQueue, StoredCopyQueue]:
    """Return the nontransactional and the transactional dead-letter queue, and the journal."""
    dead, xact, journal = (StoredCopyQueue(manager, box) for box in NodeQueue)
    return dead, xact, journal


def ids(queue: StoredCopyQueue) -> list[str]:
    return [copy.message.id for copy in queue.peek(limit=1000)]

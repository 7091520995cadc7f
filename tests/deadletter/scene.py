"""Real endpoints of real nodes over one SQLite file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

from tests.deadletter.making import ids
from tests.support.waiting import eventually
from timeoutmgr import (
    DelayedDeliverySettings,
    Endpoint,
    EndpointConfiguration,
    RecoverabilitySettings,
)
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.database import Database
from timeoutmgr.deadletter import DeadLetterQueues, DeadLetterStore, StoredCopy, StoredCopyQueue
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.stored_copy import NodeQueue
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.endpoint.handlers import Handler
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.satellites import TimeoutManager

PATIENCE = 15


class Scene:
    """Endpoints that are closed in the end, and the contents of their nodes' queues."""

    def __init__(
        self, url: str, stack: ExitStack, mode: TransactionMode | None = None, error: str = "error"
    ) -> None:
        self.url = url
        self.mode = mode
        self.error = error
        self._stack = stack
        self.store = DeadLetterStore(Database.shared(url))
        self.transport = stack.enter_context(closing(transport_from_url(url)))
        self.session = stack.enter_context(closing(self.transport.session()))

    def endpoint(
        self,
        name: str,
        node: str,
        handlers: Mapping[str, Handler],
        *,
        delayed: bool = False,
        check_destinations: bool = False,
        starts: bool = True,
        **feature: Any,
    ) -> Endpoint:
        """Return an endpoint, running if it *starts*; *delayed* with a delayed message store."""
        config = EndpointConfiguration(name)
        if delayed:
            store = DelayedDeliverySettings(SqlDelayedMessageStore(self.url))
            config.use_transport(self.url, delayed_delivery=store)
        else:
            config.use_transport(self.url)
            config.use_persistence(self.url)
            config.enable_feature(TimeoutManager())
        config.transaction_mode = self.mode
        config.error_queue = self.error
        config.concurrency = 1
        config.check_destinations = check_destinations
        config.recoverability = RecoverabilitySettings(immediate=1, delayed=0)
        feature.setdefault("sweep_interval", timedelta(milliseconds=100))
        config.enable_feature(DeadLetterQueues(node=node, **feature))
        for message_type, handler in handlers.items():
            config.add_handler(message_type, handler)
        endpoint = self._stack.enter_context(closing(Endpoint(config)))
        if starts:
            endpoint.start()
        else:
            endpoint.install()
        return endpoint

    def box(self, node: str, box: NodeQueue, name: str = "") -> StoredCopyQueue:
        return StoredCopyQueue(QueueManager(store=self.store, node=node), box, name)

    def put(self, queue: str, message: Message) -> None:
        """Send as a stranger would."""
        assert self.session.send([Outgoing(queue, message)]) == [SendResult.CONFIRMED]

    def until_dead(
        self, node: str, box: NodeQueue = NodeQueue.DEADLETTER, count: int = 1
    ) -> list[StoredCopy]:
        queue = self.box(node, box)
        eventually(lambda: queue.count() >= count, f"{count} are dead on {node}", PATIENCE)
        return queue.peek()

    def until_failed(self, count: int = 1) -> None:
        eventually(
            lambda: self.session.count(self.error) >= count, "it is in the error queue", PATIENCE
        )

    def awaiting(self, node: str) -> list[str]:
        table = self.store.tables.awaiting
        with self.store.database.read() as connection:
            rows = connection.execute(table.select().where(table.c.node == node)).all()
        return [row.message_id for row in rows]

    def nothing_is_dead(self, *nodes: str) -> bool:
        boxes = (NodeQueue.DEADLETTER, NodeQueue.DEADXACT)
        return not any(ids(self.box(node, box)) for node in nodes for box in boxes)

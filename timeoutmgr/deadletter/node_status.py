"""Status of a node: counts and ages of its stored copies, and the used part of its quotas."""

from dataclasses import dataclass

from sqlalchemy import func, literal_column, select

from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.errors import SchemaMissing
from timeoutmgr.message.instants import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """Number and oldest instant of the copies in a queue."""

    count: int = 0
    oldest: Micros | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaShare:
    """Bytes in use of a *quota*; None: the quota has no own limit."""

    used: int
    quota: int | None

    @property
    def part(self) -> float:
        """The used share; 0 without a quota, above 1 if the quota was lowered since."""
        if self.quota is None:
            return 0.0
        return self.used / self.quota if self.quota else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Status of a node at one moment.

    *own* sums the dead-letter queues of applications. *journal* counts the journals of node and
    queues, *awaiting* the copies that await their final acknowledgement.
    """

    deadletter: QueueStatus
    deadxact: QueueStatus
    own: QueueStatus
    awaiting: int
    journal: int
    dead_letters_share: QuotaShare
    journal_share: QuotaShare
    node_share: QuotaShare

    @property
    def dead(self) -> QueueStatus:
        """All dead letters together."""
        queues = (self.deadletter, self.deadxact, self.own)
        since = [queue.oldest for queue in queues if queue.oldest is not None]
        return QueueStatus(
            count=sum(queue.count for queue in queues), oldest=min(since, default=None)
        )


def read_node_status(manager: QueueManager) -> NodeStatus:
    """Read the status of the node of *manager*; raise SchemaMissing if it is not installed."""
    tables, quotas = manager.store.tables, manager.quotas
    dead_letters, nodes = tables.dead_letters.c, tables.nodes
    # Without a parameter: PostgreSQL takes two parameters for two expressions.
    is_of_node = dead_letters.app_queue == literal_column("''")
    lying = (
        select(dead_letters.xact, is_of_node, func.count(), func.min(dead_letters.kept))
        .where(dead_letters.node == manager.node)
        .group_by(dead_letters.xact, is_of_node)
    )
    with manager.store.database.read() as connection:
        row = connection.execute(nodes.select().where(nodes.c.node == manager.node)).one_or_none()
        found = {
            (bool(xact), bool(is_of_node)): QueueStatus(count=count, oldest=oldest)
            for xact, is_of_node, count, oldest in connection.execute(lying)
        }
    if row is None:
        raise SchemaMissing(f"node {manager.node!r} is not installed; run `timeoutmgr install`")
    total = row.letters_bytes + row.awaiting_bytes + row.journal_bytes
    return NodeStatus(
        deadletter=found.get((False, True), QueueStatus()),
        deadxact=found.get((True, True), QueueStatus()),
        own=found.get((True, False), QueueStatus()),
        awaiting=row.awaiting_count,
        journal=row.journal_count,
        dead_letters_share=QuotaShare(used=row.letters_bytes, quota=quotas.dead_letters),
        journal_share=QuotaShare(used=row.journal_bytes, quota=quotas.journal),
        node_share=QuotaShare(used=total, quota=quotas.node),
    )

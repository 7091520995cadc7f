"""Quotas of a node and their use: the node's row, which every change locks first.

So placing is serial per node, quotas are exact, and all transactions of this store lock in the
same order.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, update

from timeoutmgr.deadletter.tables import DeadLetterTables
from timeoutmgr.errors import ConfigurationError, SchemaMissing

NODE_BYTES: Final = 8 * 1024**3
"""Default quota of a node for all its copies: 8 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Maximum bytes of headers and bodies on a node; None means without an own limit.

    Over *dead_letters*, a new dead letter is discarded; over *journal*, a copy is not made. *node*
    bounds all copies together: over it, the node refuses copies, and their messages wait.
    """

    dead_letters: int | None = None
    journal: int | None = None
    node: int | None = NODE_BYTES

    def __post_init__(self) -> None:
        """Check every value."""
        for name, value in asdict(self).items():
            if value is not None and value < 0:
                raise ConfigurationError(
                    f"quota {name} must be None or bytes from 0 up, got {value}"
                )


@dataclass(slots=True)
class QuotaUsage:
    """Bytes and copies on a node, read under a lock; ``save`` writes the changes."""

    node: str
    guid: str
    used: dict[str, int]
    _change: dict[str, int] = field(default_factory=dict)

    @classmethod
    def lock(cls, connection: Connection, tables: DeadLetterTables, node: str) -> "QuotaUsage":
        """Lock and return the usage of *node*; other transactions wait for the end of this."""
        nodes = tables.nodes
        found = connection.execute(
            nodes.select().where(nodes.c.node == node).with_for_update()
        ).one_or_none()
        if found is None:
            raise SchemaMissing(
                f"node {node!r} is not installed; run `timeoutmgr install`, or start with "
                "install = true"
            )
        used = {name: number for name, number in found._mapping.items() if "_" in name}
        return cls(node, found.guid, used)

    def of(self, counter: str) -> int:
        """Return the bytes of a *counter*: ``letters``, ``awaiting`` or ``journal``."""
        return self.used[f"{counter}_bytes"] + self._change.get(f"{counter}_bytes", 0)

    @property
    def total(self) -> int:
        """The bytes of all copies."""
        return sum(self.of(counter) for counter in ("letters", "awaiting", "journal"))

    def add(self, counter: str, size: int, count: int = 1) -> None:
        """Add *count* copies of *size* bytes together to *counter*; subtract negative numbers."""
        for name, number in ((f"{counter}_bytes", size), (f"{counter}_count", count)):
            self._change[name] = self._change.get(name, 0) + number

    def save(self, connection: Connection, tables: DeadLetterTables) -> None:
        """Write the changes."""
        changed = {name: number for name, number in self._change.items() if number}
        if changed:
            nodes = tables.nodes
            values: dict[str, Any] = {
                name: nodes.c[name] + number for name, number in changed.items()
            }
            connection.execute(update(nodes).where(nodes.c.node == self.node).values(values))
            self._change.clear()

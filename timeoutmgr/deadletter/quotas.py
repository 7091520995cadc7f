"""How much a node keeps, and how much it may: the node's row, which every change locks first.

So placing is one at a time per node, quotas are exact, and no two transactions of this store lock
in different orders.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, update

from timeoutmgr.deadletter.tables import DeadLetterTables
from timeoutmgr.errors import ConfigurationError, SchemaMissing

NODE_BYTES: Final = 8 * 1024**3
"""What a node may keep in all if nobody says otherwise: 8 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """How many bytes of headers and bodies a node keeps; None means without an own limit.

    Over *dead_letters* a new dead letter is discarded, over *journal* no copy is made. *node*
    bounds all together: over it nothing is taken, and who wanted to place waits.
    """

    dead_letters: int | None = None
    journal: int | None = None
    node: int | None = NODE_BYTES

    def __post_init__(self) -> None:
        """Check every value."""
        for name, value in asdict(self).items():
            if value is not None and value < 0:
                raise ConfigurationError(f"quota {name} is a number of bytes or None, got {value}")


@dataclass(slots=True)
class QuotaUsage:
    """What a node keeps, read under lock; ``save`` writes what was added and taken."""

    node: str
    guid: str
    used: dict[str, int]
    _change: dict[str, int] = field(default_factory=dict)

    @classmethod
    def lock(cls, connection: Connection, tables: DeadLetterTables, node: str) -> "QuotaUsage":
        """Return the usage of *node*; others wait until the transaction has ended."""
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

    def of(self, what: str) -> int:
        """Return the bytes of *what*: ``letters``, ``awaiting`` or ``journal``."""
        return self.used[f"{what}_bytes"] + self._change.get(f"{what}_bytes", 0)

    @property
    def total(self) -> int:
        """The bytes of everything."""
        return sum(self.of(what) for what in ("letters", "awaiting", "journal"))

    def add(self, what: str, size: int, count: int = 1) -> None:
        """Note that *count* letters of *size* bytes together came to *what*; negative: went."""
        for name, number in ((f"{what}_bytes", size), (f"{what}_count", count)):
            self._change[name] = self._change.get(name, 0) + number

    def save(self, connection: Connection, tables: DeadLetterTables) -> None:
        """Write what changed."""
        changed = {name: number for name, number in self._change.items() if number}
        if changed:
            nodes = tables.nodes
            values: dict[str, Any] = {
                name: nodes.c[name] + number for name, number in changed.items()
            }
            connection.execute(update(nodes).where(nodes.c.node == self.node).values(values))
            self._change.clear()

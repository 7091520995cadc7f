"""The dead letters of all nodes in an SQL database: its tables and its nodes."""

from typing import Final
from uuid import UUID

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.database import Database
from timeoutmgr.database import upgrade as migrations
from timeoutmgr.deadletter.tables import NODE_LENGTH, dead_letter_tables
from timeoutmgr.errors import ConfigurationError, StorageUnavailable

_MIGRATIONS: Final = "timeoutmgr.deadletter:migrations"


class DeadLetterStore:
    """Keeps dead letters in SQLite, PostgreSQL, MySQL or MariaDB.

    *url* may be a Database that other parts also use; for a URL, the process' shared Database is
    used. *schema* and *prefix* separate installations in a database. Raises ConfigurationError if
    they are not plain identifiers.
    """

    def __init__(
        self,
        url: str | Database,
        *,
        schema: str | None = None,
        prefix: str = "timeoutmgr_",
        clock: Clock | None = None,
    ) -> None:
        self.database: Final = url if isinstance(url, Database) else Database.shared(url)
        self.database.used_by(self)
        self.tables: Final = dead_letter_tables(schema, prefix)
        self.clock: Final[Clock] = clock or SystemClock()
        self._revisions = _MIGRATIONS, f"{prefix}dead_letters_version", schema
        self._attributes = {"prefix": prefix}
        self.guids: dict[str, str] = {}
        """GUIDs of nodes as this process first read them."""
        self.database.refuse_attached(schema, "Use a prefix.")

    def install(self) -> None:
        """Create or upgrade the tables; repeatable, also concurrently."""
        migrations.upgrade(self.database, *self._revisions, self._attributes)

    def ddl(self) -> str:
        """Return the statements that ``install`` would run on an empty database."""
        return migrations.ddl(self.database, *self._revisions, self._attributes)

    def check(self) -> None:
        """Raise SchemaMissing, with the command to run, if ``install`` is needed."""
        migrations.check(self.database, *self._revisions)

    def add_node(self, node: str, guid: str) -> str:
        """Add *node* with *guid*, and return its GUID: a known node keeps its own."""
        checked_node(node)
        found = self.guid_of(node)
        if found is not None:
            return found
        row = {"node": node, "guid": guid, "created": self.clock.now()}
        try:
            self.database.run(
                lambda connection: connection.execute(self.tables.nodes.insert(), row)
            )
        except StorageUnavailable:
            found = self.guid_of(node)  # another process may have added it
            if found is None:
                raise
            return found
        return guid

    def node_ddl(self, node: str, guid: str) -> str:
        """Return the statement by which ``add_node`` adds a node."""
        # For scripts; both texts have only characters that need no quoting.
        return (
            f"INSERT INTO {self.tables.nodes.fullname} (node, guid, created) "
            f"VALUES ('{checked_node(node)}', '{UUID(guid)}', {self.clock.now()})"
        )

    def guid_of(self, node: str) -> str | None:
        """Return the GUID of *node*, or None if it is not installed."""
        nodes = self.tables.nodes
        with self.database.read() as connection:
            found: str | None = connection.execute(
                nodes.select().with_only_columns(nodes.c.guid).where(nodes.c.node == node)
            ).scalar_one_or_none()
        return found

    def nodes(self) -> dict[str, str]:
        """Return every node with its GUID."""
        nodes = self.tables.nodes
        with self.database.read() as connection:
            rows = connection.execute(nodes.select().order_by(nodes.c.node)).all()
        return {row.node: row.guid for row in rows}

    def close(self) -> None:
        """Release idle connections."""
        self.database.leave(self)


def checked_node(node: str) -> str:
    """Return *node* if it is a valid node id; otherwise raise ConfigurationError."""
    usable = isinstance(node, str) and 0 < len(node) <= NODE_LENGTH and node.isprintable()
    if not usable or not node.isascii() or set(node) & set(" \\;,+\"'/:=@"):
        raise ConfigurationError(
            f"a node's id is 1 to {NODE_LENGTH} printable ASCII characters without space and "
            f"\\ ; , + \" ' / : = @, got {node!r:.80}; give a stable name, not that of a container"
        )
    return node

"""Fewer bytes for each dispatched timeout, in indexes and in tombstones.

The history gets an index on the ids of a run, and of all events but dispatches, in place of an
index on all ids, which kept 78 bytes of each timeout. The dispatch of a timeout of no run is found
by its instant, which the tombstone has. MySQL, whose indexes are never partial, keeps the index on
all ids.

On PostgreSQL ``maybe_sent`` of a key may be NULL, which counts as 0 and takes no room; rows that
are there stay as they are. Every step can be run again.
"""

from alembic import op
from sqlalchemy import Column, Index, MetaData, Table, literal_column

from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import drop_index, revision_attributes

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the column nullable, build the new index beside the old index, then drop the old."""
    dialect, attributes = op.get_context().dialect.name, revision_attributes()
    if dialect not in {"postgresql", "sqlite"}:
        return
    prefix = attributes["prefix"]
    if dialect == "postgresql":
        op.alter_column(
            f"{prefix}timeout_keys", "maybe_sent", nullable=True, schema=attributes["schema"]
        )
    history = Table(
        f"{prefix}timeout_history",
        MetaData(schema=attributes["schema"]),
        Column("id", KeyText(255)),
        Column("run_id", KeyText(255)),
        Column("event", KeyText(255)),
    )
    few = history.c.run_id.is_not(None) | (history.c.event != literal_column("'dispatched'"))
    create_index_patiently(
        Index(f"{prefix}timeout_history_few", history.c.id, postgresql_where=few, sqlite_where=few)
    )
    drop_index(f"{prefix}timeout_history_id", history)

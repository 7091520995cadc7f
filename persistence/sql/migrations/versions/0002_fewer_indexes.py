"""Timeouts without an index on ids; the index on sagas leaves out timeouts without a saga.

An id is looked up in ``timeout_keys``, which knows when it is due; most timeouts have no saga.
Every step can be run again: MySQL commits each DDL statement by itself.
"""

from alembic import op
from sqlalchemy import Column, Index, MetaData, Table

from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import drop_index, revision_attributes

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Drop the index on ids, and make the index on sagas anew if an index can be partial."""
    attributes = revision_attributes()
    prefix = attributes["prefix"]
    # As far as it matters here; on PostgreSQL its partitions follow.
    timeouts = Table(
        f"{prefix}timeouts",
        MetaData(schema=attributes["schema"]),
        Column("endpoint", KeyText(255)),
        Column("saga_id", KeyText(255)),
    )
    drop_index(f"{prefix}timeouts_id", timeouts)
    if op.get_context().dialect.name in {"postgresql", "sqlite"}:
        drop_index(f"{prefix}timeouts_saga", timeouts)
        some = timeouts.c.saga_id.is_not(None)
        saga = Index(
            f"{prefix}timeouts_saga",
            timeouts.c.saga_id,
            timeouts.c.endpoint,
            postgresql_where=some,
            sqlite_where=some,
        )
        create_index_patiently(saga)

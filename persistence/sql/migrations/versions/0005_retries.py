"""Timeouts that wait for another try: ordered by that try, with their original due time.

``next_try`` is used no more; rows that were waiting by it are tried at once. The column stays, so
that processes of the version before can go on until they are restarted. Every step can be run
again: MySQL commits each DDL statement by itself.
"""

from sqlalchemy import BigInteger, Column, Index, MetaData, Table

from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import add_missing_columns, revision_attributes

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column, and an index on it; without timeouts that never failed if it is partial."""
    attributes = revision_attributes()
    prefix = attributes["prefix"]
    timeouts = Table(
        f"{prefix}timeouts", MetaData(schema=attributes["schema"]), Column("endpoint", KeyText(255))
    )
    original_due = Column("original_due", BigInteger())
    add_missing_columns(timeouts, original_due)
    timeouts.append_column(original_due._copy())
    some = timeouts.c.original_due.is_not(None)
    create_index_patiently(
        Index(
            f"{prefix}timeouts_retried",
            timeouts.c.endpoint,
            timeouts.c.original_due,
            postgresql_where=some,
            sqlite_where=some,
        )
    )

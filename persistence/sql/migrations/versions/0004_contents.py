"""The digest of the content of an id's message in ``timeout_keys``.

NULL, as on every older row: the content is unknown. The step can be run again:
MySQL commits each DDL statement by itself.
"""

from sqlalchemy import Column, LargeBinary, MetaData, Table
from sqlalchemy.dialects import mysql

from timeoutmgr.database.upgrade import add_missing_columns, revision_attributes

revision = "0004"
down_revision = "0003"

_CONTENT = LargeBinary().with_variant(mysql.VARBINARY(64), "mysql", "mariadb")


def upgrade() -> None:
    """Add the column."""
    attributes = revision_attributes()
    keys = Table(f"{attributes['prefix']}timeout_keys", MetaData(schema=attributes["schema"]))
    add_missing_columns(keys, Column("content", _CONTENT))

"""Timeouts, the authority on their ids, the claims on timeouts, and their outcomes.

Every step can be run again: MySQL commits each DDL statement by itself.
"""

from typing import Any, Final

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import UserDefinedType

from timeoutmgr.database.texts import LONG_TEXT, KeyText
from timeoutmgr.database.upgrade import create_missing

revision = "0001"
down_revision = None

_WORD: Final[KeyText] = KeyText(255)
_LONG = LONG_TEXT.with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")
_BLOB = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_SEQUENCE = BigInteger().with_variant(Integer(), "sqlite")
_INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
_CLUSTERED: Final[dict[str, Any]] = {**_INNODB, "sqlite_with_rowid": False}


class _TransactionId(UserDefinedType[int]):
    """PostgreSQL's 64 bit transaction id, by which a reader can tell which rows are still open."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def upgrade() -> None:
    """Create the tables."""
    config = op.get_context().config
    assert config is not None, "revisions are run by timeoutmgr.database.upgrade"
    attributes = config.attributes
    prefix = attributes["prefix"]
    metadata = MetaData(schema=attributes["schema"])
    timeouts = _timeouts(metadata, prefix)
    create_missing(
        timeouts,
        _keys(metadata, prefix),
        _history(metadata, prefix),
        _claims(metadata, prefix),
        *_small(metadata, prefix),
    )
    if op.get_context().dialect.name == "postgresql":
        # One range for a start; ranges by day are split off it at run time, outside Alembic.
        names = op.get_context().dialect.identifier_preparer
        whole = names.format_table(timeouts)
        part = names.format_table(Table(f"{prefix}timeouts_all", metadata))
        op.execute(
            f"CREATE TABLE IF NOT EXISTS {part} PARTITION OF {whole} "
            "FOR VALUES FROM (MINVALUE) TO (MAXVALUE)"
        )


def _timeouts(metadata: MetaData, prefix: str) -> Table:
    table = Table(
        f"{prefix}timeouts",
        metadata,
        Column("endpoint", _WORD, primary_key=True),
        Column("due", BigInteger(), primary_key=True, autoincrement=False),
        Column("id", _WORD, primary_key=True),
        Column("destination", _WORD, nullable=False),
        Column("saga_id", _WORD),
        Column("message_id", _WORD, nullable=False),
        Column("headers", _LONG, nullable=False),
        Column("body", _BLOB, nullable=False),
        Column("content_type", _WORD, nullable=False),
        Column("content_encoding", _WORD, nullable=False),
        Column("created", BigInteger(), nullable=False),
        Column("version", Integer(), nullable=False),
        Column("attempts", Integer(), nullable=False),
        Column("next_try", BigInteger(), nullable=False, server_default="0"),
        Column("maybe_sent", SmallInteger(), nullable=False, server_default="0"),
        Column("run_id", _WORD),
        Column("hidden_by", _WORD),
        postgresql_partition_by="RANGE (due)",
        **_CLUSTERED,
    )
    # Not led by endpoint: before its first statistics, PostgreSQL would use such an index for
    # statements that only the primary key serves well.
    Index(f"{prefix}timeouts_saga", table.c.saga_id, table.c.endpoint)
    Index(f"{prefix}timeouts_id", table.c.id)
    return table


def _keys(metadata: MetaData, prefix: str) -> Table:
    # Numbers first: PostgreSQL aligns them, and would leave gaps behind texts.
    table = Table(
        f"{prefix}timeout_keys",
        metadata,
        Column("due", BigInteger(), nullable=False),
        Column("closed_at", BigInteger()),
        Column("version", Integer(), nullable=False),
        Column("maybe_sent", SmallInteger(), nullable=False, server_default="0"),
        Column("endpoint", _WORD, primary_key=True),
        Column("id", _WORD, primary_key=True),
        Column("state", _WORD, nullable=False),
        **_CLUSTERED,
    )
    # Tombstones only, if an index can be partial: pending keys would fill most of it. The endpoint
    # leads, or SQLite would read all keys of the endpoint instead of the index.
    closed = table.c.closed_at.is_not(None)
    Index(
        f"{prefix}timeout_keys_closed",
        table.c.endpoint,
        table.c.closed_at,
        sqlite_where=closed,
        postgresql_where=closed,
    )
    return table


def _history(metadata: MetaData, prefix: str) -> Table:
    is_postgresql = op.get_context().dialect.name == "postgresql"
    xid = Column("xid", _TransactionId(), server_default=text("pg_current_xact_id()"))
    columns: list[Column[Any]] = [
        Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        Column("at", BigInteger(), nullable=False),
        Column("due", BigInteger(), nullable=False),
        *([xid] if is_postgresql else []),
        Column("attempt", Integer(), nullable=False),
        Column("id", _WORD, nullable=False),
        Column("event", _WORD, nullable=False),
        Column("endpoint", _WORD, nullable=False),
        Column("destination", _WORD, nullable=False),
        Column("node", _WORD, nullable=False),
        Column("run_id", _WORD),
        Column("body_sha256", _WORD),
    ]
    table = Table(f"{prefix}timeout_history", metadata, *columns, **_INNODB)
    Index(f"{prefix}timeout_history_id", table.c.id)
    Index(f"{prefix}timeout_history_at", table.c.endpoint, table.c.at)
    return table


def _claims(metadata: MetaData, prefix: str) -> Table:
    table = Table(
        f"{prefix}claims",
        metadata,
        Column("token", _WORD, primary_key=True),
        Column("endpoint", _WORD, nullable=False),
        Column("from_due", BigInteger(), nullable=False),
        Column("from_id", _WORD, nullable=False),
        Column("to_due", BigInteger(), nullable=False),
        Column("to_id", _WORD, nullable=False),
        Column("owner", _WORD, nullable=False),
        Column("claimed_until", BigInteger(), nullable=False),
        Column("size", Integer(), nullable=False),
        Column("taken_by", _WORD),
        Column("taken_at", BigInteger()),
        **_INNODB,
    )
    Index(f"{prefix}claims_endpoint", table.c.endpoint)
    return table


def _small(metadata: MetaData, prefix: str) -> list[Table]:
    return [
        Table(
            f"{prefix}endpoints", metadata, Column("endpoint", _WORD, primary_key=True), **_INNODB
        ),
        Table(
            f"{prefix}processes",
            metadata,
            Column("owner", _WORD, primary_key=True),
            Column("endpoint", _WORD, nullable=False),
            Column("host", _WORD, nullable=False),
            Column("pid", Integer(), nullable=False),
            Column("started", BigInteger(), nullable=False),
            Column("heartbeat", BigInteger(), nullable=False),
            Column("state", _LONG, nullable=False),
            **_INNODB,
        ),
        Table(
            f"{prefix}runs",
            metadata,
            Column("run_id", _WORD, primary_key=True),
            Column("kind", _WORD, nullable=False),
            Column("state", _WORD, nullable=False),
            Column("created", BigInteger(), nullable=False),
            Column("parameters", _LONG, nullable=False),
            **_INNODB,
        ),
        Table(
            f"{prefix}batches",
            metadata,
            Column("run_id", _WORD, primary_key=True),
            Column("no", Integer(), primary_key=True, autoincrement=False),
            Column("state", _WORD, nullable=False),
            Column("count", Integer(), nullable=False),
            **_INNODB,
        ),
    ]

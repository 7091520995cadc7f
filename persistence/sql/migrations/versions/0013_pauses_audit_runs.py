"""Pauses of dispatch, the audit of changes, and the keys that a bulk run has selected."""

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, SmallInteger, Table

from timeoutmgr.database.texts import LONG_TEXT, KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0013"
down_revision = "0012"

_WORD: Final = KeyText(255)
_SHORT: Final = KeyText(64)
_INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


def upgrade() -> None:
    """Create the tables."""
    attributes = revision_attributes()
    prefix, metadata = attributes["prefix"], MetaData(schema=attributes["schema"])
    create_missing(_pauses(metadata, prefix), _audit(metadata, prefix))
    create_missing(_run_keys(metadata, prefix))


def _pauses(metadata: MetaData, prefix: str) -> Table:
    return Table(
        f"{prefix}pauses",
        metadata,
        Column("endpoint", _WORD, primary_key=True),
        Column("destination", _WORD, primary_key=True),
        Column("parked", BigInteger(), primary_key=True, autoincrement=False),
        Column("since", BigInteger(), nullable=False),
        Column("until", BigInteger()),
        Column("actor", LONG_TEXT, nullable=False),
        Column("reason", LONG_TEXT),
        Column("is_ending", SmallInteger(), nullable=False),
        **_INNODB,
    )


def _audit(metadata: MetaData, prefix: str) -> Table:
    audit = Table(
        f"{prefix}audit",
        metadata,
        Column("endpoint", _WORD, primary_key=True),
        Column("chain", _SHORT, primary_key=True),
        Column("number", Integer(), primary_key=True, autoincrement=False),
        Column("at", BigInteger(), nullable=False),
        Column("actor", LONG_TEXT, nullable=False),
        Column("role", LONG_TEXT),
        Column("channel", LONG_TEXT, nullable=False),
        Column("action", _SHORT, nullable=False),
        Column("selection", LONG_TEXT, nullable=False),
        Column("dry_run", SmallInteger(), nullable=False),
        Column("expected", BigInteger()),
        Column("changed", BigInteger()),
        Column("outcome", _SHORT, nullable=False),
        Column("run_id", _WORD),
        Column("reason", LONG_TEXT),
        Column("previous_hash", _SHORT, nullable=False),
        Column("hash", _SHORT, nullable=False),
        **_INNODB,
    )
    Index(f"{prefix}audit_at", audit.c.endpoint, audit.c.at)
    return audit


def _run_keys(metadata: MetaData, prefix: str) -> Table:
    return Table(
        f"{prefix}run_keys",
        metadata,
        Column("run_id", _SHORT, primary_key=True),
        Column("no", Integer(), primary_key=True, autoincrement=False),
        Column("due", BigInteger(), primary_key=True, autoincrement=False),
        Column("id", _WORD, primary_key=True),
        Column("endpoint", _WORD, nullable=False),
        Column("original_due", BigInteger()),
        Column("version", Integer(), nullable=False),
        Column("is_left", SmallInteger()),
        **_INNODB,
    )

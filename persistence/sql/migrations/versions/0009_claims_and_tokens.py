"""Claims of batches and fencing tokens leave ``runs``, each for a table of its own.

Rows of ``runs`` of the kind ``batch`` were claims, with the key ``<run>.<number>``.
Rows of the kind ``arrival`` were fencing tokens, with the key ``<run>.arrival``.

First, each open migration loses its runner. That update waits for a transaction that claims a
batch, and after it a process of the version before claims no further batch. The next ``timeoutmgr
migrate`` goes on with the run; it waits for each owner of a claim that is alive. Every step can be
run again: MySQL commits each DDL statement by itself.
"""

from collections.abc import Iterator
from typing import Any, Final

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Row,
    Table,
    delete,
    insert,
    select,
    update,
)

from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import create_missing, revision_attributes

revision = "0009"
down_revision = "0008"

_WORD: Final = KeyText(255)
_INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
_TOKEN: Final = ".arrival"
_OVER: Final = ("completed", "aborted")


def upgrade() -> None:
    """Create the tables, then move the rows by their kind."""
    attributes = revision_attributes()
    prefix, metadata = attributes["prefix"], MetaData(schema=attributes["schema"])
    claims, tokens = _claims(metadata, prefix), _tokens(metadata, prefix)
    create_missing(claims, tokens)
    if op.get_context().as_sql:
        return  # an empty database has no rows to move
    runs = _runs(metadata, prefix)
    connection = op.get_bind()
    is_open = (runs.c.kind == "migration", runs.c.state.not_in(_OVER))
    connection.execute(update(runs).where(*is_open).values(runner=None))
    for row in _of_kind(connection, runs, "batch"):
        run_id, _, no = row.run_id.rpartition(".")
        claim = {"endpoint": row.endpoint, "owner": row.runner, "claimed_at": row.created}
        _move(connection, runs, row, claims, {"run_id": run_id, "no": int(no)}, claim)
    for row in _of_kind(connection, runs, "arrival"):
        token = {"endpoint": row.endpoint, "state": row.state, "created": row.created}
        key = {"run_id": row.run_id.removesuffix(_TOKEN)}
        _move(connection, runs, row, tokens, key, token)


def _of_kind(connection: Connection, runs: Table, kind: str) -> Iterator[Row[Any]]:
    statement = select(runs).where(runs.c.kind == kind).with_for_update()
    yield from connection.execute(statement).all()


def _move(
    connection: Connection,
    runs: Table,
    row: Row[Any],
    target: Table,
    key: dict[str, Any],
    values: dict[str, Any],
) -> None:
    """Insert the row *key* with *values* into *target* unless it exists; delete *row*."""
    is_moved = (target.c[name] == value for name, value in key.items())
    if connection.execute(select(target).where(*is_moved)).first() is None:
        connection.execute(insert(target), {**key, **values})
    connection.execute(delete(runs).where(runs.c.run_id == row.run_id))


def _claims(metadata: MetaData, prefix: str) -> Table:
    return Table(
        f"{prefix}batch_claims",
        metadata,
        Column("run_id", _WORD, primary_key=True),
        Column("no", Integer(), primary_key=True, autoincrement=False),
        Column("endpoint", _WORD, nullable=False),
        Column("owner", _WORD, nullable=False),
        Column("claimed_at", BigInteger(), nullable=False),
        **_INNODB,
    )


def _tokens(metadata: MetaData, prefix: str) -> Table:
    return Table(
        f"{prefix}fencing_tokens",
        metadata,
        Column("run_id", _WORD, primary_key=True),
        Column("endpoint", _WORD, nullable=False),
        Column("state", _WORD, nullable=False),
        Column("created", BigInteger(), nullable=False),
        **_INNODB,
    )


def _runs(metadata: MetaData, prefix: str) -> Table:
    """Return ``runs``, as far as this revision reads it."""
    return Table(
        f"{prefix}runs",
        metadata,
        Column("run_id", _WORD, primary_key=True),
        Column("kind", _WORD),
        Column("state", _WORD),
        Column("created", BigInteger()),
        Column("endpoint", _WORD),
        Column("runner", _WORD),
    )

"""The tables as queries see them; the migrations create them.

Two tables share the work. ``timeout_keys`` is the one authority on an id: it is inserted once,
never deleted before its retention, and says whether the id is pending, dispatched, cancelled or
failed. ``timeouts`` holds the message itself in the order in which it is due.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, SmallInteger, Table, Text

from timeoutmgr.database import checked_identifier
from timeoutmgr.database.texts import KeyText

Columns: TypeAlias = tuple[Column[Any], ...]

TEXT_LENGTH = 255
"""The longest endpoint, id, destination or saga id, in characters."""


@dataclass(frozen=True, slots=True)
class TimeoutTables:
    """The tables of one schema and prefix."""

    timeouts: Table
    keys: Table
    history: Table
    claims: Table
    endpoints: Table
    processes: Table
    runs: Table
    batches: Table
    batch_claims: Table
    fencing_tokens: Table
    recurring: Table
    sagas: Table
    labels: Table
    pauses: Table
    audit: Table
    run_keys: Table
    load: Table
    load_passes: Table


@lru_cache(maxsize=16)  # SQLAlchemy compiles a statement again for other Table objects
def tables(schema: str | None, prefix: str) -> TimeoutTables:
    """Return the tables in *schema* (None: the connection's own) whose names begin with *prefix*.

    Raises ConfigurationError where either is no plain identifier.
    """
    checked_identifier("prefix", prefix)
    if schema is not None:
        checked_identifier("schema", schema)
    metadata = MetaData(schema=schema)

    def table(name: str, columns: Columns) -> Table:
        return Table(prefix + name, metadata, *columns)

    return TimeoutTables(
        timeouts=table("timeouts", _timeouts()),
        keys=table("timeout_keys", _keys()),
        history=table("timeout_history", _history()),
        claims=table("claims", _claims()),
        endpoints=table("endpoints", _endpoints()),
        processes=table("processes", _processes()),
        runs=table("runs", _runs()),
        batches=table("batches", _batches()),
        batch_claims=table("batch_claims", _batch_claims()),
        fencing_tokens=table("fencing_tokens", _fencing_tokens()),
        recurring=table("recurring", _recurring()),
        sagas=table("cleared_sagas", _sagas()),
        labels=table("timeout_labels", _labels()),
        pauses=table("pauses", _pauses()),
        audit=table("audit", _audit()),
        run_keys=table("run_keys", _run_keys()),
        load=table("load", _load()),
        load_passes=table("load_passes", _load_passes()),
    )


def _timeouts() -> Columns:
    """Return the columns; *due* is the next try, and *original_due*, if any, the due time."""
    return (
        _text("endpoint", key=True),
        _instant("due", key=True),
        _text("id", key=True),
        _text("destination"),
        _text("saga_id"),
        _text("message_id"),
        _long("headers"),
        Column("body", LargeBinary),
        _text("content_type"),
        _text("content_encoding"),
        _instant("created"),
        _number("version"),
        _number("attempts"),
        _instant("next_try"),
        _instant("original_due"),
        Column("maybe_sent", SmallInteger),
        _text("run_id"),
        _text("hidden_by"),
        _instant("place"),
    )


def _keys() -> Columns:
    return (
        _text("endpoint", key=True),
        _text("id", key=True),
        _instant("due"),
        _number("version"),
        _text("state"),
        _instant("closed_at"),
        Column("maybe_sent", SmallInteger),
        Column("content", LargeBinary),
    )


def _history() -> Columns:
    return (
        Column("sequence", BigInteger, primary_key=True),
        _text("id"),
        _text("event"),
        _instant("at"),
        _instant("due"),
        _text("endpoint"),
        _text("destination"),
        _number("attempt"),
        _text("node"),
        _text("run_id"),
        _text("body_sha256"),
        _long("channel"),
    )


def _claims() -> Columns:
    return (
        _text("token", key=True),
        _text("endpoint"),
        _instant("from_due"),
        _text("from_id"),
        _instant("to_due"),
        _text("to_id"),
        _text("owner"),
        _instant("claimed_until"),
        _number("size"),
        _text("taken_by"),
        _instant("taken_at"),
    )


def _endpoints() -> Columns:
    return (
        _text("endpoint", key=True),
        _text("marker"),
        _long("broker"),
        Column("marker_confirmed", SmallInteger),
    )


def _processes() -> Columns:
    return (
        _text("owner", key=True),
        _text("endpoint"),
        _text("host"),
        _number("pid"),
        _instant("started"),
        _instant("heartbeat"),
        _long("state"),
    )


def _runs() -> Columns:
    return (
        _text("run_id", key=True),
        _text("kind"),
        _text("state"),
        _instant("created"),
        _long("parameters"),
        _text("endpoint"),
        _text("runner"),
        _instant("ended"),
        _long("report"),
    )


def _batches() -> Columns:
    return (
        _text("run_id", key=True),
        Column("no", Integer, primary_key=True),
        _text("state"),
        _number("count"),
        _instant("from_due"),
        _text("from_id"),
        _instant("to_due"),
        _text("to_id"),
        *(_number(name) for name in ("taken", "arrived", "known", "returned", "repeated")),
    )


def _batch_claims() -> Columns:
    return (
        _text("run_id", key=True),
        Column("no", Integer, primary_key=True),
        _text("endpoint"),
        _text("owner"),
        _instant("claimed_at"),
    )


def _fencing_tokens() -> Columns:
    return (_text("run_id", key=True), _text("endpoint"), _text("state"), _instant("created"))


def _recurring() -> Columns:
    return (
        _text("endpoint", key=True),
        _text("name", key=True),
        _long("every"),
        _instant("configured_at"),
        _instant("done_until"),
        _instant("run_due"),
        _text("run_id"),
        Column("is_paused", SmallInteger),
    )


def _sagas() -> Columns:
    return (
        _text("endpoint", key=True),
        _text("saga_id", key=True),
        _long("order_id"),
        _instant("cleared_at"),
        _instant("sent"),
        _number("receiver"),
        _long("kept"),
        _long("channel"),
    )


def _labels() -> Columns:
    return (
        _text("endpoint", key=True),
        _text("label", key=True),
        _instant("due", key=True),
        _text("id", key=True),
    )


def _pauses() -> Columns:
    return (
        _text("endpoint", key=True),
        _text("destination", key=True),
        _instant("parked", key=True),
        _instant("since"),
        _instant("until"),
        _long("actor"),
        _long("reason"),
        Column("is_ending", SmallInteger),
    )


def _audit() -> Columns:
    return (
        _text("endpoint", key=True),
        _text("chain", key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        _instant("at"),
        _long("actor"),
        _long("role"),
        _long("channel"),
        _text("action"),
        _long("selection"),
        Column("dry_run", SmallInteger),
        Column("expected", BigInteger),
        Column("changed", BigInteger),
        _text("outcome"),
        _text("run_id"),
        _long("reason"),
        _text("previous_hash"),
        _text("hash"),
    )


def _run_keys() -> Columns:
    return (
        _text("run_id", key=True),
        Column("no", Integer, primary_key=True, autoincrement=False),
        _instant("due", key=True),
        _text("id", key=True),
        _text("endpoint"),
        _instant("original_due"),
        _number("version"),
        Column("is_left", SmallInteger),
    )


def _load() -> Columns:
    return (
        _text("endpoint", key=True),
        _text("destination", key=True),
        _instant("bucket", key=True),
        Column("width", BigInteger),
        Column("count", BigInteger),
        _instant("as_of"),
        _number("destinations"),
    )


def _load_passes() -> Columns:
    return (
        _text("endpoint", key=True),
        _instant("width", key=True),
        _instant("asked"),
        _instant("asked_by_destination"),
        _instant("ended"),
        _instant("since"),
        _instant("until"),
        _instant("due"),
        _text("id"),
        _long("tally"),
    )


def _text(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, KeyText(TEXT_LENGTH), primary_key=key)


def _long(name: str) -> Column[Any]:
    return Column(name, Text)


def _instant(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, BigInteger, primary_key=key, autoincrement=False)


def _number(name: str) -> Column[Any]:
    return Column(name, Integer)

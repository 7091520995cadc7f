"""The tables as queries see them; the migrations create them.

Two tables share the work. ``timeout_keys`` is the single authority on an id: its row is inserted
once, is not deleted before the end of retention, and says whether the id is pending, dispatched,
cancelled or failed. ``timeouts`` has the messages themselves, in the order of due times.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, SmallInteger, Table, Text

from timeoutmgr.database.places import OwnTable
from timeoutmgr.database.texts import KeyText, checked_metadata

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


@lru_cache(maxsize=16)  # cached: SQLAlchemy recompiles a statement for new Table objects
def tables(schema: str | None, prefix: str) -> TimeoutTables:
    """Return the tables in *schema* (None: the connection's own) whose names begin with *prefix*.

    Raises ConfigurationError if either is not a plain identifier.
    """
    metadata = checked_metadata(schema, prefix)

    return TimeoutTables(
        **{
            name: OwnTable(prefix + _NAMES.get(name, name), metadata, *columns())
            for name, columns in _COLUMNS.items()
        }
    )


_COLUMNS: Final[Mapping[str, Callable[[], Columns]]] = {
    # *due* is the next try, and *original_due*, if any, the due time.
    "timeouts": lambda: (
        _key("endpoint"),
        _instant("due", key=True),
        _key("id"),
        *_each(_text, "destination", "saga_id", "message_id"),
        _long("headers"),
        Column("body", LargeBinary),
        *_each(_text, "content_type", "content_encoding"),
        _instant("created"),
        *_each(_number, "version", "attempts"),
        *_each(_instant, "next_try", "original_due"),
        Column("maybe_sent", SmallInteger),
        *_each(_text, "run_id", "hidden_by"),
        _instant("place"),
    ),
    "keys": lambda: (
        *_each(_key, "endpoint", "id"),
        _instant("due"),
        _number("version"),
        _text("state"),
        _instant("closed_at"),
        Column("maybe_sent", SmallInteger),
        Column("content", LargeBinary),
    ),
    "history": lambda: (
        Column("sequence", BigInteger, primary_key=True),
        *_each(_text, "id", "event"),
        *_each(_instant, "at", "due"),
        *_each(_text, "endpoint", "destination"),
        _number("attempt"),
        *_each(_text, "node", "run_id", "body_sha256"),
        _long("channel"),
    ),
    "claims": lambda: (
        _key("token"),
        _text("endpoint"),
        _instant("from_due"),
        _text("from_id"),
        _instant("to_due"),
        *_each(_text, "to_id", "owner"),
        _instant("claimed_until"),
        _number("size"),
        _text("taken_by"),
        _instant("taken_at"),
    ),
    "endpoints": lambda: (
        _key("endpoint"),
        _text("marker"),
        _long("broker"),
        Column("marker_confirmed", SmallInteger),
    ),
    "processes": lambda: (
        _key("owner"),
        *_each(_text, "endpoint", "host"),
        _number("pid"),
        *_each(_instant, "started", "heartbeat"),
        _long("state"),
    ),
    "runs": lambda: (
        _key("run_id"),
        *_each(_text, "kind", "state"),
        _instant("created"),
        _long("parameters"),
        *_each(_text, "endpoint", "runner"),
        _instant("ended"),
        _long("report"),
    ),
    "batches": lambda: (
        _key("run_id"),
        Column("no", Integer, primary_key=True),
        _text("state"),
        _number("count"),
        _instant("from_due"),
        _text("from_id"),
        _instant("to_due"),
        _text("to_id"),
        *_each(_number, "taken", "arrived", "known", "returned", "repeated"),
    ),
    "batch_claims": lambda: (
        _key("run_id"),
        Column("no", Integer, primary_key=True),
        *_each(_text, "endpoint", "owner"),
        _instant("claimed_at"),
    ),
    "fencing_tokens": lambda: (
        _key("run_id"),
        _text("endpoint"),
        _text("state"),
        _instant("created"),
    ),
    "recurring": lambda: (
        *_each(_key, "endpoint", "name"),
        _long("every"),
        *_each(_instant, "configured_at", "done_until", "run_due"),
        _text("run_id"),
        Column("is_paused", SmallInteger),
    ),
    "sagas": lambda: (
        *_each(_key, "endpoint", "saga_id"),
        _long("order_id"),
        *_each(_instant, "cleared_at", "sent"),
        _number("receiver"),
        *_each(_long, "kept", "channel"),
    ),
    "labels": lambda: (
        *_each(_key, "endpoint", "label"),
        _instant("due", key=True),
        _key("id"),
    ),
    "pauses": lambda: (
        *_each(_key, "endpoint", "destination"),
        _instant("parked", key=True),
        *_each(_instant, "since", "until"),
        *_each(_long, "actor", "reason"),
        Column("is_ending", SmallInteger),
    ),
    "audit": lambda: (
        *_each(_key, "endpoint", "chain"),
        Column("number", Integer, primary_key=True, autoincrement=False),
        _instant("at"),
        *_each(_long, "actor", "role", "channel"),
        _text("action"),
        _long("selection"),
        Column("dry_run", SmallInteger),
        Column("expected", BigInteger),
        Column("changed", BigInteger),
        *_each(_text, "outcome", "run_id"),
        _long("reason"),
        *_each(_text, "previous_hash", "hash"),
    ),
    "run_keys": lambda: (
        _key("run_id"),
        Column("no", Integer, primary_key=True, autoincrement=False),
        _instant("due", key=True),
        _key("id"),
        _text("endpoint"),
        _instant("original_due"),
        _number("version"),
        Column("is_left", SmallInteger),
    ),
    "load": lambda: (
        *_each(_key, "endpoint", "destination"),
        _instant("bucket", key=True),
        Column("width", BigInteger),
        Column("count", BigInteger),
        _instant("as_of"),
        _number("destinations"),
    ),
    "load_passes": lambda: (
        _key("endpoint"),
        _instant("width", key=True),
        *_each(_instant, "asked", "asked_by_destination", "ended", "since", "until", "due"),
        _text("id"),
        _long("tally"),
    ),
}
"""The columns of each table, by its name in TimeoutTables."""
_NAMES: Final = {
    "keys": "timeout_keys",
    "history": "timeout_history",
    "sagas": "cleared_sagas",
    "labels": "timeout_labels",
}


def _each(make: Callable[[str], Column[Any]], *names: str) -> Columns:
    return tuple(map(make, names))


def _text(name: str) -> Column[Any]:
    return Column(name, KeyText(TEXT_LENGTH))


def _key(name: str) -> Column[Any]:
    return Column(name, KeyText(TEXT_LENGTH), primary_key=True)


def _long(name: str) -> Column[Any]:
    return Column(name, Text)


def _instant(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, BigInteger, primary_key=key, autoincrement=False)


def _number(name: str) -> Column[Any]:
    return Column(name, Integer)

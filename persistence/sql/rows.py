"""Convert timeouts to rows and back; write history rows along with the recorded change."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from operator import add, attrgetter, ge, gt, le, lt
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Row,
    and_,
    bindparam,
    false,
    func,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.sql.elements import KeyedColumnElement

from timeoutmgr.contracts import Key, Timeout
from timeoutmgr.database.arrays import TextArray
from timeoutmgr.database.texts import is_storable
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.headers import remembers_short
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message
from timeoutmgr.resilience.after_fork import cached_property

from .context import StoreContext
from .tables import TEXT_LENGTH

# --- conditions on keys in a form that every database can serve by an index -----------------------
# Thousands may be due at one instant: rows before the key must not be read.

Col = KeyedColumnElement[Any]


def _compared(
    compare: Callable[[Any, Any], ColumnElement[bool]],
    context: StoreContext,
    due: ColumnElement[Any],
    id_: Col,
    key: Any,
) -> ColumnElement[bool]:
    is_behind = compare in (gt, ge)
    if context.locks_what_it_reads:  # there, no index serves comparisons of pairs
        beyond = due > key[0] if is_behind else due < key[0]
        return or_(beyond, and_(due == key[0], compare(id_, key[1])))
    pairs = compare(tuple_(due, id_), tuple_(*key))
    if context.database.is_sqlite:  # it would search by due time only, and read a whole instant
        return pairs
    # The span of due times lets PostgreSQL prune partitions.
    return and_(due >= key[0] if is_behind else due <= key[0], pairs)


after: Final = partial(_compared, gt)
"""Return the condition that the key is behind the pair *key*."""
up_to: Final = partial(_compared, le)
"""Return the condition that the key is the pair *key*, or before it."""
from_key: Final = partial(_compared, ge)
"""Return the condition that the key is the pair *key*, or behind it."""
before_key: Final = partial(_compared, lt)
"""Return the condition that the key stands before the pair *key*."""


def within(context: StoreContext, first: Any, last: Any) -> ColumnElement[bool]:
    """Return the condition that a row's key is between the two pairs, inclusive."""
    place = context.tables.timeouts.c.due, context.tables.timeouts.c.id
    return and_(from_key(context, *place, first), up_to(context, *place, last))


def among(context: StoreContext, id_: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that the id is in the parameter ``ids``.

    PostgreSQL gets the ids as one array, so that one plan serves any number of ids. It compares a
    row with each element of an array, but hashes a subquery. ``IS TRUE`` prevents a join.
    """
    if context.database.dialect.name == "postgresql":
        return id_.in_(select(func.unnest(bindparam("ids", type_=TextArray())))).is_(true())
    return id_.in_(bindparam("ids", expanding=True))


def at_place(
    context: StoreContext, given: Callable[[str], ColumnElement[Any]] = bindparam
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a row is at the place *given* as ``due_`` and ``id_``."""
    timeouts = context.tables.timeouts
    is_mine = timeouts.c.endpoint == context.endpoint
    return is_mine, timeouts.c.due == given("due_"), timeouts.c.id == given("id_")


class OnKeys:
    """A statement on given keys; *make* builds it from the condition that a row has such a key."""

    # Each is built at its first use: most stores never use most of them.
    _interval = cached_property(lambda s: s._make(_keyed(s._context)))
    _instant = cached_property(lambda s: s._make(_of_one_instant(s._context)))

    def __init__(
        self, context: StoreContext, make: Callable[[ColumnElement[bool]], Executable]
    ) -> None:
        self._context, self._make = context, make
        # SQL Server cannot compare pairs. PostgreSQL does not stop an index search within one
        # instant, although a comparison of pairs would allow it.
        self._has_no_pairs: Final = context.database.dialect.name == "mssql"
        self._ends_instants: Final = context.database.dialect.name != "postgresql"

    def of(self, keys: Sequence[Key], **others: Any) -> tuple[Executable, dict[str, Any]]:
        """Return the statement for *keys* (at least one key) and its parameters."""
        if self._has_no_pairs:
            mine = self._context.tables.timeouts.c.endpoint == bindparam("endpoint")
            statement = self._make(and_(mine, at_each(self._context, keys)))
            return statement, {"endpoint": self._context.endpoint} | others
        parameters = _these(self._context, keys) | others
        one_instant = parameters.get("lowest") == parameters.get("highest")
        by_interval = self._ends_instants or not one_instant
        return (self._interval if by_interval else self._instant), parameters


def _these(context: StoreContext, keys: Sequence[Key]) -> dict[str, Any]:
    """Return the parameters of :func:`_keyed` for *keys*, which must not be empty."""
    if context.locks_what_it_reads:
        return {"endpoint": context.endpoint, "keys": [tuple(key) for key in keys]}
    first, last = min(keys), max(keys)
    return {
        "endpoint": context.endpoint,
        "lowest": first.due,
        "lowest_id": first.id,
        "highest": last.due,
        "highest_id": last.id,
        "ids": [key.id for key in keys],
    }


def _keyed(context: StoreContext) -> ColumnElement[bool]:
    """Return the condition that a row's key is among given keys; it has false hits.

    It reads the keys' interval, which a claim covers, in the order of the primary key: if ten
    thousand are due at one instant, it reads the hundred and not all. It also finds an id that
    moved within the interval: the caller compares the key. MySQL gets the pairs, since it would
    read and lock whatever rows its plan chooses for an interval.
    """
    timeouts = context.tables.timeouts
    mine = timeouts.c.endpoint == bindparam("endpoint")
    if context.locks_what_it_reads:
        pair = tuple_(timeouts.c.due, timeouts.c.id)
        return and_(mine, pair.in_(bindparam("keys", expanding=True)))
    return and_(
        mine,
        within(
            context,
            (bindparam("lowest"), bindparam("lowest_id")),
            (bindparam("highest"), bindparam("highest_id")),
        ),
        # An expression instead of a column, so that no plan uses an index on ids.
        among(context, timeouts.c.id.concat("")),
    )


def at_each(context: StoreContext, keys: Sequence[Key]) -> ColumnElement[bool]:
    """Return the condition that a row's key is among *keys*, looked up one by one."""
    timeouts = context.tables.timeouts
    these = [and_(timeouts.c.due == key.due, timeouts.c.id == key.id) for key in keys]
    return or_(false(), *these)


def _of_one_instant(context: StoreContext) -> ColumnElement[bool]:
    """Return :func:`_keyed` for keys of one due time, so that an index finds both ends."""
    timeouts = context.tables.timeouts
    return and_(
        timeouts.c.endpoint == bindparam("endpoint"),
        timeouts.c.due == bindparam("lowest"),
        timeouts.c.id >= bindparam("lowest_id"),
        timeouts.c.id <= bindparam("highest_id"),
        among(context, timeouts.c.id.concat("")),
    )


COLUMNS: Final = (
    *("due", "id", "destination", "saga_id", "created", "attempts"),
    *("message_id", "headers", "body", "content_type", "content_encoding"),
)
"""The columns of a stored message in ``timeouts``."""

PLACED: Final = (*COLUMNS, "original_due")
"""With the due time of a timeout that waits for a retry: its place is the time of the retry."""

_TEXTS: Final = (
    *("id", "destination", "saga id"),
    *("message id", "content type", "content encoding"),
)

_columns_of = attrgetter(*COLUMNS)
_placed_of = attrgetter(*PLACED)
_from_json = json.JSONDecoder().decode


def sound_timeout(due: Micros) -> Timeout:
    """Return a timeout at *due* that our tables accept, unless somebody has altered them."""
    name = f"sound-{uuid4().hex}"
    return Timeout(id=name, due=due, destination="sound", message=Message(id=name), created=due)


def refused_value(words: str) -> MessageRejected:
    """Return the error for a timeout that the database refuses with its own *words*."""
    return MessageRejected(f"the database refuses a value of this timeout: {words}")


def to_row(endpoint: str, timeout: Timeout, *, version: int = 0) -> dict[str, Any]:
    """Return *timeout* as a row of ``timeouts``.

    Raises MessageRejected for text that some database could not store or would change.
    """
    message = timeout.message
    texts = (
        *(timeout.id, timeout.destination, timeout.saga_id or ""),
        *(message.id, message.content_type, message.content_encoding),
    )
    all_at_once = "".join(texts)  # the culprit is searched only after a refusal
    if len(all_at_once) > TEXT_LENGTH or not all_at_once.isascii() or "\0" in all_at_once:
        for what, text in zip(_TEXTS, texts, strict=True):
            _check(what, text)
    return {
        "endpoint": endpoint,
        "due": timeout.key.due,
        "id": timeout.id,
        "destination": timeout.destination,
        "saga_id": timeout.saga_id,
        "message_id": message.id,
        "headers": to_json(message.headers),
        "body": message.body,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "created": timeout.created,
        "version": version,
        "attempts": timeout.attempts,
        "maybe_sent": 0,
    }


def from_row(row: Row[Any] | Any) -> Timeout:
    """Return the timeout of *row*, whose columns have names."""
    return from_values(_columns_of(row))


def from_placed_row(row: Row[Any]) -> Timeout:
    """Return the timeout in *row* of ``timeouts``, with its place."""
    return from_placed(_placed_of(row))


def from_placed(values: Sequence[Any]) -> Timeout:
    """Return the timeout of *values*, in the order of PLACED."""
    *stored, original_due = values
    timeout = from_values(stored)
    if original_due is None:
        return timeout
    return replace(timeout, due=original_due, next_try=timeout.due)


def due_of(row: Any) -> Micros:
    """Return the original due time of *row*, wherever its place is."""
    due: Micros = row.due if row.original_due is None else row.original_due
    return due


def from_values(values: Sequence[Any]) -> Timeout:
    """Return the timeout of *values*, in the order of COLUMNS.

    Accessing a row's columns by name takes as long as parsing the headers.
    """
    due, id_, destination, saga_id, created, attempts, message_id, headers, body, *kind = values
    return Timeout(
        id=id_,
        due=due,
        destination=destination,
        saga_id=saga_id,
        created=created,
        attempts=attempts,
        message=Message(
            id=message_id,
            headers=_from_json(headers),
            body=bytes(body),
            content_type=kind[0],
            content_encoding=kind[1],
        ),
    )


def to_json(state: Mapping[str, str]) -> str:
    """Return *state* as JSON text."""
    # Like json.dumps in half the time, which creates an encoder for each call.
    names = _quoted_names(tuple(state))
    return f"{{{','.join(map(add, names, map(quoted, state.values())))}}}"


@remembers_short(1024)
def _quoted_names(names: tuple[str, ...]) -> tuple[str, ...]:
    # Cached: programs send a few sets of headers again and again.
    return tuple(f"{quoted(name)}:" for name in names)


def _check(what: str, value: str) -> None:
    if len(value) > TEXT_LENGTH:
        raise MessageRejected(
            f"the {what} has {len(value)} characters, at most {TEXT_LENGTH} can be stored: "
            f"{value[:64]!r}…"
        )
    if not is_storable(value):
        raise MessageRejected(f"the {what} {value[:64]!r} cannot be stored; expected plain text")


_ONLY_IN_FULL: Final = frozenset({"scheduled", "rescheduled", "replaced", "rerouted"})


def record(
    connection: Connection,
    context: StoreContext,
    event: str,
    rows: Iterable[dict[str, Any]],
    channel: str | None = None,
) -> None:
    """Write *rows*, made by :func:`entry`, if the ``history`` setting includes *event*.

    *channel* is the path of the order that caused them.
    """
    if not is_wanted(context, event):
        return
    fixed = {"event": event, "endpoint": context.endpoint, "node": context.node}
    if channel is not None:  # a dispatch has no channel, and writes no such column
        fixed["channel"] = channel
    entries = [row | fixed for row in rows]
    context.writing.insert_rows(connection, context.tables.history, entries)


def is_wanted(context: StoreContext, event: str) -> bool:
    """Return whether the ``history`` setting includes *event*."""
    wanted = context.settings.history
    return wanted == "full" or (wanted != "none" and event not in _ONLY_IN_FULL)


def entry(
    key: Key, at: Micros, destination: str, attempt: int, run_id: str | None
) -> dict[str, Any]:
    """Return the history row of one timeout."""
    return {
        "id": key.id,
        "due": key.due,
        "at": at,
        "destination": destination,
        "attempt": attempt,
        "run_id": run_id,
    }


def entry_of(row: Any, at: Micros) -> dict[str, Any]:
    """Return the history row of an event *at* an instant, for the timeout in *row*."""
    return entry(Key(due_of(row), row.id), at, row.destination, row.attempts, row.run_id)

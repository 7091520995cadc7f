"""Timeouts as rows and back; rows of their history, written with the change that they record."""

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

# --- conditions on keys, in a form that an index serves on every database ----------------------
# Thousands may be due at one instant: none that stands before the key is read.

Col = KeyedColumnElement[Any]


def _compared(
    compare: Callable[[Any, Any], ColumnElement[bool]],
    context: StoreContext,
    due: ColumnElement[Any],
    id_: Col,
    key: Any,
) -> ColumnElement[bool]:
    is_behind = compare in (gt, ge)
    if context.locks_what_it_reads:  # an index serves no pairs there
        beyond = due > key[0] if is_behind else due < key[0]
        return or_(beyond, and_(due == key[0], compare(id_, key[1])))
    pairs = compare(tuple_(due, id_), tuple_(*key))
    if context.database.is_sqlite:  # it would go by due times alone, and read all of one instant
        return pairs
    # The span of due times lets PostgreSQL leave out partitions.
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
    """Return the condition that a row's key is in the closed interval of the two pairs."""
    place = context.tables.timeouts.c.due, context.tables.timeouts.c.id
    return and_(from_key(context, *place, first), up_to(context, *place, last))


def among(context: StoreContext, id_: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that the id is among the parameter ``ids``.

    PostgreSQL gets the ids as one array, so that its plan serves any number of ids. It compares a
    row with each element of an array in turn, but makes a hash of a subquery. ``IS TRUE`` keeps it
    from a join with that subquery.
    """
    if context.database.dialect.name == "postgresql":
        return id_.in_(select(func.unnest(bindparam("ids", type_=TextArray())))).is_(true())
    return id_.in_(bindparam("ids", expanding=True))


def at_place(
    context: StoreContext, given: Callable[[str], ColumnElement[Any]] = bindparam
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a row has the place *given* as ``due_`` and ``id_``."""
    timeouts = context.tables.timeouts
    is_mine = timeouts.c.endpoint == context.endpoint
    return is_mine, timeouts.c.due == given("due_"), timeouts.c.id == given("id_")


class OnKeys:
    """A statement about some keys, as *make* makes it of the condition that a row is of them."""

    # Each is made when it is first used: most stores never use most of them.
    _interval = cached_property(lambda s: s._make(_keyed(s._context)))
    _instant = cached_property(lambda s: s._make(_of_one_instant(s._context)))

    def __init__(
        self, context: StoreContext, make: Callable[[ColumnElement[bool]], Executable]
    ) -> None:
        self._context, self._make = context, make
        # SQL Server compares no pairs. PostgreSQL does not end a search within one instant where a
        # comparison of pairs would.
        self._has_no_pairs: Final = context.database.dialect.name == "mssql"
        self._ends_instants: Final = context.database.dialect.name != "postgresql"

    def of(self, keys: Sequence[Key], **others: Any) -> tuple[Executable, dict[str, Any]]:
        """Return the statement for *keys*, at least one key, and its parameters."""
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
    """Return the condition that a row's key is among some keys, with false hits.

    It reads the interval of the keys in the order of the primary key, which a claim covers: of ten
    thousand that are due at one instant a hundred, and not all of them. An id that was moved within
    the interval is found too: the caller compares the key. MySQL would read, and lock, the rows
    that its plan makes of an interval, and gets the pairs.
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
        # No column any more, but an expression: an index on ids is not to be thought of.
        among(context, timeouts.c.id.concat("")),
    )


def at_each(context: StoreContext, keys: Sequence[Key]) -> ColumnElement[bool]:
    """Return the condition that a row's key is among *keys*, each looked up by the primary key."""
    timeouts = context.tables.timeouts
    these = [and_(timeouts.c.due == key.due, timeouts.c.id == key.id) for key in keys]
    return or_(false(), *these)


def _of_one_instant(context: StoreContext) -> ColumnElement[bool]:
    """Return :func:`_keyed` for keys of one due time, as an index finds their first and last."""
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
"""The columns of ``timeouts`` of a stored message."""

PLACED: Final = (*COLUMNS, "original_due")
"""These, and when a timeout was due that waits for another try: its place is that of the try."""

_TEXTS: Final = (
    *("id", "destination", "saga id"),
    *("message id", "content type", "content encoding"),
)

_columns_of = attrgetter(*COLUMNS)
_placed_of = attrgetter(*PLACED)
_from_json = json.JSONDecoder().decode


def sound_timeout(due: Micros) -> Timeout:
    """Return a timeout at *due* that no table of ours refuses, as long as it is as we made it."""
    name = f"sound-{uuid4().hex}"
    return Timeout(id=name, due=due, destination="sound", message=Message(id=name), created=due)


def refused_value(words: str) -> MessageRejected:
    """Return the error for a timeout that the database refuses in *words* of its own."""
    return MessageRejected(f"the database refuses a value of this timeout: {words}")


def to_row(endpoint: str, timeout: Timeout, *, version: int = 0) -> dict[str, Any]:
    """Return *timeout* as a row of ``timeouts``.

    Raises MessageRejected for text that some database could not hold or would change.
    """
    message = timeout.message
    texts = (
        *(timeout.id, timeout.destination, timeout.saga_id or ""),
        *(message.id, message.content_type, message.content_encoding),
    )
    if not _is_plain("".join(texts)):  # all at once; a refusal starts the search for the fault
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
    """Return the timeout of *row*, which has the names of the columns."""
    return from_values(_columns_of(row))


def from_placed_row(row: Row[Any]) -> Timeout:
    """Return the timeout that *row* of ``timeouts`` holds, at its place."""
    return from_placed(_placed_of(row))


def from_placed(values: Sequence[Any]) -> Timeout:
    """Return the timeout of *values*, in the order of PLACED."""
    *stored, original_due = values
    timeout = from_values(stored)
    if original_due is None:
        return timeout
    return replace(timeout, due=original_due, next_try=timeout.due)


def due_of(row: Any) -> Micros:
    """Return when the timeout of *row* was due first, wherever its place is."""
    due: Micros = row.due if row.original_due is None else row.original_due
    return due


def from_values(values: Sequence[Any]) -> Timeout:
    """Return the timeout of *values*, in the order of COLUMNS.

    To ask a row for its columns by their names takes as long as to read the headers.
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
    # As json.dumps would, in half of the time: it makes an encoder for each call.
    names = _quoted_names(tuple(state))
    return f"{{{','.join(map(add, names, map(quoted, state.values())))}}}"


@remembers_short(1024)
def _quoted_names(names: tuple[str, ...]) -> tuple[str, ...]:
    # Programs have a few sets of headers, and send them again and again.
    return tuple(f"{quoted(name)}:" for name in names)


def _is_plain(text: str) -> bool:
    return len(text) <= TEXT_LENGTH and text.isascii() and "\0" not in text


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
    """Write *rows*, made by :func:`entry`, as far as the ``history`` setting wants *event*.

    *channel* is the way by which the order came that caused them.
    """
    if not is_wanted(context, event):
        return
    fixed = {"event": event, "endpoint": context.endpoint, "node": context.node}
    if channel is not None:  # a dispatch has none, and writes no column for it
        fixed["channel"] = channel
    entries = [row | fixed for row in rows]
    context.writing.insert_rows(connection, context.tables.history, entries)


def is_wanted(context: StoreContext, event: str) -> bool:
    """Return whether the ``history`` setting wants *event*."""
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
    """Return the history row of an event *at* an instant, of the timeout in *row*."""
    return entry(Key(due_of(row), row.id), at, row.destination, row.attempts, row.run_id)

"""Timeouts as rows and back; rows of their history, written with the change that they record."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, Row

from timeoutmgr.contracts import Key, Timeout
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message

from .context import StoreContext
from .tables import TEXT_LENGTH

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
_to_json = json.JSONEncoder(separators=(",", ":")).encode
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
        "headers": _to_json(dict(message.headers)),
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
    return _to_json(dict(state))


def _is_plain(text: str) -> bool:
    return len(text) <= TEXT_LENGTH and text.isascii() and "\0" not in text


def _check(what: str, value: str) -> None:
    if len(value) > TEXT_LENGTH:
        raise MessageRejected(
            f"the {what} has {len(value)} characters, at most {TEXT_LENGTH} can be stored: "
            f"{value[:64]!r}…"
        )
    # PostgreSQL takes no NUL; half a surrogate pair is no UTF-8.
    if "\0" in value or (not value.isascii() and not _is_utf8(value)):
        raise MessageRejected(f"the {what} {value[:64]!r} cannot be stored; expected plain text")


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_ONLY_IN_FULL: Final = frozenset({"scheduled", "rescheduled", "replaced"})


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

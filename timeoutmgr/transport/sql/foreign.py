"""Other programs' messages in the SQL queue: the queues that a route leads to, and the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import or_
from typing import Any

from sqlalchemy import Connection

from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message import headers as names
from timeoutmgr.message.foreign import (
    KOMBU,
    Foreign,
    QueueDeclaration,
    Route,
    foreign_of,
    without_route,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql.options import asked_by, declared_options
from timeoutmgr.transport.sql.queues import SqlQueues
from timeoutmgr.transport.sql.tables import checked_queue_name, row_of, to_row

Row = dict[str, Any]

_OF_THE_DELIVERY = frozenset({"delivery_tag", "body_encoding", "delivery_info"})


class RoutedRows:
    """Rows of messages with routes, in the transaction of *connection* if it is given.

    Queues and bindings of a route are declared first, in the same transaction: on SQLite, no other
    transaction could write beside it.
    """

    def __init__(self, queues: SqlQueues, connection: Connection | None, now: Micros) -> None:
        self._queues = queues
        self._connection = connection
        self._now = now
        self._led: dict[Route, list[str]] = {}

    def of(self, outgoing: Outgoing) -> list[Row]:
        """Return a row for each queue of *outgoing*: its own, or all that its route leads to."""
        route = outgoing.via
        if not isinstance(route, Route):
            return [to_row(outgoing, self._now)]
        if route not in self._led:
            self._led[route] = self._lead(route)
        foreign = foreign_of(outgoing)
        row = (
            to_row(Outgoing(outgoing.destination, without_route(outgoing)), self._now)
            if foreign is None
            else _foreign_row(foreign, outgoing.message.id, self._now)
        )
        return [{**row, "queue": queue} for queue in self._led[route]]

    def _lead(self, route: Route) -> list[str]:
        try:
            for one in route.declare:
                self._declare(one)
        except ConfigurationError as error:
            # Only this message may fail: the messages of a batch are sent together.
            raise InvalidMessage(
                f"the route of a message for {route.destination!r:.80} declares what the SQL queue "
                f"refuses: {error}; send it again by another route"
            ) from error
        if not route.exchange:
            return [route.routing_key]
        # The bindings of this transaction are not visible from outside yet.
        declared = [
            (one.routing_key, one.queue, one.exchange_type)
            for one in route.declare
            if one.exchange == route.exchange
        ]
        bindings = [*self._queues.bindings(route.exchange), *declared]
        return sorted(matching_queues(bindings, route.routing_key))

    def _declare(self, one: QueueDeclaration) -> None:
        """Create the queue of *one* with its options if it does not exist, and bind it."""
        if not isinstance(one.arguments, Mapping):  # written by another program
            raise ConfigurationError(f"arguments are a table, got {one.arguments!r:.80}")
        if self._queues.missing([one.queue]):
            options = declared_options(
                one.arguments,
                auto_delete=one.auto_delete,
                exclusive=one.exclusive,
                durable=one.durable,
            )
            name = checked_queue_name(one.queue)
            self._queues.create([name], connection=self._connection, options=options)
        if one.exchange:
            binding = one.exchange, one.routing_key, one.queue, one.exchange_type
            self._queues.bind(*binding, connection=self._connection)


def matching_queues(bindings: Iterable[tuple[str, str, str]], key: str) -> set[str]:
    """Return the queues to which *bindings* (key, queue and exchange type) route *key*."""
    return {queue for bound, queue, kind in bindings if _matches(kind, bound, key)}


def _matches(kind: str, bound: str, key: str) -> bool:
    if kind == "fanout":
        return True
    return _matches_words(bound.split("."), key.split(".")) if kind == "topic" else bound == key


def _matches_words(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether *words* match: ``*`` is any word, ``#`` any number of words, even none."""
    # For each prefix of the words, whether the pattern so far matches it. Trying each length of
    # each ``#`` took 12 s for twelve ``#`` and 14 words.
    matched = [True, *(False for _ in words)]
    for part in pattern:
        if part == "#":
            matched = list(accumulate(matched, or_))
        else:
            before = zip(matched, words, strict=False)
            matched = [False, *(so_far and part in ("*", word) for so_far, word in before)]
    return matched[-1]


def _foreign_row(foreign: Foreign, message_id: str, now: Micros) -> Row:
    """Return the row, without its queue, that kombu's channel would make of *foreign*."""
    foreign.require_codec(KOMBU, "the SQL queue")
    payload, headers, properties = _read(foreign)
    exchange, key = foreign.route.address()
    message = Message(
        id=str(headers.get(names.MESSAGE_ID) or properties.get("message_id") or message_id),
        body=foreign.body,
        content_type=str(payload.get("content-type") or "application/octet-stream"),
        content_encoding=str(payload.get("content-encoding") or "binary"),
    )
    kept = {name: value for name, value in properties.items() if name not in _OF_THE_DELIVERY}
    kept["delivery_info"] = {"exchange": exchange, "routing_key": key}
    row = row_of("", message, json.dumps(headers), json.dumps(kept), now)
    return row | asked_by(properties)


def _read(foreign: Foreign) -> tuple[Row, Row, Row]:
    # With the standard library: kombu's tags for dates and the like are passed on unread.
    try:
        payload = json.loads(foreign.properties)
        headers, properties = payload["headers"], payload["properties"]
        if not isinstance(headers, dict) or not isinstance(properties, dict):
            raise TypeError("headers and properties are tables")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidMessage(
            f"a foreign message for {foreign.route.destination!r:.80} has no readable headers and "
            f"properties ({type(error).__name__}: {str(error)[:200]}); send it again"
        ) from error
    return payload, headers, properties

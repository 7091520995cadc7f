"""Messages of other programs in the SQL queue: which queues a route leads to, and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers as names
from timeoutmgr.message.foreign import KOMBU, Foreign, Route, foreign_of, without_route
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql.queues import SqlQueues
from timeoutmgr.transport.sql.tables import checked_queue_name, row_of, to_row

Row = dict[str, Any]

_OF_THE_DELIVERY = frozenset({"delivery_tag", "body_encoding", "delivery_info"})


class RoutedRows:
    """Rows of messages with routes, in the transaction of *connection* if it is given.

    Queues and bindings of a route are declared first, and in that transaction: on SQLite no other
    transaction could write beside it.
    """

    def __init__(self, queues: SqlQueues, connection: Connection | None, now: Micros) -> None:
        self._queues = queues
        self._connection = connection
        self._now = now
        self._led: dict[Route, list[str]] = {}

    def of(self, outgoing: Outgoing) -> list[Row]:
        """Return a row for each queue of *outgoing*: its own, or all to which its route leads."""
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
        for one in route.declare:
            if self._queues.missing([one.queue]):
                self._queues.create([checked_queue_name(one.queue)], connection=self._connection)
            if one.exchange:
                binding = one.exchange, one.routing_key, one.queue, one.exchange_type
                self._queues.bind(*binding, connection=self._connection)
        if not route.exchange:
            return [route.routing_key]
        # The bindings of this transaction are not to be seen from outside yet.
        declared = [
            (one.routing_key, one.queue, one.exchange_type)
            for one in route.declare
            if one.exchange == route.exchange
        ]
        bindings = [*self._queues.bindings(route.exchange), *declared]
        return sorted(matching_queues(bindings, route.routing_key))


def matching_queues(bindings: Iterable[tuple[str, str, str]], key: str) -> set[str]:
    """Return the queues that *bindings* (key, queue and type of exchange) have for *key*."""
    return {queue for bound, queue, kind in bindings if _matches(kind, bound, key)}


def _matches(kind: str, bound: str, key: str) -> bool:
    if kind == "fanout":
        return True
    if kind == "topic":
        return _matches_words(bound.split("."), key.split("."))
    return bound == key


def _matches_words(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether *words* match: ``*`` is any word, ``#`` any number of words, also none."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(_matches_words(rest, words[start:]) for start in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and _matches_words(rest, words[1:])


def _foreign_row(foreign: Foreign, message_id: str, now: Micros) -> Row:
    """Return the row that kombu's channel would make of *foreign*, without its queue."""
    if foreign.codec != KOMBU:
        raise InvalidMessage(
            f"a foreign message for {foreign.route.destination!r:.80} is encoded as "
            f"{foreign.codec!r}, and the SQL queue reads {KOMBU!r}; send it again for this queue"
        )
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
    return row_of("", message, json.dumps(headers), json.dumps(kept), now)


def _read(foreign: Foreign) -> tuple[Row, Row, Row]:
    # With the standard library: kombu's own marks of dates and the like are passed on unread.
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

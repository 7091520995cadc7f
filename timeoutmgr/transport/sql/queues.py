"""The queues of one table set: create, find and delete them, and put messages into them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
)
from sqlalchemy.sql import FromClause

from timeoutmgr.contracts import Clock, Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database, as_connection
from timeoutmgr.database.batch_inserts import FEW, can_copy, copy_rows, in_statements, misfit
from timeoutmgr.database.commits import after_commit, commit_lazily
from timeoutmgr.database.engine import count_inserted, execute_many
from timeoutmgr.database.round_trips import DriverStatement
from timeoutmgr.database.soundness import refusals
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.headers import BROKER_HEADERS, DISPATCHED_AT, RELATED_TO_TIMEOUT, ROUTE
from timeoutmgr.transport.sql.limits import LimitedQueues
from timeoutmgr.transport.sql.options import PLAIN, QueueOptions, asks, ends, options_of, shaped
from timeoutmgr.transport.sql.statements import QueueStatements
from timeoutmgr.transport.sql.tables import (
    CONTENT_ENCODING_LENGTH,
    QUEUE_NAME_LENGTH,
    QueueTables,
    checked_queue_name,
    is_queue_name,
)
from timeoutmgr.transport.sql.wakeups import QueueWakeups, notify

_ADDED: Final = (headers.DISPATCHED_AT, headers.FAILED_QUEUE, headers.RETRIES)
_RESERVE: Final = 16 * 1024
_MOST_KNOWN: Final = 10_000
_KNOWN_FOR: Final = 1.0
"""Seconds for which a queue is assumed to exist still; a missing queue is looked up each time."""
_UNKNOWN: Final = (0.0, PLAIN)
_TYPES: Final = ("direct", "fanout", "topic")
_BINDING_BYTES: Final = 255
"""Maximum bytes of a name in AMQP. Exchange, key and queue form one index entry, which PostgreSQL
limits to 2,704 bytes."""
_SOUND: Final[dict[str, Any]] = {
    "message_id": "sound",
    "headers": "{}",
    "body": b"",
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "properties": None,
}
"""Values that our own tables never refuse."""


class SqlQueues:
    """Operations on queues that concern no single consumer. Safe for many threads.

    *channel* is the PostgreSQL channel that announces new messages, None without listeners.
    """

    def __init__(
        self,
        database: Database,
        statements: QueueStatements,
        wakeups: QueueWakeups,
        clock: Clock,
        channel: str | None,
    ) -> None:
        self._database = database
        self._statements = statements
        self._wakeups = wakeups
        self._clock = clock
        self._channel = channel
        self._copies = can_copy(database.engine)
        # Without a lock: in a forked child, a thread of the parent might have acquired it.
        self._known: dict[str, tuple[float, QueueOptions]] = {}
        self._is_quick = channel is not None and database.can_pipeline
        self._alone: dict[tuple[bool, tuple[str, ...]], DriverStatement] = {}

    def create(
        self,
        names: Collection[str],
        error_queue: str | None = None,
        connection: Connection | None = None,
        options: QueueOptions = PLAIN,
    ) -> None:
        """Create the queues that do not exist, also in the transaction of *connection*.

        Existing queues are not changed. A new queue is empty: it gets no message that was sent to a
        deleted queue of the same name.
        """
        # Sorted, so that two processes that create the same queues do not deadlock.
        rows: list[dict[str, Any]] = [
            {"name": name, "dead_letter_to": error_queue, "created": self._clock.now()}
            for name in sorted(set(names))
        ]
        if options != PLAIN:
            rows = [{**row, "options": options.text()} for row in rows]
        if rows:
            self._run(lambda own: [self._create(row, own) for row in rows], connection)

    def _create(self, row: dict[str, Any], connection: Connection) -> int:
        """Create the queue of *row*, empty; return 0 if it exists.

        A send trusts its knowledge of queues for a second, and may leave messages without a queue.
        They are older than the new row, which others can neither see nor insert before the commit.
        """
        is_new = count_inserted(connection, self._statements.create_queue, row)
        if is_new:
            connection.execute(self._statements.delete_messages, {"names": [row["name"]]})
        return is_new

    def _remove_left(self, name: str, connection: Connection) -> None:
        """Remove messages that a deleted queue *name* left behind, unless the queue exists again.

        The queue is created for that. On MySQL, a DELETE with a condition on the queue would
        compare new messages with an old answer, and remove messages of a queue that another process
        creates meanwhile.
        """
        if self._create({"name": name, "created": self._clock.now()}, connection):
            connection.execute(self._statements.delete_queues, {"names": [name]})

    def missing(self, names: Collection[str]) -> list[str]:
        """Return the *names* that do not exist, in their order."""
        there = self.existing(names)
        return [name for name in dict.fromkeys(names) if name not in there]

    def existing(self, names: Collection[str]) -> dict[str, QueueOptions]:
        """Return the options of the existing queues among *names*."""
        with self._database.read() as connection:
            return self._existing(names, connection)

    def delete(self, names: Collection[str]) -> None:
        """Delete queues with messages and bindings; a missing queue is fine."""
        which = {"names": [name for name in names if is_queue_name(name)]}

        def remove(connection: Connection) -> None:
            connection.execute(self._statements.delete_queues, which)
            reach("queues.deleted")
            connection.execute(self._statements.delete_bindings, which)
            reach("queues.bindings_deleted")
            connection.execute(self._statements.delete_messages, which)
            reach("queues.messages_deleted")
            connection.execute(self._statements.delete_owners, which)

        if which["names"]:
            self._database.run(remove)
        self._forget(names)

    def options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*; a missing queue has those of a plain queue."""
        return self.existing([queue]).get(queue, PLAIN)

    def count_unexpired(self, queue: str) -> int:
        """Return how many messages of *queue* a consumer of kombu may receive."""
        where = {"queue": queue, **self._database.now_of_host(self._clock)}
        with self._database.read() as connection:
            return int(connection.execute(self._statements.count_unexpired, where).scalar_one())

    def count(self, queue: str) -> int:
        """Return how many messages of *queue* are free to be leased."""
        where = {"queue": queue, **self._database.now_of_host(self._clock)}
        with self._database.read() as connection:
            return int(connection.execute(self._statements.count, where).scalar_one())

    def purge(self, queue: str) -> int:
        """Delete the messages of *queue* that no consumer holds; return how many."""
        where = {"queue": queue, **self._database.now_of_host(self._clock)}
        return self._database.run(lambda own: own.execute(self._statements.purge, where).rowcount)

    def put(
        self,
        rows: Sequence[dict[str, Any]],
        connection: Connection | None,
        *,
        transient: bool = False,
    ) -> Sequence[dict[str, Any]]:
        """Insert the *rows* whose queue exists and has room; return the inserted rows.

        The insert joins the transaction of *connection*, or opens its own. Receivers are woken
        after the commit. A full queue has room if it drops its oldest messages. Raises
        InvalidMessage, with nothing inserted, for a message that the database cannot hold.
        *transient* messages may be lost if PostgreSQL itself crashes: their own commit does not
        wait for its disk.
        """
        if not rows:
            return rows
        names = {row["queue"] for row in rows}

        def insert_sound_row(own: Connection) -> None:
            own.execute(self._statements.send, [shaped({**rows[0], **_SOUND}, PLAIN, None)])

        with refusals(self._database, connection, insert_sound_row, _refused):
            if self._is_quick and connection is None and self._put_alone(rows, transient):
                kept = rows
            elif connection is None:
                kept = self._database.run(lambda own: self._insert(rows, names, own, transient))
            else:
                kept = self._insert(rows, names, connection)
        there = {row["queue"] for row in kept}
        if connection is None:
            reach("queues.sent")
            self._wakeups.notify(there)
        else:
            after_commit(connection, lambda: self._wakeups.notify(there))
        return kept

    def _put_alone(self, rows: Sequence[dict[str, Any]], transient: bool) -> bool:
        """Insert and announce a single row in one round trip, if no other query is needed.

        The answer says whether the queue existed at that moment: if another process has deleted it
        since we checked, the message would wait for a later queue of the same name.
        """
        [row, *others] = rows
        if others:
            return False
        options = self._known_of({row["queue"]}).get(row["queue"])
        if options is None or options.max_length is not None or ends(row, options):
            return False
        if options != PLAIN or asks(row):
            row = shaped(row, options, None)
        form = (transient, tuple(row))
        statement = self._alone.get(form)
        if statement is None:
            made = self._statements.send_and_notify(list(row), lazily=transient)
            asking = made.add_columns(self._is_there)
            statement = self._alone[form] = DriverStatement(asking, self._database.engine)
        queue, payload = row["queue"], self._wakeups.payload_of_own(row["queue"])
        given = {**row, "channel": self._channel, "payload": payload}
        [(*_, is_there)] = self._database.run_alone(statement, given)
        if is_there:
            return True
        self._forget([queue])
        self._database.run(lambda own: self._remove_left(queue, own))
        # A process that created the queue meanwhile may have removed the message, so send it again:
        # rather twice under one id than confirmed without being stored.
        return False

    @property
    def _is_there(self) -> ColumnElement[bool]:
        """The expression that tells whether the queue named ``queue`` exists."""
        name = self._statements.existing_queues.selected_columns["name"]
        return exists().where(name == bindparam("queue"))

    def bind(
        self,
        exchange: str,
        routing_key: str,
        queue: str,
        kind: str,
        connection: Connection | None = None,
    ) -> None:
        """Bind *queue* to kombu's *exchange* of type *kind*, for all processes; twice is fine.

        Raises ConfigurationError for a name that the table cannot keep.
        """
        row = {"exchange": exchange, "routing_key": routing_key, "queue": queue, "kind": kind}
        if (routing_key, queue, kind) not in self.bindings(exchange):
            checked_queue_name(queue)
            _check_binding(exchange, routing_key, kind)
            self._run(lambda own: own.execute(self._statements.bind, [row]), connection)

    def unbind(self, exchange: str, routing_key: str, queue: str) -> None:
        """Undo one ``bind``; a missing binding is fine."""
        if not (_fits(exchange) and _fits(routing_key) and _fits(queue)):
            return
        which = {"exchange": exchange, "routing_key": routing_key, "queue": queue}
        self._database.run(lambda connection: connection.execute(self._statements.unbind, which))

    def delete_exchange(self, exchange: str) -> None:
        """Undo every ``bind`` of *exchange*."""
        if not _fits(exchange):
            return
        which = {"exchange": exchange}
        self._database.run(lambda own: own.execute(self._statements.delete_exchange, which))

    def bindings(self, exchange: str) -> list[tuple[str, str, str]]:
        """Return routing key, queue and type of each binding of *exchange*."""
        if not _fits(exchange):
            return []
        with self._database.read() as connection:
            found = connection.execute(self._statements.bindings_of, {"exchange": exchange})
            return [(row.routing_key, row.queue, row.kind) for row in found]

    def _run(self, work: Callable[[Connection], object], connection: Connection | None) -> None:
        if connection is None:
            self._database.run(work)
        else:
            work(connection)

    def _insert(
        self,
        rows: Sequence[dict[str, Any]],
        names: set[str],
        connection: Connection,
        transient: bool = False,
    ) -> Sequence[dict[str, Any]]:
        if transient:
            commit_lazily(connection)
        known = self._known_of(names)
        if known.keys() != names:
            found = self._existing(names - known.keys(), connection)
            known |= found
            if missing := names - known.keys():
                for name in self._forget(missing):
                    self._remove_left(name, connection)
            # This very transaction may have created the route's queue, and may undo it; or a
            # savepoint may, whose end is not seen here.
            if not connection.in_nested_transaction():
                after_commit(connection, lambda: self._remember(found))
        kept = [row for row in rows if row["queue"] in known] if known.keys() != names else rows
        limited: LimitedQueues | None = None
        if any(options != PLAIN for options in known.values()):
            now_of_host = self._database.now_of_host(self._clock)
            limited = LimitedQueues(self._statements, known, now_of_host, connection)
            kept = limited.fitting(kept)
        routable = kept
        if limited is not None or any(map(asks, routable)):
            needs_time = any(ends(row, known[row["queue"]]) for row in routable)
            now = self._database.now_in(connection, self._clock) if needs_time else None
            routable = [shaped(row, known[row["queue"]], now) for row in routable]
        if routable:
            if self._copies and len(routable) > FEW:
                copy_rows(connection, self._statements.messages, routable)
            else:
                self._insert_each(routable, connection)
            if limited is not None:
                limited.drop_oldest()
            reach("queues.inserted")
            self._notify({row["queue"] for row in kept}, connection)
        return kept

    def _insert_each(self, rows: Sequence[dict[str, Any]], connection: Connection) -> None:
        reason = misfit(connection, rows, _reserve)
        if reason is not None:
            raise InvalidMessage(reason)
        for part in in_statements(connection, rows):
            execute_many(connection, self._statements.send, part)

    def _notify(self, queues: set[str], connection: Connection) -> None:
        if self._channel is not None:
            notify(connection, self._channel, list(queues))

    def _remember(self, found: Mapping[str, QueueOptions]) -> None:
        until = time.monotonic() + _KNOWN_FOR
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known.update((name, (until, options)) for name, options in found.items())

    def _forget(self, names: Collection[str]) -> list[str]:
        """Forget that the queues *names* exist; return the names that were remembered."""
        return [name for name in sorted(names) if self._known.pop(name, None)]

    def _known_of(self, names: set[str]) -> dict[str, QueueOptions]:
        now = time.monotonic()
        known = {name: self._known.get(name, _UNKNOWN) for name in names}
        return {name: options for name, (until, options) in known.items() if until > now}

    def _existing(self, names: Collection[str], connection: Connection) -> dict[str, QueueOptions]:
        possible = [name for name in names if is_queue_name(name)]
        if not possible:
            return {}
        found = connection.execute(self._statements.existing_queues, {"names": possible})
        return {name: options_of(text) for name, text in found}


def _fits(name: str) -> bool:
    return not name or is_queue_name(name)


def _check_binding(exchange: str, routing_key: str, kind: str) -> None:
    for what, name in (("exchange", exchange), ("binding key", routing_key)):
        if not _fits(name) or len(name.encode()) > _BINDING_BYTES:
            raise ConfigurationError(
                f"{what} {name[:80]!r} has {len(name)} characters; the SQL queue keeps at most "
                f"{QUEUE_NAME_LENGTH}, in {_BINDING_BYTES} bytes of UTF-8 without NUL; choose "
                "another name"
            )
    if kind not in _TYPES:
        raise ConfigurationError(
            f"exchange {exchange[:80]!r} has the type {kind!r:.40}; the SQL queue has "
            f"{', '.join(_TYPES)}; declare the exchange with such a type"
        )


def _refused(words: str) -> InvalidMessage:
    return InvalidMessage(f"the database refuses a value of this message: {words}")


def _reserve(row: dict[str, Any]) -> int:
    """Return how many bytes to keep free beside *row*, for the headers of a forward or a failure.

    Without them, a message could arrive that cannot be moved, not even to the error queue.
    """
    return 0 if any(f'"{name}"' in row["headers"] for name in _ADDED) else _RESERVE


# --- messages that PostgreSQL itself moves into queues from rows of another table -----------------
# They become the same rows that ``envelopes.to_row`` would make.

_KEPT_OUT: Final = (*sorted(BROKER_HEADERS), DISPATCHED_AT, RELATED_TO_TIMEOUT, ROUTE)


class PostgreSQLMessageRows:
    """The message table, as ``database.row_moves.MessageRows`` says."""

    def __init__(self, tables: QueueTables, wakeups: QueueWakeups, channel: str | None) -> None:
        self._tables = tables
        self._wakeups = wakeups
        self._channel = channel

    def takes(self, message: FromClause) -> ColumnElement[bool]:
        """Return the condition that a row needs no change except added headers.

        Queues with options need a send, which sets the rank, end and limit. Names are searched for
        in the JSON text. Inside a value, quotes have a backslash before them, so no name is found
        there; a false hit would only have its message sent the usual way.
        """
        queues = self._tables.queues.c
        names = "|".join(name.replace(".", r"\.") for name in _KEPT_OUT)
        return and_(
            message.c.destination.in_(select(queues.name).where(queues.options.is_(None))),
            message.c.message_id != "",
            func.char_length(message.c.content_encoding) <= CONTENT_ENCODING_LENGTH,
            message.c.headers.like("{%}"),
            message.c.headers.op("!~*")(f'"({names})":'),
        )

    def insert(
        self,
        messages: FromClause,
        added: Mapping[str, ColumnElement[str]],
        at: ColumnElement[int],
        *order: ColumnElement[Any],
    ) -> Insert:
        """Return the insert; it draws the sequence numbers, which order a queue, in *order*."""
        source = messages.c
        columns: dict[str, ColumnElement[Any]] = {
            "queue": source.destination,
            "message_id": source.message_id,
            "headers": _with(source.headers, added),
            "body": source.body,
            "content_type": source.content_type,
            "content_encoding": source.content_encoding,
            "enqueued": at,
            "available_at": literal_column("0"),
            "properties": null(),
        }
        rows = select(*columns.values()).order_by(*order)
        return insert(self._tables.messages).from_select(list(columns), rows)

    def announcing(self) -> ColumnElement[Any] | None:
        """Return the expression that wakes receivers in other processes; None if they only poll."""
        if self._channel is None:
            return None
        return func.pg_notify(literal(self._channel), bindparam("announced", type_=Text))

    def announce(self, queues: Collection[str], transaction: Transaction) -> str:
        """Wake the receivers of *queues* in this process; return the payload for the others."""
        after_commit(as_connection(transaction), lambda: self._wakeups.notify(queues))
        return self._wakeups.payload_of_own(*queues)


def _with(headers: ColumnElement[str], added: Mapping[str, ColumnElement[str]]) -> Any:
    """Return the JSON object *headers* with *added* at its end."""
    text: Any = func.left(headers, -1)
    comma: Any = case((headers == "{}", literal("")), else_=literal(","))
    for name, value in added.items():
        spelled = cast(func.to_json(cast(value, Text)), Text)
        text = text.concat(comma).concat(literal(f'"{name}":')).concat(spelled)
        comma = literal(",")
    return text.concat(literal("}"))

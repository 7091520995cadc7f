"""Every SQL statement of the queue, built once per table set; SQLAlchemy caches the SQL text."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, TypeVar

from sqlalchemy import (
    Connection,
    Delete,
    LargeBinary,
    Select,
    Update,
    any_,
    bindparam,
    case,
    delete,
    exc,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.sql.expression import BindParameter, ColumnElement, Executable, Insert

from timeoutmgr.database import Database
from timeoutmgr.database.arrays import NumberArray
from timeoutmgr.database.commits import LAZILY, committed_lazily, set_locally
from timeoutmgr.database.dialects import Dialect
from timeoutmgr.database.engine import BY_INDEX
from timeoutmgr.database.failures import Failure, classify, unavailable
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.resilience.after_fork import cached_property
from timeoutmgr.transport.sql.tables import QueueTables

# --- failures of the database as errors of a transport --------------------------------------------


@contextmanager
def as_transport(database: Database) -> Iterator[None]:
    """Raise TransportUnavailable for an error which means that the queues cannot be reached now."""
    try:
        yield
    except StorageUnavailable as error:
        raise TransportUnavailable(str(error)) from error
    except exc.SQLAlchemyError as error:
        # In a caller's transaction the error is not classified yet.
        if classify(error) is Failure.STATEMENT:
            raise
        raise TransportUnavailable(str(unavailable(error, database.describe()))) from error


# --- plans -------------------------------------------------------------------------------------


def read_by_index(connection: Connection, *, commit_lazily: bool = False) -> None:
    """Have PostgreSQL use an index in each later statement of the transaction.

    The driver prepares the statements, and the server caches their plans. A plan from when the
    queue was empty would read all of a long queue for each batch. Without statistics, the server
    would sort a whole queue for its first hundred messages.

    The transaction may *commit_lazily*, as ``database.commits`` says.
    """
    if connection.dialect.name == "postgresql":
        settings = BY_INDEX | LAZILY if commit_lazily else BY_INDEX
        connection.exec_driver_sql(
            "; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items())
        )


READ_BY_INDEX: Final = select(*set_locally(BY_INDEX))
"""``read_by_index`` as one statement."""
HEAD: Final = 1000
"""Rows searched for leases of dead owners, from the front of the queue, where leases are."""


class _Terms:
    """The expressions that several statements share."""

    def __init__(
        self,
        tables: QueueTables,
        dialect: Dialect,
        *,
        unexpired: bool = False,
        by_priority: bool = False,
    ) -> None:
        messages = tables.messages.c
        self.dialect: Final = dialect
        # In a subquery, PostgreSQL reads the clock once instead of for every row.
        self.now: Final[ColumnElement[int]] = (
            bindparam("now") if dialect.now is None else literal_column(f"(SELECT {dialect.now})")
        )
        self.in_queue: Final = messages.queue == bindparam("queue")
        self.front, self.order = self.in_queue, [messages.sequence]
        if dialect.name == "postgresql":
            # With an equality, it may walk the primary key instead, through the messages of all
            # other queues. Only the queue's own index has this order. Not BETWEEN: SQLAlchemy 2.0
            # writes a collation after each bound, which PostgreSQL refuses there.
            queue: BindParameter[Any] = bindparam("queue")
            self.front = (messages.queue >= queue) & (messages.queue <= queue)
            self.order = [messages.queue, messages.sequence]
        if by_priority:
            # As a literal: a partial index serves no condition on a parameter.
            self.front &= messages.priority < literal_column("0")
            self.order.insert(-1, messages.priority)
        self.free = (messages.available_at <= self.now) & (messages.lease_until <= self.now)
        if unexpired:
            self.free &= messages.discard_at.is_(None) | (messages.discard_at > self.now)
        self.chosen: ColumnElement[bool] = messages.sequence.in_(
            bindparam("sequences", expanding=True)
        )
        if dialect.name == "postgresql":
            # A statement with a parameter for each message would be planned again for each batch.
            numbers: BindParameter[Any] = bindparam("sequences", type_=NumberArray)
            self.chosen = messages.sequence == any_(numbers)


class QueueStatements:
    """The statements on queues, bindings, markers and whole messages.

    The comments name the parameters. A statement that needs the time reads the database's clock;
    SQLite has none, so the time is the parameter *now*.
    """

    def __init__(self, tables: QueueTables, dialect: Dialect) -> None:
        self._terms: Final = (terms := _Terms(tables, dialect))
        queues, messages, bindings = tables.queues.c, tables.messages.c, tables.bindings.c

        # --- queues: name, names
        names: BindParameter[Any] = bindparam("names", expanding=True)
        self.create_queue: Final = insert_missing(insert(tables.queues), dialect)
        self.existing_queues: Final = select(queues.name, queues.options).where(
            queues.name.in_(names)
        )
        self.delete_queues: Final = delete(tables.queues).where(queues.name.in_(names))
        self.delete_messages: Final = delete(tables.messages).where(messages.queue.in_(names))
        self.delete_bindings: Final = delete(tables.bindings).where(bindings.queue.in_(names))
        self.delete_owners: Final = delete(tables.owners).where(tables.owners.c.queue.in_(names))
        self.delete_whole: Final = (
            *(self.delete_queues, self.delete_bindings),
            *(self.delete_messages, self.delete_owners),
        )

        # --- messages: rows; queue, now
        of_queue = terms.in_queue, terms.free
        self.messages: Final = tables.messages
        self.send: Final = insert(tables.messages)
        self.count: Final = select(func.count()).select_from(tables.messages).where(*of_queue)
        self.purge: Final = delete(tables.messages).where(*of_queue)

        # --- a queue with options: queue, now; limit; sequences, dropped
        lasting = _Terms(tables, dialect, unexpired=True)
        self.count_unexpired: Final = self.count.where(lasting.free)
        named = queues.name == bindparam("queue")
        self.lock_queue: Final = select(queues.name).where(named).with_for_update()
        self.oldest: Final = (
            select(messages.sequence)
            .where(*of_queue)
            .order_by(messages.sequence)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True)
        )
        self.delete_chosen: Final = _by_key(delete(tables.messages).where(terms.chosen), dialect)
        self.count_dropped: Final = (
            update(tables.queues).where(named).values(dropped=queues.dropped + bindparam("count"))
        )

        # --- markers: endpoint, marker
        self.insert_marker: Final = insert_missing(insert(tables.markers), dialect)

        # --- bindings: exchange, routing_key, queue, kind
        of_exchange = bindings.exchange == bindparam("exchange")
        self.bind: Final = insert_missing(insert(tables.bindings), dialect)
        self.unbind: Final = delete(tables.bindings).where(
            of_exchange,
            bindings.queue == bindparam("queue"),
            bindings.routing_key == bindparam("routing_key"),
        )
        self.bindings_of: Final = select(bindings.routing_key, bindings.queue, bindings.kind).where(
            of_exchange
        )
        self.delete_exchange: Final = delete(tables.bindings).where(of_exchange)

    @cached_property
    def count_first(self) -> Executable:
        """Return the number of the first *limit* rows, and of free rows among them: queue, now."""
        messages, terms = self.messages.c, self._terms
        first = (
            select(messages.available_at, messages.lease_until)
            .where(terms.front)
            .order_by(*terms.order)
            .limit(bindparam("limit"))
            .subquery("first")
        )
        is_free = (first.c.available_at <= terms.now) & (first.c.lease_until <= terms.now)
        return select(func.count(), func.count(case((is_free, 1))))

    def send_and_notify(self, columns: Sequence[str], *, lazily: bool) -> Select[Any]:
        """Return the insert of a row of *columns* with its NOTIFY (channel, payload).

        As a transaction of its own it may commit *lazily*, as ``database.commits`` says.
        """
        row = self.send.values({name: bindparam(name) for name in columns})
        others = [func.pg_notify(bindparam("channel"), bindparam("payload"))]
        if lazily:
            others += set_locally(LAZILY)
        return select(*others).add_cte(row.cte("sent"))


class FrontStatements:
    """The statements that read a queue from its front, in the order of its columns.

    Parameters: queue, now, limit, inline; of dead owners' leases: queue; owners, last; sequences.
    Where it finds no row, *behind* may find some.
    """

    def __init__(
        self, tables: QueueTables, terms: _Terms, behind: "FrontStatements | None" = None
    ) -> None:
        messages = tables.messages.c
        size = func.length(messages.body)
        self._table, self._terms, self.behind = tables.messages, terms, behind
        self.probe: Final = select(messages.sequence).where(terms.in_queue, terms.free).limit(1)
        self.free_rows: Final[Select[Any]] = (
            select(
                messages.sequence,
                messages.message_id,
                messages.headers,
                # A large body is read only once it is known to fit; most bodies are small.
                case((size <= bindparam("inline"), messages.body)).label("body"),
                messages.content_type,
                messages.content_encoding,
                messages.delivery_count,
                messages.properties,
                size.label("size"),
            )
            .where(terms.front, terms.free)
            .order_by(*terms.order)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True)
        )
        head = (
            select(messages.lease_owner, messages.sequence)
            .where(terms.front)
            .order_by(*terms.order)
            .limit(HEAD)
            .subquery("head")
        )
        self.head_owners: Final = select(head.c.lease_owner, func.max(head.c.sequence)).group_by(
            head.c.lease_owner
        )
        self.of_owners: Final = (
            select(messages.sequence)
            .where(
                terms.front,
                messages.sequence <= bindparam("last"),
                messages.lease_owner.in_(bindparam("owners", expanding=True)),
            )
            .order_by(*terms.order)
            .with_for_update(skip_locked=True)
        )
        self.free_chosen: Final = _by_key(
            update(tables.messages).where(terms.chosen).values(lease_owner=None, lease_until=0),
            terms.dialect,
        )

    # --- on PostgreSQL alone, each a transaction of its own: queue, limit, inline; me, lease

    @cached_property
    def lease_alone(self) -> Select[Any]:
        """Lease the first free rows, and return them in their order."""
        messages, found = self._table.c, self.free_rows.cte("found")
        leased = (
            update(self._table)
            .where(messages.sequence.in_(select(found.c.sequence)))
            .values(
                lease_owner=bindparam("me"),
                lease_until=self._terms.now + bindparam("lease"),
                delivery_count=messages.delivery_count + 1,
            )
        )
        return committed_lazily(select(found).add_cte(leased.cte("leased")))

    @cached_property
    def remove_alone(self) -> Select[Any]:
        """Remove the first free rows, and return them in their order."""
        found = self.free_rows.cte("found")
        chosen = self._table.c.sequence.in_(select(found.c.sequence))
        removed = delete(self._table).where(chosen).cte("removed")
        return committed_lazily(select(found).add_cte(removed))

    @cached_property
    def leases_of(self) -> Select[Any]:
        """Read sequence and delivery count of each lease of *me* in *queue*."""
        messages = self._table.c
        return select(messages.sequence, messages.delivery_count).where(
            self._terms.front, messages.lease_owner == bindparam("me")
        )


class LeaseStatements(FrontStatements):
    """The statements on leases; for parameters and clock see :class:`QueueStatements`.

    They skip locked rows, which another statement is leasing, acknowledging or renewing.
    """

    def __init__(self, tables: QueueTables, dialect: Dialect) -> None:
        terms = _Terms(tables, dialect)
        super().__init__(tables, terms)
        messages, chosen = tables.messages.c, terms.chosen
        # For kombu's consumers, which never see a message whose time to live is over.
        self.unexpired: Final = FrontStatements(tables, _Terms(tables, dialect, unexpired=True))
        # A send may take the queue for its namesake without priorities that was deleted just now.
        self.by_priority: Final = FrontStatements(
            tables, _Terms(tables, dialect, unexpired=True, by_priority=True), self.unexpired
        )

        # --- leases: now; me, sequences, lease; sequence, start, length
        mine = messages.lease_owner == bindparam("me")
        self.bodies: Final = select(messages.sequence, messages.body).where(chosen)
        self.body_slice: Final = select(
            func.substr(messages.body, bindparam("start"), bindparam("length"), type_=LargeBinary())
        ).where(messages.sequence == bindparam("sequence"))
        lease_until = terms.now + bindparam("lease")
        self.renew: Final = _by_key(
            update(tables.messages).where(chosen).values(lease_until=lease_until), dialect
        )
        self.lease: Final = self.renew.values(
            lease_owner=bindparam("me"), delivery_count=messages.delivery_count + 1
        )
        self.leased: Final = (
            select(messages.sequence)
            .where(chosen, mine)
            .order_by(messages.sequence)
            .with_for_update(skip_locked=True)
        )
        self.deliveries: Final = select(messages.sequence, messages.delivery_count).where(
            chosen, mine
        )

        # --- settlement: me, delivery, sequences. The delivery count is the fencing token between
        # two leases of one owner.
        this_delivery = chosen & mine & (messages.delivery_count == bindparam("delivery"))
        self.ack: Final = _by_key(delete(tables.messages).where(this_delivery), dialect)
        self.remove: Final = _by_key(delete(tables.messages).where(chosen), dialect)
        self._this_delivery: Final = this_delivery
        self.release: Final = _by_key(
            update(tables.messages).where(this_delivery).values(lease_owner=None, lease_until=0),
            dialect,
        )

    @cached_property
    def ack_alone(self) -> Select[Any]:
        """Settle as ``ack``, on PostgreSQL and as a transaction of its own; return how many."""
        met = delete(self._table).where(self._this_delivery).returning(self._table.c.sequence)
        return committed_lazily(select(func.count()).select_from(met.cte("met")))


class ExpiryStatements:
    """The statements on expired messages that no consumer has leased."""

    def __init__(self, tables: QueueTables, dialect: Dialect) -> None:
        terms = _Terms(tables, dialect)
        messages = tables.messages.c

        # --- now, limit; sequences. In the order of the index on the first of these columns.
        size = func.length(messages.body).label("size")
        expired: Select[Any] = (
            select(messages.sequence, size)
            # MariaDB cannot seek in the index by a running clock, but it can skip the NULLs.
            .where(messages.expires_at.is_not(None), messages.expires_at <= terms.now)
            .where(messages.lease_until <= terms.now)
            .order_by(messages.expires_at)
            .limit(bindparam("limit"))
        )
        self.probe: Final = expired
        self.expired: Final[Select[Any]] = expired.with_for_update(skip_locked=True)
        self.whole: Final = (
            select(tables.messages, size)
            .where(terms.chosen)
            .order_by(messages.expires_at, messages.sequence)
        )
        self.delete_expired: Final = _by_key(delete(tables.messages).where(terms.chosen), dialect)


# Built once for the tables of a prefix, as ``tables`` itself is.
queue_statements: Final = lru_cache(maxsize=16)(QueueStatements)
lease_statements: Final = lru_cache(maxsize=16)(LeaseStatements)
expiry_statements: Final = lru_cache(maxsize=16)(ExpiryStatements)

_Statement = TypeVar("_Statement", Update, Delete)


def _by_key(statement: _Statement, dialect: Dialect) -> _Statement:
    """Return *statement*, which names rows by primary key, so that it reads no other rows.

    MariaDB reads a small table whole, whatever keys the statement names, and waits for each row
    that another transaction has locked: acknowledgements of different messages would deadlock.
    """
    if dialect.name not in ("mysql", "mariadb"):
        return statement
    hinted = statement.with_hint("FORCE INDEX (PRIMARY)")
    if isinstance(hinted, Delete):
        # DELETE takes a hint only if the table is named twice.
        table = mysql.dialect().identifier_preparer.format_table(hinted.table)
        return hinted.prefix_with(table)
    return hinted


def insert_missing(statement: Insert, dialect: Dialect) -> Executable:
    """Return *statement* in a form that leaves existing rows as they are."""
    if dialect.name == "sqlite":
        return statement.prefix_with("OR IGNORE")
    if dialect.name == "postgresql":
        table: Any = statement.table
        return postgresql.insert(table).on_conflict_do_nothing()
    return statement.prefix_with("IGNORE")

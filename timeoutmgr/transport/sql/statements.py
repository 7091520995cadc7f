"""Every SQL statement of the queue, made once per table set; SQLAlchemy caches their text."""

from typing import Any, Final

from sqlalchemy import Select, bindparam, case, delete, func, insert, literal_column, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.expression import ColumnElement, Executable, Insert

from timeoutmgr.database.dialects import Dialect
from timeoutmgr.transport.sql.tables import QueueTables

HEAD: Final = 1000
"""How many rows from the front are searched for leases of the dead: leases are at the front."""


class Statements:
    """The statements; parameters are named in each comment.

    Where a statement needs the time it takes the database's clock; on SQLite, which has none, the
    parameter *now*. Locked rows are passed by: they are being leased, acknowledged or renewed.
    """

    def __init__(self, tables: QueueTables, dialect: Dialect) -> None:
        queues, messages, bindings = tables.queues.c, tables.messages.c, tables.bindings.c
        # In a subquery PostgreSQL reads the clock once, not for every row.
        now: ColumnElement[int] = (
            bindparam("now") if dialect.now is None else literal_column(f"(SELECT {dialect.now})")
        )
        in_queue = messages.queue == bindparam("queue")
        front, order = in_queue, [messages.sequence]
        if dialect.name == "postgresql":
            # With an equality it may walk the primary key instead, through all that rests in
            # other queues. Only the queue's own index has this order.
            front = messages.queue.between(bindparam("queue"), bindparam("queue"))
            order = [messages.queue, messages.sequence]
        free = (messages.available_at <= now) & (messages.lease_until <= now)
        chosen = messages.sequence.in_(bindparam("sequences", expanding=True))
        mine = messages.lease_owner == bindparam("me")
        # The delivery count is the fence between two leases of one owner.
        this_delivery = chosen & mine & (messages.delivery_count == bindparam("delivery"))

        self.needs_now: Final = dialect.now is None

        # --- queues: name, names
        self.create_queue: Final = _insert_missing(insert(tables.queues), dialect)
        self.existing_queues: Final = select(queues.name).where(
            queues.name.in_(bindparam("names", expanding=True))
        )
        self.delete_queues: Final = delete(tables.queues).where(
            queues.name.in_(bindparam("names", expanding=True))
        )
        self.delete_messages: Final = delete(tables.messages).where(
            messages.queue.in_(bindparam("names", expanding=True))
        )
        self.delete_bindings: Final = delete(tables.bindings).where(
            bindings.queue.in_(bindparam("names", expanding=True))
        )

        # --- messages: rows; queue, now
        self.messages: Final = tables.messages
        self.send: Final = insert(tables.messages)
        self.count: Final = select(func.count()).select_from(tables.messages).where(in_queue, free)
        self.probe: Final = select(messages.sequence).where(in_queue, free).limit(1)
        self.purge: Final = delete(tables.messages).where(in_queue, free)

        # --- leases: queue, limit, inline, now; me, sequences, lease
        size = func.length(messages.body)
        self.bodies: Final = select(messages.sequence, messages.body).where(chosen)
        self.free_rows: Final[Select[Any]] = (
            select(
                messages.sequence,
                messages.message_id,
                messages.headers,
                # A large body is read once it is known to fit; most are not large.
                case((size <= bindparam("inline"), messages.body)).label("body"),
                messages.content_type,
                messages.content_encoding,
                messages.delivery_count,
                messages.properties,
                size.label("size"),
            )
            .where(front, free)
            .order_by(*order)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True)
        )
        lease_until = now + bindparam("lease")
        self.lease: Final = (
            update(tables.messages)
            .where(chosen)
            .values(
                lease_owner=bindparam("me"),
                lease_until=lease_until,
                delivery_count=messages.delivery_count + 1,
            )
        )
        self.held: Final = (
            select(messages.sequence)
            .where(chosen, mine)
            .order_by(messages.sequence)
            .with_for_update(skip_locked=True)
        )
        self.deliveries: Final = select(messages.sequence, messages.delivery_count).where(
            chosen, mine
        )
        self.renew: Final = update(tables.messages).where(chosen).values(lease_until=lease_until)

        # --- settling: me, delivery, sequences
        self.ack: Final = delete(tables.messages).where(this_delivery)
        self.release: Final = (
            update(tables.messages).where(this_delivery).values(lease_owner=None, lease_until=0)
        )

        # --- leases of the dead: queue, me; owners; sequences
        head = (
            select(messages.lease_owner).where(front).order_by(*order).limit(HEAD).subquery("head")
        )
        self.head_owners: Final = select(head.c.lease_owner).distinct()
        self.of_owners: Final = (
            select(messages.sequence)
            .where(front, messages.lease_owner.in_(bindparam("owners", expanding=True)))
            .order_by(*order)
            .limit(HEAD)
            .with_for_update(skip_locked=True)
        )
        self.free_chosen: Final = (
            update(tables.messages).where(chosen).values(lease_owner=None, lease_until=0)
        )

        # --- markers: endpoint, marker
        self.insert_marker: Final = _insert_missing(insert(tables.markers), dialect)

        # --- bindings: exchange, routing_key, queue, kind
        self.bind: Final = _insert_missing(insert(tables.bindings), dialect)
        self.unbind: Final = delete(tables.bindings).where(
            bindings.exchange == bindparam("exchange"),
            bindings.queue == bindparam("queue"),
            bindings.routing_key == bindparam("routing_key"),
        )
        self.bindings_of: Final = select(bindings.routing_key, bindings.queue, bindings.kind).where(
            bindings.exchange == bindparam("exchange")
        )
        self.delete_exchange: Final = delete(tables.bindings).where(
            bindings.exchange == bindparam("exchange")
        )


def _insert_missing(statement: Insert, dialect: Dialect) -> Executable:
    """Return *statement* so that a row which exists is left as it is."""
    if dialect.name == "sqlite":
        return statement.prefix_with("OR IGNORE")
    if dialect.name == "postgresql":
        table: Any = statement.table
        return postgresql.insert(table).on_conflict_do_nothing()
    return statement.prefix_with("IGNORE")

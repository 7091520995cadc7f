"""Sends inside a caller's own database transaction: a rollback undoes the message too."""

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError, OperationalError

from timeoutmgr.contracts import RepeatKind, SharedDatabase
from timeoutmgr.database import Database, as_database, same_database
from timeoutmgr.database.borrowed import DriverTransaction, borrowed
from timeoutmgr.database.commits import after_commit
from timeoutmgr.database.drivers import DriverConnection, driver_of, unusable
from timeoutmgr.database.failures import is_aborted
from timeoutmgr.errors import CombinationRefused, TimeoutManagerError, TransportUnavailable
from timeoutmgr.message.headers import ROUTE
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.routes import wake_manager
from timeoutmgr.sender.composer import Composed, Sent
from timeoutmgr.sender.sender import Outlet
from timeoutmgr.transport.sql.statements import as_transport
from timeoutmgr.transport.work import require_confirmed

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session

    CallerSession: TypeAlias = (
        Session | scoped_session[Any] | Connection | DriverConnection | DriverTransaction
    )

logger = logging.getLogger(__name__)


@runtime_checkable
class _OrmSession(Protocol):
    """A session of SQLAlchemy's ORM."""

    def connection(self) -> Connection:
        """Return the connection of the session's transaction."""
        ...

    def query(self) -> object:
        """Return a query; no asyncio session has this method."""
        ...


@runtime_checkable
class _OnLoop(Protocol):
    """An asyncio session or connection of SQLAlchemy, whose statements are awaited."""

    def run_sync(self, call: object) -> object:
        """Call *call* with the synchronous session."""
        ...


def require_endpoint_of(session: object, *, on_loop: bool) -> None:
    """Raise CombinationRefused for a *session* that needs the other class of endpoints."""
    if isinstance(session, _OnLoop) != on_loop:
        raise unusable(
            session,
            "AsyncEndpoint sends inside an AsyncSession or AsyncConnection, Endpoint inside others",
            "Send by an endpoint of the other class, or give a session of the other kind (of an "
            "async_scoped_session the session that a call of it returns).",
        )


@contextmanager
def callers_connection(outlet: Outlet, session: "CallerSession") -> Iterator[Connection]:
    """Yield the connection of the caller's *session*; the caller keeps the transaction.

    Raises CombinationRefused for a connection outside of a transaction or in a failed one, a
    driver's connection to a database without the queues or timeouts, and a session that gives no
    connection.
    """
    require_endpoint_of(session, on_loop=False)
    try:
        if isinstance(session, Connection | _OrmSession):
            yield lent(session)
            return
        if not isinstance(session, DriverTransaction):
            session = DriverTransaction(connection=session)
        with borrowed(session, _databases(outlet)) as connection:
            yield connection
    except DBAPIError as error:
        if not is_aborted(error):
            raise
        raise unusable(
            session,
            "an earlier statement failed, and PostgreSQL takes no other in that transaction",
            "Roll back before the send; a savepoint around what may fail spares the rest.",
        ) from error


def lent(session: Connection | _OrmSession) -> Connection:
    """Return the connection of *session*; raise CombinationRefused without a transaction."""
    try:
        return _in_transaction(session if isinstance(session, Connection) else session.connection())
    except InvalidRequestError as error:
        raise unusable(
            session,
            f"it lends no connection: {on_one_line(error)}",
            "Give an open connection, or a Session that has an engine and no failed transaction.",
        ) from error


def _in_transaction(connection: Connection) -> Connection:
    """Return *connection*; raise CombinationRefused if its driver commits each statement.

    The driver knows this without a round trip.
    """
    driver = connection.connection.dbapi_connection
    if driver is None:
        return connection
    if connection.dialect.name == "sqlite" and not connection.in_transaction():
        connection.begin()  # its listeners may begin the driver's transaction
    try:
        is_safe = driver_of(driver).is_in_transaction(driver)
    except CombinationRefused:  # a driver that only SQLAlchemy supports, such as psycopg2
        is_safe = getattr(driver, "autocommit", False) is not True
    if is_safe:
        return connection
    raise CombinationRefused(
        "session= with a connection in AUTOCOMMIT",
        "no transaction is open, so a rollback of the caller could not undo the send",
        "Use a connection with another isolation_level, or send without session.",
    )


def _stored_in(outlet: Outlet) -> SharedDatabase | None:
    """Return the database of the endpoint's own store, or None."""
    return None if outlet.direct is None else outlet.direct.database


def _databases(outlet: Outlet) -> list[Database]:
    shared = (outlet.transport.database, _stored_in(outlet))
    return [as_database(each) for each in shared if each is not None]


def send_inside(outlet: Outlet, composed: Composed, connection: Connection) -> Sent:
    """Enqueue *composed* in the transaction of *connection*; return the result for its sender.

    If the queues are in that database, insert a row into its queue. Otherwise, if the message is
    delayed and the timeouts are in that database, store the timeout itself, by the satellite's
    rules. A delayed message of another program is stored directly if possible, because that program
    cancels it in the store. An id that the store knows is answered at once. Raises IdInUse, and
    CombinationRefused if neither queues nor timeouts are there.
    """
    if composed.final_queue is not None and outlet.check_destinations:
        outlet.sender.require_queues([composed.final_queue])
    _begin(connection)
    for database in {*_databases(outlet)}:
        if _is_in(database, connection):
            own_tables = partial(outlet.sender.wait_for, database.own_tables)
            database.unqualified.require("session=", connection, own_tables)
    can_store = composed.due is not None and _is_in(_stored_in(outlet), connection)
    is_foreign = ROUTE in composed.outgoing.message.headers
    if _is_in(outlet.transport.database, connection) and not (can_store and is_foreign):
        answered = composed.answered(_examined(outlet, composed, connection))
        if answered.repeat is not RepeatKind.CONFLICT:
            _enqueue(outlet, composed, connection)
        return answered.sent
    direct = outlet.direct
    if can_store and direct is not None and direct.database is not None:
        if direct.start is not None:
            outlet.sender.wait_for(direct.start)
        outlet.policy.before_storing([composed.outgoing], connection)
        with as_transport(as_database(direct.database)):
            [repeat] = direct.store([composed.outgoing.message], connection)
        _wake_on_commit(outlet, composed, connection)
        return composed.answered(repeat).sent
    if direct is not None and _is_in(_stored_in(outlet), connection):
        raise CombinationRefused(
            "session=",
            "only a delayed message can join this transaction, since the queues are elsewhere",
            "Send it without session after the commit, or delay it.",
        )
    raise CombinationRefused(
        "session=",
        "neither the queues nor the timeouts of this endpoint live in the session's database",
        "Use the session's database for the SQL queue or the persistence, or send without session.",
    )


def time_in(outlet: Outlet, connection: Connection) -> Micros | None:
    """Return the time of *connection*'s database; None if only the host's clock counts.

    Raises TransportUnavailable.
    """
    for database in _databases(outlet):
        if _is_in(database, connection):
            if database.dialect.now is None:
                return None
            with as_transport(database):
                return database.now_in(connection)
    return None


def _examined(outlet: Outlet, composed: Composed, connection: Connection) -> RepeatKind | None:
    """Return the store's answer about the message's id, if the store is in this database."""
    direct = outlet.direct
    if direct is None or direct.examine is None:
        return None
    if composed.due is None or not composed.may_repeat or not _is_in(direct.database, connection):
        return None
    return direct.examine(composed.outgoing.message, connection)


_WRITE: Final = "PRAGMA incremental_vacuum(1)"
"""Statement that locks a SQLite file for writing, whatever tables the file has.

It changes a file only with incremental vacuum: then it frees a page.
"""


def _begin(connection: Connection) -> None:
    """Ensure that the caller's transaction in SQLite has begun, and lock the file before any read.

    The driver begins a transaction with the first change, but not with a savepoint: releasing an
    outermost savepoint would commit, and a rollback by the caller would come too late. After a read
    SQLite refuses the lock at once if another process has committed since.
    """
    if connection.dialect.name != "sqlite":
        return
    driver = connection.connection.dbapi_connection
    if driver is None:
        return
    begun = getattr(driver, "in_transaction", True)
    try:
        connection.exec_driver_sql(_WRITE if begun else "BEGIN IMMEDIATE").close()
    except OperationalError as error:
        raise TransportUnavailable(
            f"the transaction of session= cannot write to {connection.engine.url.database}: "
            f"{error.orig}; another connection writes, or has written since this transaction began "
            "to read. Begin with BEGIN IMMEDIATE, and give the connection a longer timeout"
        ) from error


def _is_in(shared: SharedDatabase | None, connection: Connection) -> bool:
    return shared is not None and same_database(as_database(shared).url, connection.engine.url)


def _enqueue(outlet: Outlet, composed: Composed, connection: Connection) -> None:
    with closing(outlet.transport.session()) as session:
        wrapped = outlet.policy.wrap(session)
        results = wrapped.send([composed.outgoing], transaction=connection)
    require_confirmed([composed.outgoing], results)


def _wake_on_commit(outlet: Outlet, composed: Composed, connection: Connection) -> None:
    """Wake the poller after the caller's commit; at once if the commit cannot be observed.

    A wake names the due time at which the poller polls, so it may come before the commit.
    """
    due = composed.due
    assert due is not None, "only delayed messages are stored"
    if not after_commit(connection, lambda: wake_or_wait(outlet, due)):
        wake_or_wait(outlet, due)


_POLLED_BEFORE: Final = 120_000_000
"""Twice the longest poll interval: by then each poller has polled, even if clocks differ."""


def wake_or_wait(outlet: Outlet, due: Micros) -> None:
    """Notify the manager, through its queue, of a row that was stored or moved directly.

    The row is already durable: if the wake is lost, the row is late by at most one poll. A row that
    is due after the next poll needs no wake: a wake costs a send, and would stay in the queue of an
    endpoint that runs nowhere.
    """
    if due - outlet.clock.now() > _POLLED_BEFORE:
        return
    address = outlet.manager_address
    assert address is not None, "what is stored here has a manager"
    try:
        outlet.sender.send([wake_manager(address, due, outlet.new_id())])
    except TimeoutManagerError as error:
        logger.warning(
            "sender could not wake the poller of %s, which polls within a minute: %s",
            outlet.endpoint,
            on_one_line(error),
            extra={"event": "wake_not_sent", "endpoint": outlet.endpoint},
        )

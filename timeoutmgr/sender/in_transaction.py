"""Sending inside a caller's own database transaction: the message exists if the commit does."""

import logging
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from timeoutmgr.contracts import RepeatKind, SharedDatabase
from timeoutmgr.database import as_database, same_database
from timeoutmgr.database.commits import after_commit
from timeoutmgr.errors import CombinationRefused, TimeoutManagerError
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.routes import wake_manager
from timeoutmgr.sender.composer import Composed, Sent
from timeoutmgr.sender.sender import Outlet
from timeoutmgr.transport.sql.statements import as_transport
from timeoutmgr.transport.work import require_confirmed

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)


def send_inside(outlet: Outlet, composed: Composed, session: "Session | Connection") -> Sent:
    """Enqueue *composed* in the transaction of *session*; return the answer for its sender.

    As the row of its queue where queues live in that database; else, if it is delayed and the
    timeouts live there, as the stored timeout itself, by the satellite's own rules. An id that
    the store knows is answered at once. Raises CombinationRefused where neither does, and IdInUse.
    """
    connection = session if isinstance(session, Connection) else session.connection()
    if composed.due is not None and outlet.check_destinations:
        outlet.sender.require_queues([composed.sent.destination])
    _begin(connection)
    if _is_in(outlet.transport.database, connection):
        answered = composed.answered(_examined(outlet, composed, connection))
        if answered.sent.repeat is not RepeatKind.CONFLICT:
            _enqueue(outlet, composed, connection)
        return answered.sent
    direct = outlet.direct
    if composed.due is not None and direct is not None and _is_in(direct.database, connection):
        if direct.start is not None:
            direct.start()
        outlet.policy.before_storing([composed.outgoing], connection)
        [repeat] = direct.store([composed.outgoing.message], connection)
        _wake_on_commit(outlet, composed, connection)
        return composed.answered(repeat).sent
    raise CombinationRefused(
        "session=",
        "neither the queues nor the timeouts of this endpoint live in the session's database",
        "Use the session's database for the SQL queue or the persistence, or send without session.",
    )


def time_in(outlet: Outlet, session: "Session | Connection") -> Micros | None:
    """Return the time of the database that *session* is in; None where only the host's counts.

    Raises TransportUnavailable.
    """
    connection = session if isinstance(session, Connection) else session.connection()
    stored_in = None if outlet.direct is None else outlet.direct.database
    for shared in (outlet.transport.database, stored_in):
        if shared is not None and _is_in(shared, connection):
            database = as_database(shared)
            if database.dialect.now is None:
                return None
            with as_transport(database):
                return database.now_in(connection)
    return None


def _examined(outlet: Outlet, composed: Composed, connection: Connection) -> RepeatKind | None:
    """Return the store's answer on the message's id, if the store is in this very database."""
    direct = outlet.direct
    if direct is None or direct.examine is None:
        return None
    if composed.due is None or not composed.may_repeat or not _is_in(direct.database, connection):
        return None
    return direct.examine(composed.outgoing.message, connection)


def _begin(connection: Connection) -> None:
    """Begin the caller's transaction in SQLite for sure, if it is not yet.

    The driver's own way begins with the first change, but not with a savepoint: releasing an
    outermost savepoint would commit, and a rollback of the caller come too late.
    """
    if connection.dialect.name == "sqlite":
        driver = connection.connection.dbapi_connection
        if driver is not None and not getattr(driver, "in_transaction", True):
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _is_in(shared: SharedDatabase | None, connection: Connection) -> bool:
    return shared is not None and same_database(as_database(shared).url, connection.engine.url)


def _enqueue(outlet: Outlet, composed: Composed, connection: Connection) -> None:
    session = outlet.transport.session()
    try:
        wrapped = outlet.policy.wrap(session)
        results = wrapped.send([composed.outgoing], transaction=connection)
    finally:
        session.close()
    require_confirmed([composed.outgoing], results)


def _wake_on_commit(outlet: Outlet, composed: Composed, connection: Connection) -> None:
    """Tell the poller once the caller has committed."""
    due = composed.due
    assert due is not None, "only delayed messages are stored"
    after_commit(connection, lambda: wake_or_wait(outlet, due))


def wake_or_wait(outlet: Outlet, due: Micros) -> None:
    """Tell the manager, through its queue, of a row that was stored past it.

    The row is durable by now; should the wake be lost, it is late by at most one poll.
    """
    address = outlet.manager_address
    assert address is not None, "what is stored here has a manager"
    try:
        outlet.sender.send([wake_manager(address, due, outlet.new_id())])
    except TimeoutManagerError as error:
        logger.warning(
            "sender could not notify the poller, the timeout waits for the next poll: %s",
            on_one_line(error),
            extra={"event": "wake_not_sent", "endpoint": outlet.endpoint},
        )

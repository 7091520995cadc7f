"""Checks of pooled connections: those closed, read-only or interrupted are not lent."""

import select
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import Engine, event, exc
from sqlalchemy.engine import ExceptionContext

from timeoutmgr.database.failures import is_read_only


@runtime_checkable
class _HasDescriptor(Protocol):
    """A connection of psycopg."""

    info: Any

    def fileno(self) -> int: ...


@runtime_checkable
class _HasSocket(Protocol):
    """A connection of PyMySQL."""

    _sock: Any


Check = Callable[[Any, dict[Any, Any], bool], None]
"""Called with the driver's connection, the pool's info about it, and whether it is new."""


def replace_closed(engine: Engine, checks: Iterable[Check]) -> None:
    """Make the pool of *engine* replace a connection that the server has closed.

    Call *checks* before the pool lends a connection; InvalidatePoolError replaces the connection.

    A restart, a proxy or the ``wait_timeout`` of MySQL closes idle connections. The next send then
    failed, although the server had been back for hours. The socket shows this without a round trip:
    a connection without a statement has nothing to read except its end.
    """

    @event.listens_for(engine, "checkout")
    def ask(connection: Any, record: Any, _lent: Any) -> None:
        is_new = replace_closed not in record.info
        record.info[replace_closed] = True
        try:
            # A notice or a session ticket of TLS is not the end.
            is_asked = has_something_to_read(descriptor_of(connection))
            if is_asked and not engine.dialect.do_ping(connection):
                raise engine.dialect.loaded_dbapi.OperationalError("the server closed it")
            for check in checks:
                check(connection, record.info, is_new)
        except engine.dialect.loaded_dbapi.Error as error:
            if is_new:
                raise  # the pool would end its tries in an error that shows no cause
            raise exc.InvalidatePoolError("the server closed it") from error


def replace_unusable(engine: Engine) -> None:
    """Make the pool of *engine* replace its sessions if a session turns out to be read-only.

    A session that began in a read-only window, or on the old server of a switch-over, stays
    read-only: the pool lent it again and again, and the endpoint stood still until a restart. An
    error in a savepoint is the fault of a handler, or of a foreign table, and fails its message.

    A session whose answer was not awaited is replaced alone. A signal, as of Celery's soft time
    limit, interrupts the wait; the error of the rollback would replace the error that it raises.
    """

    @event.listens_for(engine, "handle_error")
    def judge(context: ExceptionContext) -> None:
        error, connection = context.sqlalchemy_exception, context.connection
        lent = connection.connection if connection and not connection.invalidated else None
        if error is None and lent and is_interrupted(lent.driver_connection):
            context.is_disconnect, context.invalidate_pool_on_disconnect = True, False
        if error is not None and is_read_only(error):
            context.is_disconnect |= not (connection and connection.in_nested_transaction())


def is_interrupted(driver_connection: Any) -> bool:
    """Return whether the connection's last statement still has an answer to come."""
    if isinstance(driver_connection, _HasDescriptor):
        return bool(driver_connection.info.transaction_status.name == "ACTIVE")
    return isinstance(driver_connection, _HasSocket) and driver_connection._sock is None


def descriptor_of(driver_connection: Any) -> int | None:
    """Return the file descriptor of the connection's socket; None if the driver has none."""
    if isinstance(driver_connection, _HasDescriptor):
        return driver_connection.fileno()
    if isinstance(driver_connection, _HasSocket) and driver_connection._sock is not None:
        return int(driver_connection._sock.fileno())
    return None


def has_something_to_read(descriptor: int | None) -> bool:
    """Return whether the socket *descriptor* has data, or its end; False for None."""
    if descriptor is None or descriptor < 0:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))

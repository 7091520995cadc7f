"""Connections that a server has closed while they were idle, which are not lent any more."""

import select
from typing import Any

from sqlalchemy import Engine, event, exc


def replace_closed(engine: Engine) -> None:
    """Have the pool of *engine* lend a new connection in place of one that the server has closed.

    A restart, a proxy or the ``wait_timeout`` of MySQL closes idle connections. Where a send came
    next, it failed, though the server had been back for hours. The socket shows it without a round
    trip: nothing is to be read from a connection that has no statement, but its end.
    """

    @event.listens_for(engine, "checkout")
    def ask(connection: Any, _record: Any, _lent: Any) -> None:
        try:
            # A notice, or a session ticket of TLS, is no end.
            is_open = not _has_something_to_read(connection) or engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise exc.InvalidatePoolError("the server closed it") from error
        if not is_open:
            raise exc.InvalidatePoolError("the server closed it")


def descriptor_of(driver_connection: Any) -> int | None:
    """Return the file descriptor of the connection's socket; None where the driver shows none."""
    if hasattr(driver_connection, "fileno"):
        return int(driver_connection.fileno())
    has_socket = hasattr(driver_connection, "_sock") and driver_connection._sock  # PyMySQL's
    return int(driver_connection._sock.fileno()) if has_socket else None


def _has_something_to_read(connection: Any) -> bool:
    descriptor = descriptor_of(connection)
    if descriptor is None or descriptor < 0:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))

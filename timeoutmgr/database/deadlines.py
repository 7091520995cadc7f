"""A server that takes a statement and never answers must become an error, not a wait.

TCP's own time-outs do not see it: a stopped server, a proxy or a load balancer whose back end is
gone still acknowledges packets. An outage that blocks its own detection would never be told.
"""

import time
from collections.abc import Generator
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

ANSWER: Final = 60.0
"""Seconds that a statement may be without any sign of the server."""


def bound_answers(engine: Engine, connect_timeout: float) -> None:
    """Have connections of *engine* fail when the server is silent for too long."""
    if engine.dialect.driver == "psycopg":
        _bound_psycopg(engine)
    elif engine.dialect.driver == "pymysql":
        _bound_pymysql(engine, connect_timeout)


def be_patient(connection: Connection) -> None:
    """Have *connection*, one of PostgreSQL's, wait for answers however long they take.

    For a statement that works for hours and says nothing meanwhile; whoever waits for it has to be
    able to give it up. Not for a connection of a pool: it stays so. Of a host that is gone, though
    not of a server that hangs, the keepalives still tell.
    """
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "is_patient"):  # another driver's are not bounded
        driver.is_patient = True


def _bound_psycopg(engine: Engine) -> None:
    import psycopg

    class BoundedConnection(psycopg.Connection[Any]):
        """Waits for an answer no longer than ANSWER, if it is not patient."""

        is_patient = False

        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            """Complete *gen*, or close the connection and raise OperationalError."""
            if self.is_patient:
                return super().wait(gen, *args, **kwargs)
            try:
                return super().wait(_bounded(gen, ANSWER), *args, **kwargs)
            except _Silent as error:
                self.pgconn.finish()  # what it would answer later belongs to nobody
                raise psycopg.OperationalError(str(error)) from error

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        return BoundedConnection.connect(*arguments, **parameters)


def _bound_pymysql(engine: Engine, connect_timeout: float) -> None:
    import pymysql

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        # The greeting is read with the read time-out; a silent server is seen no sooner else.
        quick = {"read_timeout": connect_timeout, "write_timeout": connect_timeout}
        connection: Any = pymysql.connect(*arguments, **{**parameters, **quick})
        connection._read_timeout = connection._write_timeout = ANSWER
        return connection


class _Silent(Exception):
    """No sign of the server for too long."""


def _bounded(wrapped: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """Yield and return what *wrapped* does; raise _Silent when nothing was ready for *seconds*.

    psycopg sends a falsy value at every interval in which the socket was not ready.
    """
    deadline = time.monotonic() + seconds
    try:
        wanted = next(wrapped)
        while True:
            ready = yield wanted
            if ready:
                deadline = time.monotonic() + seconds
            elif time.monotonic() > deadline:
                raise _Silent(f"no answer from the server for {seconds:g} s")
            wanted = wrapped.send(ready)
    except StopIteration as end:
        return end.value

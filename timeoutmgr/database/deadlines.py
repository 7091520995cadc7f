"""Deadlines of answers: a server that accepts a statement and never answers causes an error.

TCP's own time-outs do not see it: a stopped server, a proxy or a load balancer whose back end is
gone still acknowledges packets. An outage that blocks its own detection would never be reported.
"""

import time
from collections.abc import Callable, Generator
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

from timeoutmgr.contracts.answers import LONGEST, Answers

CR_SERVER_LOST: Final = 2013
_GIVEN_UP: Final = "the server was silent while this process ended; it is not asked any more"
ANSWER: Final = LONGEST
"""Seconds that a statement may wait without any sign of the server, unless a limit is shorter."""
_POOLER: Final = "; or the pooler has too few sessions of the server (its default_pool_size)"


def bound_answers(
    engine: Engine, connect_timeout: float, answers: Answers, *, has_pooler: bool
) -> None:
    """Make connections of *engine* fail when the server is silent for too long.

    If it *has_pooler*, the pooler may be silent because it waits for a session.
    """
    if engine.dialect.driver == "psycopg":
        _bound_psycopg(engine, answers, _POOLER if has_pooler else "")
    elif engine.dialect.driver == "pymysql":
        _bound_pymysql(engine, connect_timeout, answers)


def be_patient(connection: Connection) -> None:
    """Make *connection* wait for answers without a limit.

    For a statement that runs silently for hours; its caller must be able to give it up. Not for a
    connection of a pool, because the setting stays. Keepalives still detect a host that is gone,
    but not a server that hangs.
    """
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "is_patient"):  # other connections have no bound
        driver.is_patient = True


def _bound_psycopg(engine: Engine, answers: Answers, cause: str) -> None:
    import psycopg

    class PsycopgConnection(psycopg.Connection[Any]):
        """A connection that limits its wait for an answer, unless it is patient."""

        is_patient = False

        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            """Complete *gen*, or close the connection and raise OperationalError."""
            if self.is_patient:
                return super().wait(gen, *args, **kwargs)
            try:
                with answers.waiting(self.fileno()):
                    return super().wait(_bounded(gen, answers, cause), *args, **kwargs)
            except _Silent as error:
                self.pgconn.finish()  # a late answer would belong to no statement
                raise psycopg.OperationalError(str(error)) from error

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        if answers.is_given_up:
            raise psycopg.OperationalError(_GIVEN_UP)
        try:
            with answers.waiting(None):
                connected = PsycopgConnection.connect(*arguments, **parameters)
        except OSError as error:  # no file descriptor is free for psycopg's selector
            raise psycopg.OperationalError(str(error)) from error
        answers.sign()
        return connected


def _bound_pymysql(engine: Engine, connect_timeout: float, answers: Answers) -> None:
    import pymysql

    base: Any = pymysql.Connection  # its stubs lack the methods that read an answer

    class PyMySqlConnection(base):  # type: ignore[misc]  # its base is Any
        """Waits for an answer no longer than it may, once it is connected, if it is not patient."""

        is_connected = is_patient = False

        def _read_query_result(self, *args: Any, **kwargs: Any) -> Any:
            return self._answer(super()._read_query_result, *args, **kwargs)

        def _read_ok_packet(self, *args: Any, **kwargs: Any) -> Any:
            return self._answer(super()._read_ok_packet, *args, **kwargs)

        def _answer(self, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            # Once for an answer, not for each of its packets: every row is a packet.
            if self.is_patient:
                self._read_timeout = None  # the time-out of the statement before
            if self.is_patient or not self.is_connected:
                return read(*args, **kwargs)
            if answers.is_given_up:
                self._force_close()
                raise pymysql.OperationalError(CR_SERVER_LOST, _GIVEN_UP)
            self._read_timeout = self._write_timeout = min(ANSWER, answers.bound)
            with answers.waiting(self._sock.fileno()):
                answer = read(*args, **kwargs)
            answers.sign()
            return answer

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        if answers.is_given_up:
            raise pymysql.OperationalError(CR_SERVER_LOST, _GIVEN_UP)
        # The greeting is read with the read time-out: this detects a silent server soonest.
        quick = {"read_timeout": connect_timeout, "write_timeout": connect_timeout}
        with answers.waiting(None):
            connection: Any = PyMySqlConnection(*arguments, **{**parameters, **quick})
        answers.sign()
        connection.is_connected = True
        return connection


class _Silent(Exception):
    """The server gave no sign for too long."""


def _bounded(
    wrapped: Generator[Any, Any, Any], answers: Answers, cause: str
) -> Generator[Any, Any, Any]:
    """Yield and return the values of *wrapped*; raise _Silent if nothing is ready for too long.

    *cause* is a further possible cause, for the error.
    psycopg sends a falsy value at every interval in which the socket was not ready.
    """
    if answers.is_given_up:
        raise _Silent(_GIVEN_UP)
    seconds = min(ANSWER, answers.bound)
    deadline = time.monotonic() + seconds
    try:
        wanted = next(wrapped)
        while True:
            ready = yield wanted
            if ready:
                answers.sign()
                deadline = time.monotonic() + seconds
            elif time.monotonic() > deadline:
                raise _Silent(f"no answer from the server for {seconds:g} s{cause}")
            wanted = wrapped.send(ready)
    except StopIteration as end:
        return end.value

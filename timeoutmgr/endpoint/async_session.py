"""The AsyncSession of a coroutine handler, in the transaction that settles the message.

It is an ordinary session on the ordinary connection of the pump's transaction. Its methods run on
the event loop, in the greenlets of SQLAlchemy's asyncio extension, and each statement is passed to
the pump's thread, which waits for the handler (``thread_calls``). There is no second connection: no
driver needs an asyncio version, and a single commit covers the effects and the message.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.util import find_spec
from inspect import getmembers, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session
from sqlalchemy.orm.session import JoinTransactionMode
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from timeoutmgr.endpoint.thread_calls import SERVING, ThreadCalls
from timeoutmgr.errors import ConfigurationError, Unsupported

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_WITHOUT_GREENLET: Final = (
    "context.session of a coroutine handler needs the package greenlet: "
    "pip install 'timeoutmgr[asyncio]'"
)


class LentSession(Session):
    """A session that the endpoint ends: a close by the handler would silently undo its rows."""

    def close(self) -> None:
        """Do nothing: the endpoint commits and closes."""

    reset = close

    def __exit__(self, error: Any, *_more: Any) -> None:
        """Roll back if an *error* leaves the block, as each session does."""
        if error is not None:
            self.rollback()

    def end(self) -> None:
        """Close the session."""
        super().close()


class LazySession(LentSession):
    """A session that opens its connection in the serving thread, at the first statement."""

    def __init__(
        self, open_connection: Callable[[], Connection], mode: JoinTransactionMode
    ) -> None:
        super().__init__(join_transaction_mode=mode)
        self._open_connection = open_connection
        self._opened: Connection | None = None

    def get_bind(self, *_given: Any, **_keywords: Any) -> Connection:
        """Return the connection of the transaction that settles the message."""
        if self._opened is None:  # called for each statement
            connection: Connection = _in_serving_thread(self._open_connection)
            _serve_statements(connection)
            self._opened = connection
        return self._opened


def async_session(session: Session) -> "AsyncSession":
    """Return the asyncio interface to *session*; raise ConfigurationError without greenlet."""
    if find_spec("greenlet") is None:  # SQLAlchemy itself would raise only at the first statement
        raise ConfigurationError(_WITHOUT_GREENLET)
    from sqlalchemy.ext.asyncio import AsyncSession

    class HandlerAsyncSession(AsyncSession):
        """An AsyncSession on a connection that has no asyncio interface."""

        async def execute(self, *given: Any, **keywords: Any) -> Any:
            """Execute a statement and return its rows, which the driver has read."""
            options = {**(keywords.pop("execution_options", None) or {}), "prebuffer_rows": True}
            return await self.run_sync(
                lambda inside: inside.execute(*given, execution_options=options, **keywords)
            )

        async def __aexit__(self, error: Any, *_more: Any) -> None:
            """Roll back if an *error* leaves the block, as each session does."""
            if error is not None:
                await self.rollback()

        async def connection(self, *_given: Any, **_keywords: Any) -> "AsyncConnection":
            """Refuse: the driver's connection has no asyncio interface."""
            raise _refused("connection()", "await session.run_sync(lambda s: s.connection()...)")

        async def stream(self, *_given: Any, **_keywords: Any) -> Any:
            """Refuse: the driver would block the loop while it waits for the server."""
            raise _refused("stream()", "session.execute, with a LIMIT for many rows")

    for name, method in getmembers(HandlerAsyncSession, iscoroutinefunction):
        setattr(HandlerAsyncSession, name, _then_cancelled(method))
    if not isinstance(session, LazySession):  # a plain handler of the message has opened it
        _serve_statements(session.connection())
    made: Any = HandlerAsyncSession
    return made(sync_session_class=lambda **_given: session)  # type: ignore[no-any-return]  # above


def _then_cancelled(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return *method*, made to raise CancelledError at its end if the task is to be cancelled.

    A cancellation inside SQLAlchemy would invalidate the connection, so ``ThreadCalls`` defers it.
    If it came after the method, it would miss the block that requested it, such as asyncio.timeout.
    """

    @wraps(method)
    async def call(*given: Any, **keywords: Any) -> Any:
        try:
            return await method(*given, **keywords)
        finally:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                await asyncio.sleep(0)

    return call


def _refused(method: str, instead: str) -> Unsupported:
    return Unsupported(
        f"context.session.{method}",
        "the transaction that settles the message is on a connection without asyncio",
        f"Use {instead}",
    )


def _in_serving_thread(function: Callable[[], Any]) -> Any:
    calls = _serving()
    return function() if calls is None else await_only(calls.run(function))


def _serving() -> ThreadCalls | None:
    """Return the ThreadCalls for a statement; None if this thread is to execute it itself."""
    calls = SERVING.get()
    # A thread that a handler starts, as by asyncio.to_thread, inherits its context variables.
    if calls is None or not calls.is_on_loop() or not in_greenlet():
        return None
    return calls


def _serve_statements(connection: Connection) -> None:
    """Make handlers' statements on *connection*'s engine run in their serving threads."""
    # Not event.contains: it compares addresses of engines, and may find a deleted engine's.
    if _do_execute in list(connection.dialect.dispatch.do_execute):
        return
    engine = connection.engine
    event.listen(engine, "do_execute", _do_execute)
    event.listen(engine, "do_executemany", _do_executemany)
    event.listen(engine, "do_execute_no_params", _do_execute_no_params)


def _do_execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    return _passed(lambda: context.dialect.do_execute(cursor, statement, parameters, context))


def _do_executemany(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    return _passed(lambda: context.dialect.do_executemany(cursor, statement, parameters, context))


def _do_execute_no_params(cursor: Any, statement: str, context: Any) -> bool:
    return _passed(lambda: context.dialect.do_execute_no_params(cursor, statement, context))


def _passed(execute: Callable[[], object]) -> bool:
    """Have the serving thread execute the statement, if there is one; return whether it did."""
    calls = _serving()
    if calls is None:
        return False
    await_only(calls.run(execute))
    return True

"""The AsyncSession of a coroutine handler: in the very transaction that settles the message.

It is an ordinary session on the ordinary connection of the pump's transaction. Its methods run on
the event loop, in the greenlets of SQLAlchemy's asyncio extension, and each statement is passed to
the pump's thread, which waits for the handler (``thread_calls``). No second connection is involved,
so that no driver needs an asyncio twin, and one commit settles effects and message together.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from timeoutmgr.endpoint.thread_calls import SERVING, ThreadCalls
from timeoutmgr.errors import ConfigurationError, Unsupported

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_WITHOUT_GREENLET: Final = (
    "context.session of a coroutine handler needs the package greenlet: "
    "pip install 'timeoutmgr[asyncio]'"
)


class LazySession(Session):
    """A session that opens its connection at the first statement, in the serving thread."""

    def __init__(self, open_connection: Callable[[], Connection]) -> None:
        super().__init__(join_transaction_mode="create_savepoint")
        self._open_connection = open_connection

    def get_bind(self, *_given: Any, **_keywords: Any) -> Connection:
        """Return the connection of the transaction that settles the message."""
        connection: Connection = _in_serving_thread(self._open_connection)
        _serve_statements(connection)
        return connection


def async_session(session: Session) -> "AsyncSession":
    """Return the asyncio face of *session*; raise ConfigurationError without greenlet."""
    if find_spec("greenlet") is None:  # SQLAlchemy's own error comes with the first statement
        raise ConfigurationError(_WITHOUT_GREENLET)
    from sqlalchemy.ext.asyncio import AsyncSession

    class HandlerAsyncSession(AsyncSession):
        """An AsyncSession on a connection that has no asyncio face."""

        async def connection(self, *_given: Any, **_keywords: Any) -> "AsyncConnection":
            """Refuse; the connection belongs to a driver without asyncio."""
            raise Unsupported(
                "context.session.connection()",
                "the transaction that settles the message has no AsyncConnection",
                "Use session.execute, or await session.run_sync(lambda s: s.connection()...)",
            )

    made: Any = HandlerAsyncSession
    return made(sync_session_class=lambda **_given: session)  # type: ignore[no-any-return]  # above


def _in_serving_thread(function: Callable[[], Any]) -> Any:
    calls = SERVING.get()
    if calls is None or calls.is_here():
        return function()
    return _awaited(calls, function)


def _awaited(calls: ThreadCalls, function: Callable[[], Any]) -> Any:
    from sqlalchemy.util import await_only

    return await_only(calls.run(function))


def _serve_statements(connection: Connection) -> None:
    """Have statements of handlers on *connection*'s engine run in their serving threads."""
    # Not by event.contains: it goes by the address of an engine, and knows that of one long gone.
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
    """Return whether the statement was executed, by the serving thread."""
    calls = SERVING.get()
    if calls is None or calls.is_here():
        return False
    _awaited(calls, execute)
    return True

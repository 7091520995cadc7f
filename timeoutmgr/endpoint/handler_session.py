"""The SQLAlchemy session of a handler, in the transaction that also settles the message.

A whole batch shares the transaction: a savepoint undoes a failed message alone, and proves that the
transaction still exists. A deadlock (MySQL 1213), a full disk (SQLite), a DDL statement (MySQL) or
a COMMIT ends a transaction and its savepoints at the server without the driver's knowledge. Then no
message of the batch may be acknowledged.
"""

import os
from typing import TYPE_CHECKING, Final, Protocol

from sqlalchemy.exc import SAWarning, SQLAlchemyError

from timeoutmgr.contracts import Transaction
from timeoutmgr.database import Database, as_connection
from timeoutmgr.errors import TransactionLost
from timeoutmgr.message.instants import Micros

if TYPE_CHECKING:
    from sqlalchemy import Connection, NestedTransaction
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session
    from sqlalchemy.orm.session import JoinTransactionMode as JoinMode

    from timeoutmgr.endpoint.async_session import LentSession

_NO_TRANSACTION: Final = (
    "context.session needs a transaction mode that has a transaction: use the SQL "
    "queue with 'transaction_scope' or 'sends_atomic_with_receive'"
)
_SESSION_ENDED: Final = (
    "the handler of this session has ended, and its transaction with it, or runs in the parent of "
    "this process; end every thread and task that uses context.session before the handler returns"
)


class WorkOfHandler(Protocol):
    """Contract of a unit of work as a handler sees it."""

    @property
    def is_atomic(self) -> bool:
        """Whether sends and the receive are undone together."""
        ...

    @property
    def transaction(self) -> Transaction | None:
        """The transaction that receiving and sending share; opened at first use."""
        ...

    def now(self) -> Micros | None:
        """Return the time of the clock beside the queues; None where only the host's counts."""
        ...


class HandlerSession:
    """Opens a handler's session, and the transaction, at first use.

    *ends_transaction* means that the handler may end the transaction itself, and that its message
    is settled alone: the session then uses the transaction without a savepoint.
    """

    def __init__(self, work: WorkOfHandler, *, ends_transaction: bool = False) -> None:
        self._work = work
        self._ends_transaction = ends_transaction
        self._mode: JoinMode = "rollback_only" if ends_transaction else "create_savepoint"
        self._session: LentSession | None = None
        self._async_session: AsyncSession | None = None
        self._connection: Connection | None = None
        self._savepoint: NestedTransaction | None = None
        self.process: int | None = os.getpid()
        """Id of the process in which the handlers run; None when they have ended."""

    @property
    def has_ended(self) -> bool:
        """Whether the handlers of the message have ended; all views of a context share it.

        True in a child that a handler forks: nothing would send what the child collects.
        """
        return self.process != os.getpid()

    def open(self) -> "Session":
        """Return the session; its commits and rollbacks affect only the savepoint.

        Raises RuntimeError in modes without a transaction, and after the handler.
        """
        if self._session is None:
            self._require_running()
            from timeoutmgr.endpoint.async_session import LentSession

            connection = self._begin()
            self._session = LentSession(bind=connection, join_transaction_mode=self._mode)
        return self._session

    def open_async(self) -> "AsyncSession":
        """Return the session of coroutines; this may run on the loop: the first statement connects.

        Raises RuntimeError in modes without a transaction, and after the handler.
        """
        from timeoutmgr.endpoint.async_session import LazySession, async_session

        if not self._work.is_atomic:
            raise RuntimeError(_NO_TRANSACTION)
        if self._async_session is None:
            self._require_running()
            if self._session is None:
                self._session = LazySession(self._begin, self._mode)
            self._async_session = async_session(self._session)
        return self._async_session

    def _require_running(self) -> None:
        """Raise RuntimeError after the handler: its session would join the next transaction."""
        if self.has_ended:
            raise RuntimeError(_SESSION_ENDED)

    def _begin(self) -> "Connection":
        """Return the transaction's connection, in a savepoint unless the handler may end it."""
        transaction = self._work.transaction
        if transaction is None:
            raise RuntimeError(_NO_TRANSACTION)
        connection = self._connection = as_connection(transaction)
        if self._savepoint is None and not self._ends_transaction:
            self._savepoint = connection.begin_nested()
        return connection

    def keep(self) -> None:
        """Keep the effects, for the commit of the batch.

        Raises TransactionLost. Raises CombinationRefused if the handler has changed PostgreSQL's
        role or search path, or MySQL's database: its message might be settled elsewhere, or not.
        """
        if self._session is None:
            return
        self._session.commit()
        self._session.end()
        self._refuse_use()
        self._require_own_tables()
        self._end(undo=False)

    def _require_own_tables(self) -> None:
        if self._connection is None:  # a coroutine's session without a statement
            return
        try:
            Database.require_own_tables("context.session", self._connection)
        except SQLAlchemyError as error:  # the handler has swallowed what ended the transaction
            raise _lost(error) from error

    def undo(self) -> None:
        """Undo only the effects of this message. Raises TransactionLost.

        Without a savepoint the handler may have committed a setting, such as search_path: then the
        pool replaces the connection. MySQL keeps a handler's USE beyond the rollback.
        """
        if self._session is None:
            return
        is_undone = False
        self._refuse_use()
        try:
            try:
                self._session.end()
                is_undone = self._end(undo=True)
                self._use_own_database()
            finally:
                if not is_undone:
                    self._replace_connection()
        except SQLAlchemyError as error:
            raise _lost(error) from error

    def _replace_connection(self) -> None:
        connection = self._connection
        if connection is None or connection.invalidated:
            return
        if connection.dialect.name != "sqlite":
            connection.connection.invalidate(soft=True)  # when it returns to the pool

    def _use_own_database(self) -> None:
        connection = self._connection
        if connection is None or connection.invalidated:
            return
        own = connection.engine.url.database
        if own and connection.dialect.name in {"mysql", "mariadb"}:
            quoted = connection.dialect.identifier_preparer.quote_identifier(own)
            connection.exec_driver_sql(f"USE {quoted}")

    def _refuse_use(self) -> None:
        """Refuse statements of a thread or task that outlives the handler.

        They would run in the transaction of later messages.
        """
        if self._session is not None:
            self._session.get_bind = _refuse_bind  # type: ignore[method-assign]  # asked each time

    def _end(self, *, undo: bool) -> bool:
        """End the savepoint; return whether there was one."""
        savepoint = self._savepoint
        if savepoint is None:
            return False
        self._savepoint = None
        if not savepoint.is_active:
            raise TransactionLost("a handler ended it through the connection of its session")
        try:
            if undo:
                savepoint.rollback()
            else:
                savepoint.commit()
        except (SQLAlchemyError, SAWarning) as error:  # if warnings are errors
            raise _lost(error) from error
        return True


def _refuse_bind(*_given: object, **_keywords: object) -> "Connection":
    raise RuntimeError(_SESSION_ENDED)


def context_ended() -> RuntimeError:
    """Return the error of a send after the handler: nothing would put the message into a queue."""
    return RuntimeError(
        "the handler of this context has ended, or runs in the parent of this process, and its "
        "message is settled without this send; end every thread and task that sends with the "
        "context before the handler returns, or send with the endpoint itself"
    )


def _lost(error: Exception) -> Exception:
    """Return *error* if the connection broke, which is an outage; otherwise TransactionLost."""
    if getattr(error, "connection_invalidated", False):
        return error
    return TransactionLost(str(error))

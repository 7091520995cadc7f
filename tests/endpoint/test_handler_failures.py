"""Errors of a handler that could be mistaken for something else than its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg.errors
import pymysql
import pytest
from sqlalchemy import exc

from tests.endpoint.test_handlers import Harness, bill
from tests.support.forks import Forks, ended_in_a_child
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import HandlerFailed, LeaseLost

ATOMIC = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE
RECEIVE = TransactionMode.RECEIVE_ONLY


class Ended(BaseException):
    """Something that is no Exception."""


def raising(error: BaseException) -> Harness:
    """Return the harness of a handler that raises *error*."""

    def fail(_body: object, _context: HandlerContext) -> None:
        raise error

    return Harness(Bill=[fail])


@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, Ended])
def test_a_handler_that_would_end_its_thread_has_failed(
    kind: type[BaseException], mode: TransactionMode
) -> None:
    error = kind("enough")

    with pytest.raises(HandlerFailed, match=f"the handler failed with {kind.__name__}") as failed:
        raising(error).handle(bill(), mode)

    assert failed.value.__cause__ is error


@pytest.mark.parametrize("mode", [RECEIVE, ATOMIC])
def test_a_lease_that_a_handler_lost_is_no_lease_on_its_message(mode: TransactionMode) -> None:
    error = LeaseLost("of a queue that the handler reads")

    with pytest.raises(HandlerFailed, match="the handler failed with LeaseLost") as failed:
        raising(error).handle(bill(), mode)

    assert failed.value.__cause__ is error


UNKNOWN_COLUMN = exc.OperationalError(
    "SELECT x", {}, pymysql.OperationalError(1054, "Unknown column 'x'")
)
DEADLOCK = exc.OperationalError("SELECT 1", {}, psycopg.errors.DeadlockDetected("deadlock"))
LOST = exc.OperationalError(
    "SELECT 1", {}, pymysql.OperationalError(2013, "Lost connection"), connection_invalidated=True
)


def test_a_wrong_statement_in_the_messages_own_transaction_is_no_error_of_the_database() -> None:
    with pytest.raises(HandlerFailed, match=r"OperationalError.*Unknown column 'x'") as failed:
        raising(UNKNOWN_COLUMN).handle(bill(), ATOMIC)

    assert failed.value.__cause__ is UNKNOWN_COLUMN


@pytest.mark.parametrize(
    ("error", "mode"),
    [
        (DEADLOCK, ATOMIC),
        (LOST, ATOMIC),
        # No outage: the error queue shows these two errors unchanged.
        (UNKNOWN_COLUMN, RECEIVE),
        (RuntimeError("a bug"), ATOMIC),
    ],
)
def test_any_other_error_is_raised_unchanged(error: Exception, mode: TransactionMode) -> None:
    with pytest.raises(type(error)) as failed:
        raising(error).handle(bill(), mode)

    assert failed.value is error


def exited(code: object) -> Callable[[], object]:
    def leave() -> object:
        raise SystemExit(code)

    return leave


def fail() -> object:
    raise ValueError("in a child")


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        pytest.param(lambda: None, 0, id="return"),
        pytest.param(fail, 1, id="raise"),
        pytest.param(exited(None), 0, id="exit"),
        pytest.param(exited(7), 7, id="exit with a number"),
        pytest.param(exited("enough"), 1, id="exit with a text"),
    ],
)
def test_a_child_of_a_handler_ends_where_it_leaves_the_handler(
    leave: Callable[[], object], code: int
) -> None:
    def fork(_body: object, _context: HandlerContext) -> None:
        if forks():
            leave()

    with Forks() as forks:
        Harness(Bill=[fork]).handle(bill())

    assert forks.codes() == [code]


def test_a_send_by_the_context_in_a_child_of_the_handler_is_refused() -> None:
    def refused(context: HandlerContext) -> int:
        with pytest.raises(RuntimeError, match="runs in the parent of this process"):
            context.send("billing", "Bill", {"n": 1})
        with pytest.raises(RuntimeError, match="runs in the parent of this process"):
            _ = context.session
        return 0

    ended: list[int] = []

    def fork(_body: object, context: HandlerContext) -> None:
        ended.append(ended_in_a_child(lambda: refused(context)))
        context.send("billing", "Bill", {"n": 2}, message_id="of the parent")

    harness = Harness(Bill=[fork])
    harness.handle(bill(), ATOMIC)

    assert ended == [0]
    assert harness.transport.ids("billing") == ["of the parent"]

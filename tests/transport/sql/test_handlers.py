"""A handler's mistake in the transaction of its message fails the message, and is not an outage."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.support.clock import FakeClock
from tests.support.makers import a_breaker, a_composer, a_message
from timeoutmgr import HandlerContext
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.database import as_database
from timeoutmgr.endpoint.handlers import ANY, LOST_BY_ITSELF, Handler, HandlerStep
from timeoutmgr.errors import StorageConflict, StorageUnavailable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings
from timeoutmgr.transport.sql import SqlTransport

ONLY_POSTGRES = pytest.mark.parametrize("url", ["postgres"], indirect=True)
ONLY_MYSQL = pytest.mark.parametrize("url", ["mysql"], indirect=True)
ATTEMPTS = 2


class Base(DeclarativeBase):
    """The tables of a handler."""


class Note(Base):
    """A row of a table that does not exist."""

    __tablename__ = "notes_that_nobody_made"
    number: Mapped[int] = mapped_column(primary_key=True)


class Stand:
    """A pump with one handler over the queue ``q``; failed messages go to ``other``."""

    def __init__(self, transport: SqlTransport, handler: Handler, alone: Iterable[str]) -> None:
        clock = FakeClock()
        self.attempts = 0
        self.session = transport.session()
        self.receiver = self.session.receiver("q", prefetch=2)

        def count(body: object, context: HandlerContext) -> None:
            self.attempts += 1
            handler(body, context)

        step = HandlerStep(
            queue="q",
            handlers={ANY: [count]},
            composer=a_composer(clock),
            clock=clock,
            telemetry=Counters(),
            alone=frozenset(alone),
        )
        self._pump = Pump(
            Consumption(
                name="Handlers",
                queue="q",
                step=step,
                policy=RecoverabilitySettings(immediate=ATTEMPTS, delayed=0),
            ),
            PumpSurroundings(
                endpoint="q",
                transport=transport,
                mode=TransactionMode.TRANSACTION_SCOPE,
                error_queue="other",
                clock=clock,
                telemetry=Counters(),
                broker=a_breaker(clock),
            ),
        )

    def handle(self) -> None:
        self.send()
        self._pump.pump_once(self.session, self.receiver, 0)

    def send(self) -> None:
        self.session.send([Outgoing("q", a_message())])

    def receive_anew(self) -> None:
        """Handle what waits, by another receiver, as a pump does after an outage."""
        self.receiver.close()
        self.receiver = self.session.receiver("q", prefetch=2)
        self._pump.pump_once(self.session, self.receiver, 0)

    def left(self) -> tuple[int, int]:
        """Return how many messages wait, and how many are in the error queue."""
        self.receiver.close()
        return self.session.count("q"), self.session.count("other")


@contextmanager
def handling(
    transport: SqlTransport, handler: Handler, alone: Iterable[str] = ()
) -> Iterator[Stand]:
    stand = Stand(transport, handler, alone)
    with closing(stand.receiver):
        yield stand


def executing(statement: str) -> Handler:
    """Return a handler that executes *statement* in the transaction of its message."""

    def handle(_body: object, context: HandlerContext) -> None:
        context.session.execute(text(statement))

    return handle


@pytest.mark.parametrize(
    "statement",
    ["SELECT no_such_column FROM {}queues", "SELECT * FROM notes_that_nobody_made", "SELEC 1"],
)
def test_a_message_whose_handler_has_a_wrong_statement_is_in_the_error_queue_after_its_attempts(
    transport: SqlTransport, prefix: str, statement: str
) -> None:
    with handling(transport, executing(statement.format(prefix))) as stand:
        stand.handle()

        assert stand.attempts == ATTEMPTS
        assert stand.left() == (0, 1)


def test_a_wrong_statement_that_comes_with_the_flush_counts_too(transport: SqlTransport) -> None:
    def add(_body: Any, context: HandlerContext) -> None:
        context.session.add(Note(number=1))

    with handling(transport, add) as stand:
        stand.handle()

        assert stand.attempts == ATTEMPTS
        assert stand.left() == (0, 1)


@ONLY_POSTGRES
def test_a_handler_that_swallows_an_error_and_with_it_its_transaction_has_failed(
    transport: SqlTransport,
) -> None:
    def swallow(_body: Any, context: HandlerContext) -> None:
        with suppress(SQLAlchemyError):
            context.session.execute(text("SELECT * FROM notes_that_nobody_made"))

    with handling(transport, swallow) as stand:
        stand.handle()

        assert stand.attempts == ATTEMPTS
        assert stand.left() == (0, 1)


@ONLY_POSTGRES
@pytest.mark.parametrize("way", ["SET", "SET LOCAL"])
@pytest.mark.parametrize("setting", ["search_path = information_schema", "ROLE pg_monitor"])
def test_a_message_whose_handler_leaves_another_search_path_or_role_fails_after_its_attempts(
    transport: SqlTransport, way: str, setting: str
) -> None:
    with handling(transport, executing(f"{way} {setting}")) as stand:
        stand.handle()

        assert stand.attempts == ATTEMPTS
        assert stand.left() == (0, 1)


@ONLY_POSTGRES
def test_a_handler_may_set_search_path_and_role_back(transport: SqlTransport) -> None:
    def set_and_set_back(_body: Any, context: HandlerContext) -> None:
        context.session.execute(text("SET LOCAL search_path = information_schema"))
        context.session.execute(text("SET LOCAL search_path = public"))
        context.session.execute(text("SET ROLE pg_monitor"))
        context.session.execute(text("RESET ROLE"))

    with handling(transport, set_and_set_back) as stand:
        stand.handle()

        assert (stand.attempts, stand.left()) == (1, (0, 0))


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_handler_may_map_the_schemas_of_its_own_tables(
    transport: SqlTransport, error: type[ValueError] | None
) -> None:
    def map_schemas(_body: Any, context: HandlerContext) -> None:
        tenants = {None: "information_schema"}
        context.session.connection(execution_options={"schema_translate_map": tenants})
        if error:
            raise error

    with handling(transport, map_schemas) as stand:
        stand.handle()

        assert stand.left() == ((0, 1) if error else (0, 0))


@ONLY_POSTGRES
@pytest.mark.parametrize("alone", [(), (ANY,)])
@pytest.mark.parametrize("error", [None, ValueError])
def test_no_pooled_connection_keeps_the_search_path_that_a_failed_handler_committed(
    transport: SqlTransport, alone: Iterable[str], error: type[ValueError] | None
) -> None:
    def commit(_body: Any, context: HandlerContext) -> None:
        context.session.execute(text("SET search_path = information_schema"))
        context.session.execute(text("COMMIT"))
        if error:
            raise error

    with handling(transport, commit, alone) as stand, ExitStack() as lent:
        stand.session.send([Outgoing("q", a_message())])  # beside the next, unless each is alone
        stand.handle()

        database = as_database(transport.database)
        for _ in range(database.connections()[1]):
            connection = lent.enter_context(database.engine.connect())
            assert "information_schema" not in connection.scalar(text("SHOW search_path"))


@ONLY_MYSQL
@pytest.mark.parametrize("alone", [(), (ANY,)])
@pytest.mark.parametrize("error", [None, ValueError])
def test_a_handler_that_leaves_another_database_fails_and_no_pooled_connection_keeps_it(
    transport: SqlTransport, alone: Iterable[str], error: type[ValueError] | None
) -> None:
    def use(_body: Any, context: HandlerContext) -> None:
        context.session.execute(text("USE information_schema"))
        if error:
            raise error

    with handling(transport, use, alone) as stand, ExitStack() as lent:
        stand.handle()

        assert stand.left() == (0, 1)
        database = as_database(transport.database)
        for _ in range(database.connections()[1]):
            connection = lent.enter_context(database.engine.connect())
            assert connection.scalar(text("SELECT DATABASE()")) == database.url.database


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_handler_that_waits_for_its_own_transaction_has_failed(
    transport: SqlTransport, url: str, prefix: str
) -> None:
    other = create_engine(url, connect_args={"timeout": 0.01})

    def write_beside(_body: Any, context: HandlerContext) -> None:
        context.session.execute(text("SELECT 1"))
        with other.begin() as connection:
            connection.execute(text(f"DELETE FROM {prefix}queues"))

    with handling(transport, write_beside) as stand:
        stand.handle()

        assert stand.attempts == ATTEMPTS
        assert stand.left() == (0, 1)
    other.dispose()


@ONLY_POSTGRES
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT pg_terminate_backend(pg_backend_pid())", StorageUnavailable),
        ("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$", StorageConflict),
    ],
)
def test_a_lost_connection_and_a_deadlock_are_not_the_messages(
    transport: SqlTransport, statement: str, expected: type[StorageUnavailable]
) -> None:
    with handling(transport, executing(statement)) as stand:
        with pytest.raises(expected) as met:
            stand.handle()

        assert type(met.value) is expected
        assert stand.attempts == 1
        assert stand.left() == (1, 0)


@pytest.mark.parametrize(
    ("url", "statement"),
    [
        ("postgres", "SELECT pg_terminate_backend(pg_backend_pid())"),
        ("mysql", "KILL CONNECTION_ID()"),
    ],
    indirect=["url"],
)
def test_a_message_whose_handler_loses_the_connection_at_each_delivery_fails_in_the_end(
    transport: SqlTransport, statement: str
) -> None:
    with handling(transport, executing(statement)) as stand:
        stand.send()
        for _ in range(LOST_BY_ITSELF):
            with pytest.raises(StorageUnavailable):
                stand.receive_anew()
        stand.receive_anew()

        assert stand.attempts == LOST_BY_ITSELF + ATTEMPTS
        assert stand.left() == (0, 1)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_handler_that_ends_its_thread_ends_no_pump(transport: SqlTransport) -> None:
    with handling(transport, lambda *_: sys.exit("enough")) as stand:
        stand.handle()

        assert stand.attempts == ATTEMPTS
        assert stand.left() == (0, 1)

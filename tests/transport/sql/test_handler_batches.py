"""Handlers that share a transaction: a failed message is undone alone, and none loses its effects.

Each handler notes its message in a table through ``context.session``. In the end the table has the
messages that were acknowledged, each once, and the error queue has the others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tests.support.clock import FakeClock
from tests.support.makers import a_breaker, a_composer, a_message
from timeoutmgr import BatchContext, HandlerContext
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.handlers import ANY, Handler, HandlerMiddleware, HandlerStep
from timeoutmgr.endpoint.list_handlers import ListHandlerStep
from timeoutmgr.endpoint.middleware import CallNext
from timeoutmgr.errors import Unroutable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.batch_progress import LONG_HANDLING
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings
from timeoutmgr.transport.sql import SqlTransport

COUNT = 7
Doing = Callable[["Ledger", HandlerContext], None]


class Ledger:
    """A table in the database of the queue, into which handlers write message ids."""

    def __init__(self, transport: SqlTransport, prefix: str) -> None:
        self.name = f"{prefix}noted"
        self._database = transport.database
        self.execute(f"CREATE TABLE {self.name} (id VARCHAR(50) PRIMARY KEY, again INT)")

    def note(self, context: HandlerContext) -> None:
        """Note the message, twice if it is handled again after a commit."""
        context.session.execute(
            text(f"INSERT INTO {self.name} (id, again) VALUES (:id, 0)"),
            {"id": context.message_id},
        )

    def ids(self) -> list[str]:
        """Return the noted ids."""
        with self._database.read() as connection:
            return list(
                connection.execute(text(f"SELECT id FROM {self.name} ORDER BY id")).scalars()
            )

    def drop(self) -> None:
        self.execute(f"DROP TABLE {self.name}")

    def execute(self, statement: str) -> None:
        with self._database.begin() as connection:
            connection.execute(text(statement))


@pytest.fixture
def ledger(transport: SqlTransport, prefix: str) -> Iterator[Ledger]:
    ledger = Ledger(transport, prefix)
    yield ledger
    ledger.drop()


def require_none(queues: Sequence[str]) -> None:
    """Refuse each destination of a delayed message, as an endpoint refuses a missing queue."""
    if queues:
        raise Unroutable(queues[0])


class Stand:
    """A pump over the queue ``q``, whose handler does, by message id, what *doings* say.

    Another *handler* takes the place of that handler. With *lists* the handlers get lists.
    """

    def __init__(
        self,
        transport: SqlTransport,
        ledger: Ledger,
        doings: dict[str, Doing],
        mode: TransactionMode = TransactionMode.TRANSACTION_SCOPE,
        alone: frozenset[str] = frozenset(),
        middleware: Sequence[HandlerMiddleware] = (),
        handler: Handler | None = None,
        *,
        lists: bool = False,
    ) -> None:
        self.now = 0.0
        self.stop = threading.Event()
        self.session = transport.session()
        self.receiver = self.session.receiver("q", prefetch=2 * COUNT)
        self.calls: Counter[str] = Counter()
        self.lists: list[list[str]] = []
        clock, self.telemetry = FakeClock(), Counters()

        def handle(_body: object, context: HandlerContext) -> None:
            self.calls[context.message_id] += 1
            doings.get(context.message_id, Ledger.note)(ledger, context)

        def handle_list(messages: list[object], context: BatchContext) -> None:
            self.lists.append([own.message_id for own in context.contexts])
            for message, own in zip(messages, context.contexts, strict=True):
                handle(message, own)

        made: Any = partial(ListHandlerStep, lists=frozenset({ANY})) if lists else HandlerStep
        step = made(
            queue="q",
            handlers={ANY: [handler or (handle_list if lists else handle)]},
            composer=a_composer(clock, delays=lambda outgoing, _due: outgoing),
            clock=clock,
            telemetry=self.telemetry,
            require_queues=require_none,
            alone=alone,
            middleware=middleware,
        )
        self.pump = Pump(
            Consumption(
                name="Handlers",
                queue="q",
                step=step,
                split=step.split,
                batch=COUNT,
                is_paced=True,
                policy=RecoverabilitySettings(immediate=2, delayed=0),
            ),
            PumpSurroundings(
                endpoint="q",
                transport=transport,
                mode=mode,
                error_queue="other",
                clock=clock,
                telemetry=self.telemetry,
                broker=a_breaker(clock),
                monotonic=lambda: self.now,
                stop=self.stop,
            ),
        )

    def handle(self, count: int = COUNT) -> None:
        """Send *count* messages, named by their number, and handle them as one batch."""
        self.session.send([Outgoing("q", a_message(str(number))) for number in range(count)])
        self.pump.pump_once(self.session, self.receiver, 0)

    def left(self) -> tuple[int, list[str]]:
        """Return how many messages wait, and the ids in the error queue."""
        self.receiver.close()
        failed = [one.message.id for one in self.session.browse("other", 100)]
        return self.session.count("q"), sorted(failed)


def raising(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    raise ValueError("no")


def breaking_a_constraint(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    ledger.note(context)


def committing_and_raising(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    context.session.commit()
    raise ValueError("no")


def ending_the_transaction(ledger: Ledger, context: HandlerContext) -> None:
    """End it as a deadlock does: at the server, and the driver is not told."""
    ledger.note(context)
    context.session.execute(text("ROLLBACK"))


def ending_the_transaction_and_raising(ledger: Ledger, context: HandlerContext) -> None:
    ending_the_transaction(ledger, context)
    raise ValueError("no")


def ending_the_transaction_by_its_connection(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    transaction = context.session.connection().get_transaction()
    assert transaction is not None
    transaction.rollback()


def closing_its_connection(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    context.session.connection().close()


def losing_its_connection(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    context.session.invalidate()


def exiting(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    raise SystemExit(1)


def being_interrupted(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    raise KeyboardInterrupt


def being_closed(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    raise GeneratorExit


def delaying_to_nowhere(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    context.send("nowhere", "Lost", {}, delay=60)


def sending_to_nowhere(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    context.send("nowhere", "Lost", {})


FAILING: list[Doing] = [
    raising,
    breaking_a_constraint,
    committing_and_raising,
    ending_the_transaction,
    ending_the_transaction_and_raising,
    ending_the_transaction_by_its_connection,
    closing_its_connection,
    losing_its_connection,
    exiting,
    being_interrupted,
    being_closed,
    delaying_to_nowhere,
    sending_to_nowhere,
]


@pytest.mark.parametrize("position", [0, 3, COUNT - 1])
@pytest.mark.parametrize("failing", FAILING)
def test_a_failed_message_leaves_no_effect_and_takes_none_from_its_neighbours(
    transport: SqlTransport, ledger: Ledger, failing: Doing, position: int
) -> None:
    stand = Stand(transport, ledger, {str(position): failing})
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, [str(position)])
        assert ledger.ids() == [str(number) for number in range(COUNT) if number != position]


@pytest.mark.parametrize(
    "failing",
    [
        raising,
        breaking_a_constraint,
        committing_and_raising,
        delaying_to_nowhere,
    ],
)
def test_the_neighbours_of_a_failed_message_are_handled_once_while_the_transaction_is_open(
    transport: SqlTransport, ledger: Ledger, failing: Doing
) -> None:
    stand = Stand(transport, ledger, {"3": failing})
    with closing(stand.receiver):
        stand.handle()

        assert {stand.calls[str(number)] for number in range(COUNT) if number != 3} == {1}


def test_several_failed_messages_of_a_batch_are_each_undone(
    transport: SqlTransport, ledger: Ledger
) -> None:
    doings = {str(number): doing for number, doing in enumerate(FAILING[:5])}
    stand = Stand(transport, ledger, doings)
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, ["0", "1", "2", "3", "4"])
        assert ledger.ids() == ["5", "6"]


def test_a_handler_may_roll_its_session_back_and_go_on(
    transport: SqlTransport, ledger: Ledger
) -> None:
    def trying(ledger: Ledger, context: HandlerContext) -> None:
        with suppress(SQLAlchemyError):
            breaking_a_constraint(ledger, context)
        context.session.rollback()
        ledger.note(context)

    stand = Stand(transport, ledger, {"3": trying})
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, [])
        assert ledger.ids() == [str(number) for number in range(COUNT)]
        assert set(stand.calls.values()) == {1}


def in_a_block(ledger: Ledger, context: HandlerContext) -> None:
    with context.session:
        ledger.note(context)


def closing_its_session(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    context.session.close()


def resetting_its_session(ledger: Ledger, context: HandlerContext) -> None:
    ledger.note(context)
    context.session.reset()


@pytest.mark.parametrize("close", [in_a_block, closing_its_session, resetting_its_session])
def test_a_handler_that_closes_its_session_keeps_what_it_wrote(
    transport: SqlTransport, ledger: Ledger, close: Doing
) -> None:
    stand = Stand(transport, ledger, {"2": close, "3": close})
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, [])
        assert ledger.ids() == [str(number) for number in range(COUNT)]


def test_a_block_of_the_session_that_an_error_leaves_is_rolled_back(
    transport: SqlTransport, ledger: Ledger
) -> None:
    def trying(ledger: Ledger, context: HandlerContext) -> None:
        with suppress(SQLAlchemyError), context.session:
            breaking_a_constraint(ledger, context)
        ledger.note(context)

    stand = Stand(transport, ledger, {"3": trying})
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, [])
        assert ledger.ids() == [str(number) for number in range(COUNT)]


@pytest.mark.parametrize("ended_by", [Ledger.note, raising])
def test_a_session_that_outlives_its_handler_writes_into_no_transaction_of_others(
    transport: SqlTransport, ledger: Ledger, ended_by: Doing
) -> None:
    """As a thread or a task does that a handler leaves behind."""
    kept: list[Session] = []

    def leave(ledger: Ledger, context: HandlerContext) -> None:
        kept.append(context.session)
        ended_by(ledger, context)

    def use(ledger: Ledger, context: HandlerContext) -> None:
        ledger.note(context)
        with pytest.raises(RuntimeError, match="the handler of this session has ended"):
            kept[0].execute(text(f"INSERT INTO {ledger.name} (id, again) VALUES ('stray', 0)"))

    stand = Stand(transport, ledger, {"2": leave, "3": use})
    with closing(stand.receiver):
        stand.handle()

        assert "stray" not in ledger.ids()
        assert "3" in ledger.ids()


def test_a_batch_is_one_transaction(transport: SqlTransport, ledger: Ledger) -> None:
    seen: list[int] = []

    def count_before_commit(ledger: Ledger, context: HandlerContext) -> None:
        ledger.note(context)
        seen.append(len(ledger.ids()))

    stand = Stand(transport, ledger, {str(COUNT - 1): count_before_commit})
    with closing(stand.receiver):
        stand.handle()

        assert seen == [0], "the effects of the neighbours are committed with the last message"
        assert len(ledger.ids()) == COUNT
        assert stand.telemetry.snapshot()["handled"] == COUNT


def test_a_slow_handler_that_writes_keeps_no_thread_waiting_for_its_commit(
    transport: SqlTransport, ledger: Ledger
) -> None:
    """SQLite has one writer: a release that waited for it would be waited for by its batch."""

    def be_slow(ledger: Ledger, context: HandlerContext) -> None:
        ledger.note(context)
        stand.now += LONG_HANDLING
        relief = threading.Thread(target=stand.pump.give_back, daemon=True)
        relief.start()
        relief.join(10)
        assert not relief.is_alive()

    stand = Stand(transport, ledger, {"3": be_slow})
    with closing(stand.receiver):
        stand.handle()
        for _ in range(COUNT):  # the messages that were given back, in small batches
            stand.handle(0)

        assert stand.left() == (0, [])
        assert ledger.ids() == [str(number) for number in range(COUNT)]
        assert set(stand.calls.values()) == {1}


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_the_neighbours_of_a_message_that_was_sent_to_nowhere_are_not_sent_twice(
    transport: SqlTransport, ledger: Ledger
) -> None:
    def sending(_ledger: Ledger, context: HandlerContext) -> None:
        context.send("other", "Sent", {"id": context.message_id})

    def sending_apart(_ledger: Ledger, context: HandlerContext) -> None:
        context.send("nowhere", "Lost", {})

    doings: dict[str, Doing] = {str(number): sending for number in range(COUNT)}
    stand = Stand(transport, ledger, {**doings, "3": sending_apart}, TransactionMode.RECEIVE_ONLY)
    with closing(stand.receiver):
        stand.handle()

        waiting, there = stand.left()
        assert (waiting, len(there)) == (0, COUNT), "six messages were sent, and one has failed"
        assert {stand.calls[str(number)] for number in range(COUNT) if number != 3} == {1}


@pytest.mark.parametrize("failing", FAILING)
def test_the_effects_of_middleware_share_the_savepoint_of_their_message(
    transport: SqlTransport, ledger: Ledger, failing: Doing
) -> None:
    def note(context: HandlerContext, call_next: CallNext) -> None:
        ledger.note(context)
        call_next()

    def pass_by(_ledger: Ledger, _context: HandlerContext) -> None:
        return

    def fail_only(_ledger: Ledger, context: HandlerContext) -> None:
        failing(elsewhere, context)

    elsewhere = Ledger(transport, f"{ledger.name}_else_")
    doings: dict[str, Doing] = {str(number): pass_by for number in range(COUNT)}
    stand = Stand(transport, ledger, {**doings, "3": fail_only}, middleware=[note])
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, ["3"])
        assert ledger.ids() == [str(number) for number in range(COUNT) if number != 3]
        assert elsewhere.ids() == []
    elsewhere.drop()


@pytest.mark.parametrize("statement", ["COMMIT", "CREATE TABLE {name}_ddl (id INT)"])
def test_a_handler_settled_alone_may_end_its_transaction(
    transport: SqlTransport, ledger: Ledger, statement: str
) -> None:
    def ending(ledger: Ledger, context: HandlerContext) -> None:
        ledger.note(context)
        context.session.execute(text(statement.format(name=ledger.name)))

    stand = Stand(transport, ledger, {"3": ending}, alone=frozenset({ANY}))
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, [])
        assert ledger.ids() == [str(number) for number in range(COUNT)]
        assert set(stand.calls.values()) == {1}
    if "TABLE" in statement:
        ledger.execute(f"DROP TABLE {ledger.name}_ddl")

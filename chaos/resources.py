"""Queues and tables of a run: created before it, read during it, removed after it."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, TypeVar

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from chaos.consumer_ledger import ConsumerLedger
from chaos.environment import Environment, is_database
from chaos.incidents import Incident, counted
from chaos.judge import Migrated
from chaos.levels import Levels
from chaos.plan import FaultKind
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutStore, TransactionMode, Transport
from timeoutmgr.deadletter import NodeQueue, StoredCopyQueue
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message
from timeoutmgr.migration import MigrationPlaces, MigrationRunState, report

logger = logging.getLogger(__name__)

AWAY_ERRORS: Final = (StorageUnavailable, TransportUnavailable, SQLAlchemyError)
"""Errors of a read from a server that was cut off or restarted a moment ago."""

PATIENCE: Final = 10.0
"""Seconds to wait for messages that the error queue counts."""

_LOOKS: Final = 5
"""Attempts to read from servers that answer again: each may find a dead connection."""

_SAME: Final[Micros] = 50_000
"""Below this, an offset is the time of the query."""


Seen = TypeVar("Seen")


def retry_read(read: Callable[[], Seen]) -> Seen:
    """Return the result of *read*; try again after dead connections of a restart."""
    for _again in range(_LOOKS - 1):
        try:
            return read()
        except AWAY_ERRORS as error:
            logger.info("a look failed: %s", error)
    return read()


class Resources:
    """Queues and tables of a run, read through separate connections."""

    def __init__(self, environment: Environment) -> None:
        self._environment: Final = environment
        self._transport: Final = environment.transport()
        self._own_transport: Final = environment.own_transport()
        self._levels: Final = (
            Levels(self._transport, [environment.consumer, *environment.endpoints])
            if environment.levels
            else None
        )
        for config in (*_senders(environment), environment.receiving()):
            endpoint = Endpoint(config)
            endpoint.install()
            endpoint.close()
        if self._levels is not None:
            self._levels.install()
        self._pending: Final = (
            _DelayedPending(environment) if environment.delayed_store else _Pending(environment)
        )
        self._queue_manager: Final = (
            environment.queue_manager() if environment.dead_letters else None
        )
        self.deliveries: Final = ConsumerLedger(environment)
        self.deliveries.create()

    def clock_offset(self) -> Micros:
        """Return the lead of the store's clock over this host's; zero if negligible."""
        clock = SystemClock()
        before = clock.now()
        there = self._pending.now()
        offset = there - (before + clock.now()) // 2
        return offset if abs(offset) > _SAME else 0

    def pending(self) -> int:
        """Return how many timeouts are stored."""
        return self._pending.count()

    def dead(self) -> dict[str, Micros]:
        """Return the messages in the dead-letter queues, with their times."""
        if self._queue_manager is None:
            return {}
        boxes = (
            StoredCopyQueue(self._queue_manager, box)
            for box in (NodeQueue.DEADLETTER, NodeQueue.DEADXACT)
        )
        return {copy.message.id: copy.kept for box in boxes for copy in box.every()}

    def waiting(self) -> int:
        """Return how many messages wait in the queues of consumer and satellites."""
        environment = self._environment
        at_consumer = _count(self._transport, environment.consumer)
        return at_consumer + _count(self._own_transport, *environment.queues_of_endpoints)

    def in_errors(self) -> int:
        """Return how many messages are in the error queue."""
        return _count(self._transport, self._environment.errors)

    def failed_messages(self) -> list[Message]:
        """Return the messages of the error queue, which stay there."""
        found: list[Message] = []
        with closing(self._transport.session()) as session:
            count = session.count(self._environment.errors)
            with closing(session.receiver(self._environment.errors, prefetch=count + 1)) as errors:
                while len(found) < count and (batch := errors.receive(count, PATIENCE)):
                    found += [received.message for received in batch]
        return found

    def in_levels(self) -> int:
        """Return how many messages are in RabbitMQ's delay levels, or left them unroutable."""
        return 0 if self._levels is None else self._levels.count()

    def migrated(self, incidents: Iterable[Incident]) -> tuple[Migrated, int]:
        """Return counts of the migrations by their ledger, and the number of open migrations."""
        persistence = self._environment.persistence()
        assert isinstance(persistence, MigrationPlaces), "it is an SQL store"
        with closing(persistence):
            ledger = persistence.migration_ledger(self._environment.manager, SystemClock())
            reports = [report(ledger, run, run.state) for run in ledger.runs()]
        states = Counter(one.state for one in reports)
        found = Migrated(
            completed=states[MigrationRunState.COMPLETED],
            aborted=states[MigrationRunState.ABORTED],
            moved=sum(one.new for one in reports),
            killed=counted(incidents)[FaultKind.KILL_MIGRATION],
        )
        return found, sum(not one.state.is_over for one in reports)

    def left(self) -> dict[str, int]:
        """Return counts of leftovers after the run, by place."""
        return {
            "still stored": self.pending(),
            "left in delay levels": self.in_levels(),
            "left in a queue": self.waiting(),
        }

    def clear(self) -> None:
        """Delete the queues and tables of this run."""
        try:
            delete_queues(self._own_transport, self._environment.queues_of_endpoints)
            delete_queues(self._transport, self._environment.queues_of_consumer)
            if self._levels is not None:
                self._levels.clear()
        finally:
            # Also if the broker is down: the error names the queues that remain.
            self.close()
            drop_tables(self._environment.urls, self._environment.prefix)

    def close(self) -> None:
        """Close all connections; a second call is a no-op."""
        self.deliveries.close()
        self._transport.close()
        self._own_transport.close()
        self._pending.close()
        if self._queue_manager is not None:
            self._queue_manager.store.close()


class _Pending:
    """Pending timeouts of a timeout manager's store."""

    def __init__(self, environment: Environment) -> None:
        self._persistence: Final = environment.persistence()
        self._stores: Final[list[TimeoutStore]] = [
            self._persistence.timeouts(endpoint, SystemClock())
            for endpoint in environment.endpoints
        ]
        self.now: Final = self._stores[0].now
        self.close: Final = self._persistence.close

    def count(self) -> int:
        return sum(store.statistics().pending for store in self._stores)


class _DelayedPending:
    """Pending messages of a delayed message store."""

    def __init__(self, environment: Environment) -> None:
        store: Any = (
            environment.delayed()
        )  # the built-in store: it has more methods than its contract
        store.initialize(environment.manager, TransactionMode.RECEIVE_ONLY)
        self.now: Final[Callable[[], Micros]] = store.now
        self.count: Final[Callable[[], int]] = store.count
        self.close: Final[Callable[[], None]] = store.close


def _senders(environment: Environment) -> Iterator[EndpointConfiguration]:
    """Yield the configuration of each endpoint that sends."""
    for natively in (False, True) if environment.mixed else (False,):
        name = f"main-{'native' if natively else 'manager'}"
        its_own = replace(environment, sends_natively=natively)
        its_own.save(name)
        yield its_own.worker(name)


def _count(transport: Transport, *queues: str) -> int:
    with closing(transport.session()) as session:
        return sum(session.count(queue) for queue in queues)


def delete_queues(transport: Transport, queues: Sequence[str]) -> None:
    """Delete *queues* with their messages."""
    with closing(transport.session()) as session:
        session.delete_queues(queues)


def drop_tables(urls: Iterable[str], prefix: str) -> None:
    """Drop all tables whose names begin with *prefix*, in each database of *urls*."""
    for url in set(urls):
        if is_database(url):
            _drop_tables(url, prefix)


def _drop_tables(url: str, prefix: str) -> None:
    engine = create_engine(url)
    cascade = " CASCADE" if engine.dialect.name == "postgresql" else ""
    quoted = engine.dialect.identifier_preparer.quote
    with engine.begin() as connection:
        for table in inspect(connection).get_table_names():
            if table.startswith(prefix):
                # A partition is dropped with its table, and may be missing here.
                connection.execute(text(f"DROP TABLE IF EXISTS {quoted(table)}{cascade}"))
    engine.dispose()

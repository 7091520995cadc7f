"""A store and a queue beside a broker's delay levels, and the migrations both ways."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from tests.migration.levels import queues_of
from tests.persistence.making import SECOND, timeout
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout, TopologySession
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import MigrationRun, Participants, Report, Terms, Window, begin
from timeoutmgr.migration.levels.drain import DrainParticipants, LevelsOrigin
from timeoutmgr.migration.levels.target import LevelsTarget, Sink, StoreSink
from timeoutmgr.native.infrastructure import delay_topology, unroutable_topology
from timeoutmgr.native.names import NameSet
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.kombu_transport import KombuTransport

HOUR: Final = 3600 * SECOND


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker with levels of two names, in classic queues, which a broker makes quickly."""

    transport: KombuTransport
    session: TopologySession
    names: NameSet
    celerys: NameSet

    def declare(self) -> None:
        """Declare the missing queues and levels."""
        self.session.declare(unroutable_topology())
        for one in (self.names, self.celerys):
            if self.session.missing(delay_topology(one, "classic")):
                self.session.declare(delay_topology(one, "classic"))


class Place:
    """A store and a queue of one test's own, and a broker with levels of two names."""

    def __init__(self, broker: Broker, url: str, name: str) -> None:
        self.transport = broker.transport
        self.session = broker.session
        self.names = broker.names
        self.celerys = broker.celerys
        self.name = name
        self.clock = SystemClock()
        self.queue = f"{name}.billing"
        self.persistence = SqlPersistence(url)
        self.persistence.install()
        self.store = self.persistence.timeouts(name, self.clock)
        self.session.create_queues([self.queue])

    def target(self) -> LevelsTarget:
        """Our levels, as a target."""
        return LevelsTarget(self.transport, self.names, Limits(), self.clock)

    def into_levels(self, names: str = "run") -> Participants:
        """From the store into our levels."""
        return Participants(
            source=self.persistence.migration_source(self.name, self.clock, queues_only=True),
            target=self.target(),
            ledger=self.persistence.migration_ledger(self.name, self.clock),
            runner=names,
        )

    def out_of(
        self, names: NameSet, sink: Sink | None = None, *, chunk: int = 2, **more: Any
    ) -> DrainParticipants:
        """From levels into the store, or into *sink*, two at a time."""
        into = self.persistence.migration_target(self.name, self.clock)
        return DrainParticipants(
            source=LevelsOrigin(self.transport, names, self.clock, **more),
            sink=sink or StoreSink(into, self.name, Limits(), self.clock),
            ledger=self.persistence.migration_ledger(self.name, self.clock),
            runner="drain",
            chunk=chunk,
        )

    def begin(self, parts: Participants | DrainParticipants, safety: int = 0) -> MigrationRun:
        """Begin a run, or go on with the open run."""
        terms = Terms(
            endpoint=self.name,
            source=parts.source.describe(),
            target=parts.target.describe(),
            window=Window(safety=safety),
            batch=2,
        )
        numbers = iter(range(100))
        runs = len(parts.ledger.runs())
        return begin(parts, terms, lambda: f"{self.name}r{runs}{next(numbers)}")

    def migrate(self) -> Report:
        """All of the store into our levels."""
        parts = self.into_levels()
        made = parts.migrate(self.begin(parts))
        parts.close()
        return made

    def drain(self, parts: DrainParticipants) -> Report:
        """All of the levels into the sink."""
        made = parts.migrate(self.begin(parts))
        parts.close()
        return made

    def some(self, amount: int, ahead: Micros = HOUR) -> list[Timeout]:
        """Timeouts due from *ahead* on, under the ids that a store gives them."""
        now = self.clock.now()
        made = [
            timeout(f"t{number}", now + ahead + number, destination=self.queue, saga=f"s{number}")
            for number in range(amount)
        ]
        return [
            replace(
                one,
                id=timeout_id(self.name, one.message.id),
                message=replace(
                    one.message,
                    headers={
                        **one.message.headers,
                        headers.DELIVER_AT: to_wire(one.due),
                        headers.SAGA_ID: one.saga_id or "",
                        headers.TIME_SENT: to_wire(one.created),
                        headers.ORIGINATING_ENDPOINT: self.name,
                        headers.MESSAGE_ID: one.message.id,
                        headers.CONTENT_TYPE: one.message.content_type,
                    },
                ),
            )
            for one in made
        ]

    def counts(self, names: NameSet) -> int:
        """How many messages are in the levels of these names."""
        return sum(self.session.count(name) for name in queues_of(names))

    def wait_for_levels(self, names: NameSet, amount: int) -> None:
        """Wait until the levels have *amount* messages: a queue counts a moment late."""
        eventually(lambda: self.counts(names) == amount, f"{amount} in the levels", 10)

    def close(self) -> None:
        """Delete the queue."""
        self.session.delete_queues([self.queue])
        self.persistence.close()

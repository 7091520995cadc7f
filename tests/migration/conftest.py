"""Two stores in one database of every kind, or a store and delay levels, and a run between them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any, Final

import amqp
import pytest

from tests.migration.levels import names_of, queues_of
from tests.migration.place import Broker, Place
from tests.persistence.making import NOW, SECOND, SetClock, timeout
from timeoutmgr.contracts import Timeout, TimeoutFilter, TimeoutStore
from timeoutmgr.migration import MigrationRun, Participants, Report, Terms, Window, begin
from timeoutmgr.native.infrastructure import delay_topology
from timeoutmgr.native.names import CELERY
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.transport.kombu_transport import KombuTransport

SETTINGS: Final = SqlSettings(clock="host", history="full")
HOUR: Final = 3600 * SECOND

Pair = tuple[SqlPersistence, SqlPersistence]


@pytest.fixture(scope="session")
def persistences_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Pair]]:
    """Installed tables to move from and into; every test has its own endpoint in them."""
    made: dict[str, Pair] = {}

    def of(kind: str) -> Pair:
        if kind not in made:
            url = (
                f"sqlite:///{tmp_path_factory.mktemp('migration') / 'timeoutmgr.db'}"
                if kind == "sqlite"
                else request.getfixturevalue(f"{kind}_url")
            )
            made[kind] = (
                SqlPersistence(url, prefix="from_", settings=SETTINGS),
                SqlPersistence(url, prefix="into_", settings=SETTINGS),
            )
            for one in made[kind]:
                one.install()
        return made[kind]

    yield of

    for pair in made.values():
        for one in pair:
            one.close()


class Move:
    """A source, a target, and the migration between them; batches of three."""

    def __init__(self, pair: Pair, endpoint: str) -> None:
        self.source_persistence, self.target_persistence = pair
        self.endpoint = endpoint
        self.clock = SetClock()
        self.source = pair[0].timeouts(endpoint, self.clock)
        self.target = pair[1].timeouts(endpoint, self.clock)
        self._names = count()

    def parts(self, runner: str = "") -> Participants:
        """Return the participants as another process has them: only the databases are shared."""
        return Participants(
            source=self.source_persistence.migration_source(self.endpoint, self.clock),
            target=self.target_persistence.migration_target(self.endpoint, self.clock),
            ledger=self.source_persistence.migration_ledger(self.endpoint, self.clock),
            runner=runner or f"{self.endpoint}-{next(self._names)}",
            clock=self.clock,
        )

    def terms(self, parts: Participants, **more: Any) -> Terms:
        """Batches of three, and the usual window."""
        given = {"window": Window(), "batch": 3, **more}
        return Terms(
            endpoint=self.endpoint,
            source=parts.source.describe(),
            target=parts.target.describe(),
            **given,
        )

    def begin(self, parts: Participants, **more: Any) -> MigrationRun:
        """Begin a run, or go on with the open run."""
        return begin(
            parts, self.terms(parts, **more), lambda: f"{self.endpoint}{secrets.token_hex(4)}"
        )

    def run(self, **more: Any) -> Report:
        """Move all, as one process does."""
        parts = self.parts()
        try:
            return parts.migrate(self.begin(parts, **more))
        finally:
            parts.close()

    def abort(self) -> Report:
        """Abort the open run, as another process does."""
        parts = self.parts()
        try:
            run = parts.ledger.open_run()
            assert run is not None
            return parts.abort(parts.ledger.acquire(run.id, parts.runner))
        finally:
            parts.close()


@pytest.fixture(params=("sqlite", "postgres", "mysql"))
def moves(
    request: pytest.FixtureRequest, persistences_of: Callable[[str], Pair], unique: str
) -> Move:
    """A way from store to store on every database."""
    return Move(persistences_of(request.param), unique)


@pytest.fixture
def move(persistences_of: Callable[[str], Pair], unique: str) -> Move:
    """A move from store to store on SQLite, for claims that hold alike on every database."""
    return Move(persistences_of("sqlite"), unique)


@pytest.fixture(scope="module")
def broker(rabbitmq_url: str) -> Iterator[Broker]:
    """A broker with levels of this module alone."""
    name = f"t{secrets.token_hex(4)}"
    names = names_of(name)
    celerys = CELERY.prefixed(name)
    with closing(KombuTransport(rabbitmq_url)) as transport, closing(transport.session()) as opened:
        session: Any = opened
        made = Broker(transport, session, names, celerys)
        made.declare()
        yield made
        for one in (names, celerys):
            session.remove(delay_topology(one, "classic"))


@pytest.fixture
def place(
    broker: Broker, sqlite_url: str, unique: str, raw_channel: amqp.Channel
) -> Iterator[Place]:
    """A store, and empty levels."""
    broker.declare()  # one test removes them
    for name in (*queues_of(broker.names), *queues_of(broker.celerys)):
        raw_channel.queue_purge(name)
    with closing(Place(broker, sqlite_url, unique)) as made:
        yield made


def some(amount: int = 10, *, ahead: int = HOUR) -> list[Timeout]:
    """Timeouts due a second after each other, the first *ahead* from now."""
    return [
        timeout(f"t{number:03}", NOW + ahead + number * SECOND, saga=f"saga {number}")
        for number in range(amount)
    ]


def pending(store: TimeoutStore) -> list[Timeout]:
    """All that is pending, oldest first."""
    return store.list(TimeoutFilter(), limit=10_000)


def names(timeouts: Sequence[Timeout]) -> list[str]:
    """Their ids."""
    return [one.id for one in timeouts]

"""Source, target and ledger as a user specifies them: a URL, ``native``, a table, or a file."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from timeoutmgr.contracts import Persistence, Transport
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.errors import ConfigurationError, SchemaMissing, TransportUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.routes import TIMEOUTS, wake_manager
from timeoutmgr.migration.audit import MigrationAudit
from timeoutmgr.migration.clocks import OriginClock
from timeoutmgr.migration.foreign.rows import layout_called
from timeoutmgr.migration.foreign.spool import ExportFile
from timeoutmgr.migration.foreign.table import ForeignTable
from timeoutmgr.migration.levels.drain import DrainParticipants, LevelsOrigin
from timeoutmgr.migration.levels.target import LevelsSink, LevelsTarget, Sink, StoreSink
from timeoutmgr.migration.loops import Participants
from timeoutmgr.migration.ports import MigrationLedger, MigrationPlaces, Source, Target
from timeoutmgr.migration.runs import Terms, Window
from timeoutmgr.native.names import NameSet, name_set
from timeoutmgr.settings.file import configuration_from
from timeoutmgr.transport.kombu_transport import KombuTransport

if TYPE_CHECKING:
    from timeoutmgr.endpoint.configuration import EndpointSettings

logger = logging.getLogger(__name__)

NATIVE: Final = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationSpec:
    """One end of a migration, as a user specifies it.

    A *url* of None means the endpoint's own store, ``native`` the delay levels on its own broker, a
    broker's URL the levels there, a database's URL a store there, and a path that ends in ``.toml``
    the store of that settings file. *names* is the name set of levels, with kombu's *names_prefix*;
    *prefix* and *schema* belong to a store's tables.
    """

    url: str | None = None
    names: str = "timeoutmgr"
    names_prefix: str = ""
    prefix: str | None = None
    schema: str | None = None

    def __post_init__(self) -> None:
        """Check the combination: prefix and schema need the URL of a database."""
        if (self.prefix is not None or self.schema is not None) and (
            self.url is None or self.is_levels
        ):
            raise ConfigurationError(
                "a prefix or a schema of tables is that of a database which is named: say its URL "
                "with --from or --to"
            )

    @property
    def is_levels(self) -> bool:
        """Whether the location is delay levels."""
        return self.url == NATIVE or (self.url or "").startswith(("amqp://", "amqps://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequest:
    """A whole migration, as a user requests it.

    *layout* says that the source belongs to another product: its *table*, or with *file* an export.
    *ledger* is the URL of a store for the ledger, if neither end keeps it.
    """

    source: LocationSpec = field(default_factory=LocationSpec)
    target: LocationSpec = field(default_factory=LocationSpec)
    layout: str | None = None
    table: str | None = None
    file: Path | None = None
    ledger: str | None = None
    window: Window = field(default_factory=Window)
    batch: int = 5_000
    renames: Mapping[str, str] = field(default_factory=dict)
    all_senders: bool = False


class MigrationContext:
    """The places of one endpoint's migration; opened on demand, closed together."""

    def __init__(self, settings: EndpointSettings, asked: MigrationRequest, endpoint: str) -> None:
        self._settings = settings
        self._asked = asked
        self._endpoint = endpoint
        self._closing = ExitStack()
        self._stores: dict[LocationSpec, MigrationPlaces] = {}
        self._runner = uuid.uuid4().hex
        if asked.batch < 1:
            raise ConfigurationError(f"batch must be positive, got {asked.batch}")

    def parts(self) -> Participants | DrainParticipants:
        """Return the participants; raise ConfigurationError if source and target do not fit."""
        asked = self._asked
        foreign = asked.layout is not None or asked.file is not None
        if asked.source == asked.target and not foreign:
            raise ConfigurationError("source and target are the same; name --from or --to")
        if asked.source.is_levels and not foreign:
            return self._drain_parts()
        if asked.renames and not foreign:
            raise ConfigurationError(
                "destinations are renamed on the way out of delay levels and of other products' "
                "tables; a store's keep their names"
            )
        if asked.ledger is not None and not foreign:
            raise ConfigurationError(
                "a store that timeouts are taken from keeps the ledger, in one transaction with "
                "their rows; leave --ledger out"
            )
        clock = self._settings.clock
        source = self._foreign() if foreign else self._own_source()
        if asked.target.is_levels:
            target: Target = self._levels_target(OriginClock(source.now, clock))
        else:
            target = self._store(asked.target).migration_target(self._endpoint, clock)
        return Participants(
            source=source,
            target=target,
            ledger=self.ledger(),
            runner=self._runner,
            clock=clock,
            is_one_store=not foreign and self._is_one_store(source, target),
        )

    def _is_one_store(self, source: Source, target: Target) -> bool:
        """Return whether both ends are the same tables, as far as their URLs show it."""
        ends = (self._asked.source, self._asked.target)
        if any(one.is_levels for one in ends):
            return False
        here, there = (_database_of(self._store(one)) for one in ends)
        return here == there and _place(source.describe()) == _place(target.describe())

    def ledger(self) -> MigrationLedger:
        """Return the ledger: of the specified store, or else of the source or the target."""
        asked = self._asked
        foreign = asked.layout is not None or asked.file is not None
        if asked.ledger is not None:
            place = LocationSpec(url=asked.ledger)
        elif not foreign and not asked.source.is_levels:
            place = asked.source
        elif not asked.target.is_levels:
            place = asked.target
        else:
            place = LocationSpec()
        return self._store(place).migration_ledger(self._endpoint, self._settings.clock)

    def terms(self, parts: Participants | DrainParticipants) -> Terms:
        """Return the terms of the request, without secrets."""
        asked = self._asked
        renames = [f"{old}={new}" for old, new in sorted(asked.renames.items())]
        return Terms(
            endpoint=self._endpoint,
            source=parts.source.describe(),
            target=parts.target.describe(),
            window=asked.window,
            batch=asked.batch,
            others={"rename": " ".join(renames)} if renames else {},
        )

    @property
    def audit(self) -> MigrationAudit:
        """The audits of the stores that were opened for the ends and the ledger."""
        clock = self._settings.clock
        return MigrationAudit(
            [each.timeouts(self._endpoint, clock) for each in self._stores.values()]
        )

    def close(self) -> None:
        """Close the opened resources, the last first."""
        self._closing.close()

    def _drain_parts(self) -> DrainParticipants:
        asked, host = self._asked, self._settings.clock
        transport = self._broker(asked.source)
        if asked.target.is_levels:
            self._require_other_levels(transport)
        ledger = self.ledger()
        clock = OriginClock(ledger.now, host)
        origin = LevelsOrigin(
            transport,
            _names(asked.source),
            clock,
            sender=None if asked.all_senders else self._endpoint,
            renames=asked.renames,
        )
        if asked.target.is_levels:
            sink: Sink = LevelsSink(self._levels_target(clock))
        else:
            store = self._store(asked.target)
            into = store.migration_target(self._endpoint, host)
            sink = StoreSink(into, self._endpoint, self._settings.limits, clock, self._wake)
        return DrainParticipants(
            source=origin, sink=sink, ledger=ledger, runner=self._runner, clock=host
        )

    def _require_other_levels(self, transport: KombuTransport) -> None:
        """Raise ConfigurationError unless the target is other levels on the source's broker."""
        asked = self._asked
        if self._broker(asked.target).describe() != transport.describe():
            raise ConfigurationError(
                "levels go into levels on the same broker only; to go to another, take them into a "
                "store first"
            )
        if _names(asked.target) == _names(asked.source):
            raise ConfigurationError(
                "source and target are the same levels; use different --from-names or --to-names"
            )

    def _wake(self, due: Micros) -> None:
        """Wake the poller of the endpoint; otherwise it polls within one interval."""
        address = f"{self._endpoint}{TIMEOUTS}"
        try:
            with closing(self._settings.transport.session()) as session:
                session.send([wake_manager(address, due, self._settings.new_id())])
        except TransportUnavailable as error:
            logger.info(
                "migration could not wake the poller of %s: %s",
                self._endpoint,
                on_one_line(error),
                extra={"event": "wake_not_sent", "endpoint": self._endpoint},
            )

    def _own_source(self) -> Source:
        # The levels lead only to queues.
        return self._store(self._asked.source).migration_source(
            self._endpoint, self._settings.clock, queues_only=self._asked.target.is_levels
        )

    def _foreign(self) -> Source:
        asked, clock = self._asked, self._settings.clock
        layout = layout_called(asked.layout or "nservicebus")
        if asked.file is not None:
            return ExportFile(
                asked.file,
                layout,
                self._endpoint,
                clock,
                renames=asked.renames,
                limits=self._settings.limits,
            )
        if asked.source.url is None:
            raise ConfigurationError("say in which database the table is: --from URL")
        return ForeignTable(
            Database(asked.source.url, DatabaseSettings(experimental=self._is_experimental)),
            layout,
            self._endpoint,
            clock,
            table=asked.table,
            schema=asked.source.schema,
            renames=asked.renames,
            limits=self._settings.limits,
        )

    @property
    def _is_experimental(self) -> bool:
        """Whether the settings of the endpoint's own database allow SQL Server."""
        own = self._settings.persistence
        database = None if own is None else own.database
        return isinstance(database, Database) and database.settings.experimental

    def _levels_target(self, clock: OriginClock) -> LevelsTarget:
        place = self._asked.target
        limits, accepts = self._settings.limits, self._settings.accept_loss
        return LevelsTarget(self._broker(place), _names(place), limits, clock, accepts)

    def _broker(self, place: LocationSpec) -> KombuTransport:
        transport: Transport
        if place.url in (None, NATIVE):
            transport = self._settings.transport
        else:
            transport = KombuTransport(str(place.url))
            self._closing.callback(transport.close)
        if not isinstance(transport, KombuTransport) or transport.capabilities.name != "amqp":
            raise ConfigurationError(
                f"{transport.describe()} has no delay levels; only RabbitMQ has: use_transport "
                "amqp://…, or name the broker's URL"
            )
        return transport

    def _store(self, place: LocationSpec) -> MigrationPlaces:
        """Return the store at *place*, opened once for the ends and the ledger."""
        if place not in self._stores:
            self._stores[place] = self._opened(place)
        return self._stores[place]

    def _opened(self, place: LocationSpec) -> MigrationPlaces:
        own = self._settings.persistence
        persistence: Persistence
        if place.url is None:
            if own is None:
                raise ConfigurationError(
                    "the endpoint has no store of its own; name one: --from, --to or --ledger URL"
                )
            persistence = own
        elif place.url.endswith(".toml"):
            persistence = self._of_file(place)
        else:
            options = {"prefix": place.prefix, "schema": place.schema}
            given = {name: value for name, value in options.items() if value is not None}
            persistence = persistence_from_url(place.url, **given)
            self._closing.callback(persistence.close)
        if not isinstance(persistence, MigrationPlaces):
            raise ConfigurationError(
                f"timeouts cannot be moved from or into {persistence.capabilities.name}; only SQL "
                "stores have source, target and ledger of a migration"
            )
        with _install_named(place):
            persistence.check()
        return persistence

    def _of_file(self, place: LocationSpec) -> Persistence:
        """Return the store of a settings file, with all of the file's settings for it."""
        if place.prefix is not None or place.schema is not None:
            raise ConfigurationError(
                f"{place.url} names its tables itself; leave prefix and schema out"
            )
        settings = configuration_from(Path(str(place.url))).settings()
        self._closing.callback(settings.transport.close)
        if settings.persistence is None:
            raise ConfigurationError(
                f'{place.url} names no persistence; set persistence = "postgresql+psycopg://…", or '
                "name another store"
            )
        self._closing.callback(settings.persistence.close)
        return settings.persistence


def _names(place: LocationSpec) -> NameSet:
    return name_set(place.names).prefixed(place.names_prefix)


_ADDRESSES: Final = ("host", "hostaddr", "port", "service", "unix_socket")
"""Parameters of a URL that name another server; all others are connection settings."""


def _database_of(store: MigrationPlaces) -> object:
    """Return the database of *store*: a file, or a URL without driver and user."""
    found = store.database
    if not isinstance(found, Database):
        return store
    if found.path is not None:
        return found.path.resolve()
    query = {name: found.url.query[name] for name in _ADDRESSES if name in found.url.query}
    return found.url.set(drivername=found.dialect.name, username="", password="", query=query)


def _place(described: str) -> str:
    """Return the schema and prefix of the tables, for the description of a source or target."""
    return described.rpartition(" ")[2]


_INSTALL: Final = "run `timeoutmgr install`"


@contextmanager
def _install_named(place: LocationSpec) -> Iterator[None]:
    """Add to SchemaMissing the command for *place*: the plain command is for the own store."""
    try:
        yield
    except SchemaMissing as error:
        if place.url is None:
            raise
        is_file = place.url.endswith(".toml")
        command = f"run `timeoutmgr --config {place.url if is_file else 'FILE'} install --tables`"
        which = "" if is_file else ", with a settings FILE that names these tables as its store"
        raise SchemaMissing(str(error).replace(_INSTALL, f"{command}{which}")) from error

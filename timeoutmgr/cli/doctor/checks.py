"""Checks of the doctor. Each check yields findings even if it cannot reach its subject."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy import text

from timeoutmgr.cli.doctor.alerts import Thresholds, alerts
from timeoutmgr.cli.doctor.dead_letter_node import node_findings
from timeoutmgr.cli.doctor.delay_levels import native_findings
from timeoutmgr.cli.doctor.findings import (
    dead_owner_findings,
    fail,
    foreign_queue_findings,
    no_file,
    ok,
    own_queue_findings,
    server_settings,
    warn,
)
from timeoutmgr.cli.doctor.standbys import standby_findings
from timeoutmgr.cli.doctor.vitals import queue_vitals, store_vitals
from timeoutmgr.contracts import (
    CountsDestinations,
    FindsDestinations,
    GroupBy,
    HasLayout,
    HasLink,
    HasStoreClock,
    LinkSecurity,
    Persistence,
    TimeoutFilter,
    TimeoutStore,
    TransactionMode,
)
from timeoutmgr.contracts.reports import Finding, Level
from timeoutmgr.database import Database, as_database
from timeoutmgr.database.proof import durability_doubts
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.installation import REMEDY, host_file_beside_broker, missing_exchanges
from timeoutmgr.endpoint.timeouts import grouped
from timeoutmgr.errors import ConfigurationError, TimeoutManagerError
from timeoutmgr.features.delayed_delivery import StoreStart
from timeoutmgr.features.markers import compare_markers
from timeoutmgr.message.foreign import is_of_an_exchange
from timeoutmgr.message.instants import Micros

_OFFSET_WARNS: Final = 1.0
_OFFSET_FAILS: Final = 30.0
_MOST_EXAMINED: Final = 10_000
"""Maximum pending timeouts whose destinations are checked, the earliest first."""
_PACKET_ROOM: Final = 1024 * 1024
"""Bytes of a MySQL packet that a statement needs besides the body and headers of a message."""


def examine(parts: AssembledEndpoint, limits: Thresholds) -> Iterator[Finding]:
    """Yield the findings; skip checks that depend on a failed check."""
    yield from _promises(parts)
    queues = list(_guarded("transport", lambda: _transport(parts)))
    yield from queues
    store = list(_guarded("storage", lambda: _storage(parts)))
    yield from store
    if not _has_failed(queues):
        yield from _guarded("queues", lambda: _queues(parts))
        yield from _guarded("delay levels", lambda: native_findings(parts))
    if not _has_failed(queues) and not _has_failed(store):
        yield from _guarded("marker", lambda: _marker(parts))
    pending = _pending_of(parts)
    if not _has_failed(store) and pending is not None:
        yield from _guarded("clock", lambda: _clock(parts, pending))
        if not _has_failed(queues):
            yield from _guarded("destinations", lambda: _destinations(parts, pending))
    reached = (not _has_failed(store), not _has_failed(queues))
    yield from _guarded("alerts", lambda: _alerts(parts, limits, *reached))
    yield from _guarded("dead-letter queues", lambda: node_findings(parts))
    for database in parts.databases:
        if not _has_failed(queues) and not _has_failed(store):
            yield from _guarded("database", partial(_database, parts, as_database(database)))


def _promises(parts: AssembledEndpoint) -> Iterator[Finding]:
    settings = parts.settings
    yield ok("mode", parts.mode.value)
    queue = settings.transport.capabilities
    level = Level.OK if queue.durable else Level.WARN
    remedy = "" if queue.durable else "accept_loss is set; otherwise use RabbitMQ or the SQL queue"
    yield Finding(
        level=level, check="transport keeps", text=f"{queue.name}; {queue.note}", remedy=remedy
    )
    storage = settings.delayed_delivery or settings.persistence
    if storage is not None:
        kept = storage.capabilities
        locks = "row locks" if kept.row_locks else "fenced claims"
        yield Finding(
            level=Level.OK if kept.durable else Level.WARN,
            check="storage keeps",
            text="; ".join(each for each in (kept.name, locks, kept.note) if each),
            remedy="" if kept.durable else "accept_loss is set; otherwise use a SQL persistence",
        )
    doubt = host_file_beside_broker(settings)
    if doubt is not None:
        yield warn("one store for all hosts", doubt, REMEDY)


def _transport(parts: AssembledEndpoint) -> Iterator[Finding]:
    transport = parts.settings.transport
    security = transport.link_security if isinstance(transport, HasLink) else None
    if security is not None:
        yield _link(security)
    if (finding := no_file(transport.database)) is not None:
        yield finding
        return
    with closing(transport.session()) as session:
        session.ping()
    yield ok("transport", f"{transport.describe()} answers")
    if transport.database is not None:
        yield from _schema("queue tables", transport.check)


def _marker(parts: AssembledEndpoint) -> Iterator[Finding]:
    if parts.features.store is None and parts.features.delayed is None:
        return
    shared = compare_markers(parts.settings, write=False)
    if shared is not None:
        yield ok("marker", "store and broker belong together")


def _link(security: LinkSecurity) -> Finding:
    level = Level.WARN if security.remedy else Level.OK
    return Finding(
        level=Level.FAIL if security.is_broken else level,
        check="connection",
        text=security.text,
        remedy=security.remedy,
    )


def _storage(parts: AssembledEndpoint) -> Iterator[Finding]:
    if parts.features.delayed is not None:
        yield from _delayed_store(parts, parts.features.delayed)
        return
    persistence, store = parts.settings.persistence, parts.features.store
    if persistence is None or store is None:
        yield ok("storage", "none is needed: no feature stores timeouts here")
        return
    if (finding := no_file(persistence.database)) is not None:
        yield finding
        return
    store.ping()
    where = persistence.capabilities.name
    if persistence.database is not None:
        where = persistence.database.describe()
    yield ok("storage", f"{where} answers")
    yield from _schema("storage tables", persistence.check)
    yield from _layout(persistence)


def _delayed_store(parts: AssembledEndpoint, delayed: StoreStart) -> Iterator[Finding]:
    settings = parts.settings.delayed_delivery
    assert settings is not None, "there is a store"
    if (finding := no_file(settings.database)) is not None:
        yield finding
        return
    delayed.start(install=False)
    delayed.store.next()
    name = settings.capabilities.name
    where = name if settings.database is None else settings.database.describe()
    yield ok("delayed message store", f"{where} answers, and has the tables of the store")


def _schema(check: str, run: Callable[[], None]) -> Iterator[Finding]:
    run()
    yield ok(check, "exist, in the version that this program needs")


def _layout(persistence: Persistence) -> Iterator[Finding]:
    found = persistence.layout() if isinstance(persistence, HasLayout) else None
    if found is not None:
        level = Level.WARN if found.remedy else Level.OK
        yield Finding(level=level, check="layout", text=found.text, remedy=found.remedy)


def _queues(parts: AssembledEndpoint) -> Iterator[Finding]:
    with closing(parts.settings.transport.session()) as session:
        missing = session.missing_queues(parts.queues)
    if missing:
        yield fail("queues", f"missing: {', '.join(missing)}", "run `timeoutmgr install`")
    else:
        yield ok("queues", ", ".join(parts.queues) or "none is needed")
    without = missing_exchanges(parts)
    if without:
        yield fail(
            "exchanges",
            f"missing: {', '.join(without)}; endpoints of NServiceBus' conventional topology "
            "cannot send to these queues",
            "run `timeoutmgr install`",
        )
    elif without is not None:
        yield ok("exchanges", "each queue has an exchange of its name: the conventional topology")
    yield from own_queue_findings(parts)
    yield from dead_owner_findings(parts.settings.transport)


@dataclass(frozen=True, slots=True)
class PendingTotals:
    """The clock of either kind of store, and its counts of pending timeouts by destination.

    None stands for an ability that the store does not have.
    """

    now: Callable[[], Micros] | None
    destinations: Callable[[], Mapping[str, int]] | None


def _pending_of(parts: AssembledEndpoint) -> PendingTotals | None:
    if parts.features.delayed is not None:
        delayed = parts.features.delayed.store
        return PendingTotals(
            delayed.now if isinstance(delayed, HasStoreClock) else None,
            partial(delayed.destinations, _MOST_EXAMINED)
            if isinstance(delayed, CountsDestinations)
            else None,
        )
    store = parts.features.store
    return None if store is None else PendingTotals(store.now, lambda: _counted(store))


def _counted(store: TimeoutStore) -> dict[str, int]:
    """Return the counts by destination; a single call of the store may stop before the limit."""
    counts, behind = Counter[str](), None
    while (left := _MOST_EXAMINED - counts.total()) > 0:
        groups = grouped(store, TimeoutFilter(), GroupBy.DESTINATION, left, behind)
        counts.update({name: count for name, count in groups.counts.items() if name is not None})
        behind = groups.searched_to
        if behind is None:
            break
    return counts


def _clock(parts: AssembledEndpoint, pending: PendingTotals) -> Iterator[Finding]:
    if pending.now is None:
        yield ok("clock", "the store has no clock, and uses the clock of this host")
        return
    clock = parts.settings.clock
    before = clock.now()
    theirs = pending.now()
    after = clock.now()
    # The database read its clock at some time between our two readings.
    offset = max(before - theirs, theirs - after, 0) / 1_000_000
    level = Level.OK
    if offset > _OFFSET_WARNS:
        level = Level.WARN if offset <= _OFFSET_FAILS else Level.FAIL
    yield Finding(
        level=level,
        check="clock",
        text=f"this host and the database differ by {offset:.3f} s",
        remedy="" if level is Level.OK else "set both clocks (NTP): due times are wrong by as much",
    )


def _destinations(parts: AssembledEndpoint, pending: PendingTotals) -> Iterator[Finding]:
    if pending.destinations is None:
        yield ok("destinations", "not checked: the store does not count them")
        return
    found = pending.destinations()
    with closing(parts.settings.transport.session()) as session:
        queues = sorted(name for name in found if not is_of_an_exchange(name))
        missing = (
            session.missing_destinations(queues)
            if isinstance(session, FindsDestinations)
            else session.missing_queues(queues)
        )
        yield from foreign_queue_findings(session, set(found) - set(missing))
    is_part = sum(found.values()) >= _MOST_EXAMINED
    least, some = ("at least ", f"the first {_MOST_EXAMINED:,} ") if is_part else ("", "")
    for queue in missing:
        yield fail(
            "destinations",
            f"{least}{found[queue]} pending timeouts are for {queue!r}, which does not exist",
            "start or install the endpoint that owns it before they are due",
        )
    if not missing:
        yield ok("destinations", f"all {len(found)} of {some}pending timeouts exist")


def _alerts(
    parts: AssembledEndpoint, limits: Thresholds, with_store: bool, with_queues: bool
) -> Iterator[Finding]:
    store = store_vitals(parts, limits.max_overdue) if with_store else None
    yield from alerts(store, queue_vitals(parts) if with_queues else None, limits)


def _database(parts: AssembledEndpoint, database: Database) -> Iterator[Finding]:
    if database.is_sqlite:
        scope = parts.mode is TransactionMode.TRANSACTION_SCOPE
        handlers = "; handlers run one at a time in transaction_scope" if scope else ""
        yield ok("one writer", f"SQLite lets one write at a time, on one host{handlers}")
    yield from _durability(parts, database)
    if database.dialect.name == "postgresql":
        yield from server_settings(database)
        yield from standby_findings(database)
    if database.dialect.name in ("mysql", "mariadb"):
        with database.read() as connection:
            packet = int(connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())
        limits = parts.settings.limits
        # The driver writes two hexadecimal digits for a byte of a body, and two bytes for a quote.
        need = 2 * (limits.max_body + limits.max_headers) + _PACKET_ROOM
        need += -need % 1024  # the server rounds the setting down to kilobytes
        enough = packet >= need
        yield Finding(
            level=Level.OK if enough else Level.FAIL,
            check="max_allowed_packet",
            text=f"{packet} bytes, bodies and headers within limits take up to {need}",
            remedy=""
            if enough
            else f"SET GLOBAL max_allowed_packet = {need} (and in the server's file), or lower "
            "limits.max_body",
        )


def _durability(parts: AssembledEndpoint, database: Database) -> Iterator[Finding]:
    doubts = durability_doubts(database)
    for doubt in doubts:
        yield Finding(
            level=Level.WARN if parts.settings.accept_loss else Level.FAIL,
            check=doubt.setting,
            text=f"{doubt.value}: {doubt.loss}",
            remedy=doubt.remedy,
        )
    if not doubts and not database.is_sqlite:
        yield ok("durability", "the server writes each commit to disk before it answers")


def _guarded(check: str, run: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from run()
    except TimeoutManagerError as error:
        remedy = "start the server, or correct its address, the password or the rights"
        if isinstance(error, ConfigurationError):
            remedy = ""  # the error's text has the remedy
        yield fail(check, str(error), remedy)


def _has_failed(findings: Iterable[Finding]) -> bool:
    return any(finding.level is Level.FAIL for finding in findings)

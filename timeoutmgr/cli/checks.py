"""What the doctor looks at. Each check yields findings; one that cannot look says so."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Final

from sqlalchemy import text

from timeoutmgr.assembly import Parts
from timeoutmgr.cli.output import masked
from timeoutmgr.contracts import TimeoutFilter, TransactionMode
from timeoutmgr.database import Database
from timeoutmgr.errors import ConfigurationError, TimeoutManagerError
from timeoutmgr.timeouts import Timeouts

_OFFSET_WARNS: Final = 1.0
_OFFSET_FAILS: Final = 30.0
_MOST_LOOKED_AT: Final = 10_000
"""Pending timeouts whose destinations are looked at, the earliest first."""
_PACKET_ROOM: Final = 1024 * 1024
"""What headers and the statement need in a MySQL packet beside the body."""


class Level(StrEnum):
    """How a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's."""

    level: Level
    check: str
    text: str
    remedy: str = ""

    def document(self) -> dict[str, str]:
        """Return it for JSON, secrets masked."""
        found = {"level": self.level.value, "check": self.check, "text": masked(self.text)}
        return {**found, "remedy": masked(self.remedy)} if self.remedy else found


def examine(parts: Parts) -> Iterator[Finding]:
    """Yield what was found; a check that depends on a failed one is left out."""
    yield from _promises(parts)
    queues = list(_guarded("transport", lambda: _transport(parts)))
    yield from queues
    store = list(_guarded("storage", lambda: _storage(parts)))
    yield from store
    if not _has_failed(queues):
        yield from _guarded("queues", lambda: _queues(parts))
    if not _has_failed(store) and parts.context.store is not None:
        yield from _guarded("clock", lambda: _clock(parts))
        if not _has_failed(queues):
            yield from _guarded("destinations", lambda: _destinations(parts))
    for database in _databases(parts):
        if not _has_failed(queues) and not _has_failed(store):
            yield from _guarded("database", partial(_database, parts, database))


def _promises(parts: Parts) -> Iterator[Finding]:
    settings = parts.settings
    yield _ok("mode", parts.mode.value)
    queue = settings.transport.capabilities
    level = Level.OK if queue.durable else Level.WARN
    remedy = "" if queue.durable else "accept_loss is set; use RabbitMQ or the SQL queue else"
    yield Finding(
        level=level, check="transport keeps", text=f"{queue.name}; {queue.note}", remedy=remedy
    )
    if settings.persistence is not None:
        kept = settings.persistence.capabilities
        locks = "row locks" if kept.row_locks else "fenced claims"
        yield Finding(
            level=Level.OK if kept.durable else Level.WARN,
            check="storage keeps",
            text="; ".join(each for each in (kept.name, locks, kept.note) if each),
            remedy="" if kept.durable else "accept_loss is set; use a SQL persistence else",
        )


def _transport(parts: Parts) -> Iterator[Finding]:
    transport = parts.settings.transport
    if (finding := _no_file(transport.database)) is not None:
        yield finding
        return
    with closing(transport.session()) as session:
        session.ping()
    yield _ok("transport", f"{transport.describe()} answers")
    yield from _schema("queue tables", transport.check)


def _storage(parts: Parts) -> Iterator[Finding]:
    persistence, store = parts.settings.persistence, parts.context.store
    if persistence is None or store is None:
        yield _ok("storage", "none is needed: no feature stores timeouts here")
        return
    if (finding := _no_file(persistence.database)) is not None:
        yield finding
        return
    store.ping()
    where = persistence.capabilities.name
    if persistence.database is not None:
        where = persistence.database.describe()
    yield _ok("storage", f"{where} answers")
    yield from _schema("storage tables", persistence.check)


def _schema(check: str, look: Callable[[], None]) -> Iterator[Finding]:
    look()
    yield _ok(check, "are there, and of this version")


def _queues(parts: Parts) -> Iterator[Finding]:
    with closing(parts.settings.transport.session()) as session:
        missing = session.missing_queues(parts.queues)
    if missing:
        yield Finding(
            level=Level.FAIL,
            check="queues",
            text=f"missing: {', '.join(missing)}",
            remedy="run `timeoutmgr install`",
        )
    else:
        yield _ok("queues", ", ".join(parts.queues) or "none is needed")


def _clock(parts: Parts) -> Iterator[Finding]:
    store, clock = parts.context.store, parts.settings.clock
    assert store is not None
    before = clock.now()
    theirs = store.now()
    after = clock.now()
    # The database looked at its clock somewhere between our two looks.
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


def _destinations(parts: Parts) -> Iterator[Finding]:
    store = parts.context.store
    assert store is not None
    views = Timeouts(store, lambda _due: None).list(limit=_MOST_LOOKED_AT)
    destinations = sorted({view.destination for view in islice(views, _MOST_LOOKED_AT)})
    with closing(parts.settings.transport.session()) as session:
        missing = session.missing_queues(destinations)
    for queue in missing:
        count = store.count(TimeoutFilter(destination=queue))
        yield Finding(
            level=Level.FAIL,
            check="destinations",
            text=f"{count} pending timeouts are for {queue!r}, which does not exist",
            remedy="start or install the endpoint that owns it before they are due",
        )
    if not missing:
        yield _ok("destinations", f"all {len(destinations)} of pending timeouts exist")


def _database(parts: Parts, database: Database) -> Iterator[Finding]:
    if database.is_sqlite:
        scope = parts.mode is TransactionMode.TRANSACTION_SCOPE
        handlers = "; handlers run one at a time in transaction_scope" if scope else ""
        yield _ok("one writer", f"SQLite lets one write at a time, on one host{handlers}")
    if database.dialect.name in ("mysql", "mariadb"):
        with database.read() as connection:
            packet = int(connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())
        need = parts.settings.limits.max_body + parts.settings.limits.max_headers + _PACKET_ROOM
        enough = packet >= need
        yield Finding(
            level=Level.OK if enough else Level.FAIL,
            check="max_allowed_packet",
            text=f"{packet} bytes, bodies and headers within limits need {need}",
            remedy=""
            if enough
            else f"SET GLOBAL max_allowed_packet = {need} (and in the server's file), or lower "
            "limits.max_body",
        )


def _databases(parts: Parts) -> list[Database]:
    settings = parts.settings
    candidates = (
        settings.transport.database,
        settings.persistence.database if settings.persistence is not None else None,
    )
    found: list[Database] = []
    for database in candidates:
        if database is not None and database not in found:
            found.append(database)
    return found


def _no_file(database: Database | None) -> Finding | None:
    # To connect would create the file, and a doctor changes nothing.
    if database is None or database.path is None or database.path.exists():
        return None
    return Finding(
        level=Level.FAIL,
        check="file",
        text=f"{database.path} does not exist",
        remedy="run `timeoutmgr install`",
    )


def _guarded(check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except ConfigurationError as error:  # its sentence says what to do
        yield Finding(level=Level.FAIL, check=check, text=str(error))
    except TimeoutManagerError as error:
        yield Finding(
            level=Level.FAIL,
            check=check,
            text=str(error),
            remedy="start the server, or correct the address and the password",
        )


def _has_failed(findings: Iterable[Finding]) -> bool:
    return any(finding.level is Level.FAIL for finding in findings)


def _ok(check: str, text: str) -> Finding:
    return Finding(level=Level.OK, check=check, text=text)

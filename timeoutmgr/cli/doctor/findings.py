"""Constructors of findings, and the findings about databases and existing queues."""

from collections.abc import Collection, Iterator
from typing import Final

from sqlalchemy import text

from timeoutmgr.contracts import (
    InspectsQueues,
    QueueReport,
    SharedDatabase,
    Transport,
    TransportSession,
)
from timeoutmgr.contracts.reports import Finding, Level
from timeoutmgr.database import Database
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.installation import inspect, refusals_of_delays
from timeoutmgr.errors import LOSSY_REMEDY
from timeoutmgr.features.parts import QUEUE_HOLDS_UP, QUEUE_HOLDS_UP_REMEDY

# --- findings that several checks of the doctor report ----------------------------------------


def ok(check: str, text: str) -> Finding:
    """Return a finding of a check that passed."""
    return Finding(level=Level.OK, check=check, text=text)


def warn(check: str, text: str, remedy: str) -> Finding:
    """Return a finding about a problem that does not do harm yet."""
    return Finding(level=Level.WARN, check=check, text=text, remedy=remedy)


def fail(check: str, text: str, remedy: str) -> Finding:
    """Return a finding that makes the doctor fail."""
    return Finding(level=Level.FAIL, check=check, text=text, remedy=remedy)


def no_file(database: SharedDatabase | None) -> Finding | None:
    """Return a finding if *database* is a file that does not exist; None otherwise.

    A connection would create the file, and the doctor changes nothing.
    """
    if database is None or database.path is None or database.path.exists():
        return None
    return fail("file", f"{database.path} does not exist", "run `timeoutmgr install`")


_COMPRESSION: Final = "wal_compression"


def server_settings(database: Database) -> Iterator[Finding]:
    """Yield findings about settings that would make the server faster."""
    with database.read() as connection:
        found = connection.execute(text(f"SHOW {_COMPRESSION}")).scalar_one()
    if found == "off":
        yield ok(
            _COMPRESSION,
            "off; with millions pending, lz4 makes what checkpoints add to the log a tenth",
        )


def dead_owner_findings(transport: Transport) -> Iterator[Finding]:
    """Yield a warning about kombu's queues whose owners are dead."""
    from timeoutmgr.transport.sql.transport import SqlTransport

    if not isinstance(transport, SqlTransport):
        return
    if count := transport.owned_queues.count_dead():
        yield warn(
            "dead owners",
            f"{count} queues were left by killed processes of kombu or Celery",
            "start a worker of the broker: it removes them within 10 s of waiting",
        )


_MOST_FOREIGN: Final = 50
"""Queues of other parties that are checked: each takes several requests to the broker."""


def own_queue_findings(parts: AssembledEndpoint) -> Iterator[Finding]:
    """Yield findings about the endpoint's own queues and its error queue."""
    reports = list(inspect(parts))
    lossy = Level.WARN if parts.settings.accept_loss else Level.FAIL
    for report in reports:
        for each in report.losses:
            yield _finding(lossy, report, each, LOSSY_REMEDY)
        for each in refusals_of_delays(parts, report):
            yield _finding(Level.FAIL, report, f"{each}: {QUEUE_HOLDS_UP}", QUEUE_HOLDS_UP_REMEDY)
        for each in report.doubts:
            yield _finding(
                Level.WARN, report, each, "empty it, delete it and run `timeoutmgr install`"
            )
        if report.unchecked:
            yield _finding(
                Level.WARN,
                report,
                f"not checked: {report.unchecked}",
                "run doctor as the broker's user that installs",
            )
    yield from _checked(reports)


def foreign_queue_findings(session: TransportSession, queues: Collection[str]) -> Iterator[Finding]:
    """Yield a warning, never a failure, for each queue of another party that drops messages."""
    if not isinstance(session, InspectsQueues):
        return
    for report in session.inspect_queues(sorted(queues)[:_MOST_FOREIGN]):
        for each in report.losses:
            yield _finding(
                Level.WARN, report, each, "if this is not intended, inform the owner of the queue"
            )
    if len(queues) > _MOST_FOREIGN:
        yield ok("queues keep", f"{len(queues) - _MOST_FOREIGN} more destinations: not checked")


def _checked(reports: Collection[QueueReport]) -> Iterator[Finding]:
    kept = [each.queue for each in reports if not each.losses and not each.unchecked]
    unread = next((each.policies_unread for each in reports if each.policies_unread), "")
    if kept:
        yield ok("queues keep", f"{', '.join(kept)} drop nothing by their own properties")
    if unread:
        yield ok("queue policies", f"not checked: {unread}")


def _finding(level: Level, report: QueueReport, text: str, remedy: str) -> Finding:
    return Finding(
        level=level, check="queues keep", text=f"queue {report.queue!r}: {text}", remedy=remedy
    )

"""Installers, which create missing queues and tables, and the checks before a start."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

from sqlalchemy.exc import DBAPIError

from timeoutmgr.contracts import CanUninstall, InspectsExchanges, InspectsQueues, QueueReport
from timeoutmgr.contracts.reports import LIVE
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.proof import require_durable
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.errors import (
    CombinationRefused,
    FeatureRefused,
    LossyQueue,
    QueueMissing,
    SchemaMissing,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.features.leftovers import (
    KEEP_OR_FORCE,
    NAME_IT,
    Uninstalled,
    find_leftovers,
    stored_of,
)
from timeoutmgr.features.markers import check_pair, compare_markers, renew_marker, unmark_broker
from timeoutmgr.features.parts import QUEUE_HOLDS_UP, QUEUE_HOLDS_UP_REMEDY, Satellite
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)

# --- timeouts in a file on one host, with queues that every host can reach ---------------------

REMEDY = (
    "run all processes of this endpoint on this host, or name a database server as the persistence"
)


def host_file_beside_broker(settings: EndpointSettings) -> str | None:
    """Return a sentence about timeouts that other hosts cannot reach; None if there are none.

    A process on another host would use a file there; each process lists, cancels and dispatches
    only the timeouts in its own file.
    """
    storage = settings.delayed_delivery or settings.installed_persistence
    kept_in, transport = None if storage is None else storage.database, settings.transport
    if kept_in is None or kept_in.path is None or transport.capabilities.name == "memory":
        return None
    if transport.database is not None and transport.database.is_sqlite:
        return None
    return (
        f"the timeouts rest in the file {kept_in.path} of this host, the queues at "
        f"{transport.describe()}: a process on another host would have a file of its own"
    )


UNREACHED: Final = (
    "endpoints of NServiceBus' conventional topology cannot send to it; run `timeoutmgr install`"
)

# --- inspection of an endpoint's own queues: existing queues must not drop messages ------------


def refuse_lossy_queues(parts: AssembledEndpoint) -> None:
    """Raise LossyQueue if a queue of the endpoint drops messages, unless loss is accepted.

    Raises CombinationRefused for a queue that would hold up native delays.
    """
    reports = list(inspect(parts))
    lossy = {report.queue: report.losses for report in reports if report.losses}
    if lossy and not parts.settings.accept_loss:
        raise LossyQueue(lossy)
    for report in reports:
        for each in refusals_of_delays(parts, report):
            raise CombinationRefused(
                f"native delayed delivery to queue {report.queue!r} ({each})",
                QUEUE_HOLDS_UP,
                QUEUE_HOLDS_UP_REMEDY,
            )
        _log(report, parts.settings.name)


def refusals_of_delays(parts: AssembledEndpoint, report: QueueReport) -> tuple[str, ...]:
    """Return the limits at which the queue of *report* would refuse natively delayed messages."""
    levels = tuple(each.name for each in parts.features.levels)
    is_own = bool(levels) and report.queue == parts.settings.input_queue
    return report.refusals if is_own or report.queue.startswith(levels) else ()


def inspect(parts: AssembledEndpoint) -> Iterator[QueueReport]:
    """Yield reports on the existing queues of the endpoint, if the transport can inspect.

    Delay levels with the same properties share a report.
    """
    error_queue = parts.settings.error_queue
    consumed = [satellite.consumption.queue for satellite in parts.satellites]
    rest = [name for name in dict.fromkeys([*parts.queues, *consumed]) if name != error_queue]
    levels = [one for one in parts.features.levels if one.name not in rest]
    with closing(parts.settings.transport.session()) as session:
        if not isinstance(session, InspectsQueues):
            return
        if parts.queues:
            yield from session.inspect_queues([error_queue])
            yield from session.inspect_queues(rest, error_queue=error_queue)
        if levels:
            found = session.inspect_queues({one.name: one.arguments or {} for one in levels})
            yield from _alike(found)


def _alike(reports: Iterable[QueueReport]) -> Iterator[QueueReport]:
    """Yield one report for all queues with the same answers: a policy is often for all levels."""
    queues: dict[QueueReport, list[str]] = {}
    for report in reports:
        queues.setdefault(replace(report, queue=""), []).append(report.queue)
    for report, (first, *others) in queues.items():
        yield replace(report, queue=f"{first} and {len(others)} more" if others else first)


def _log(report: QueueReport, endpoint: str) -> None:
    found = [("queue_may_lose", "may lose accepted messages", each) for each in report.losses]
    found += [("queue_is_weak", "is weaker than it could be", each) for each in report.doubts]
    if report.unchecked:
        found.append(("queue_unchecked", "was not checked", report.unchecked))
    for event, finding, detail in found:
        fields = {"event": event, "endpoint": endpoint}
        logger.warning("queue %.80r %s: %s", report.queue, finding, detail, extra=fields)


# --- removal of a timeout manager that an endpoint no longer uses and that is empty ------------


def uninstall_timeout_manager(
    settings: EndpointSettings, *, force: bool = False, dry_run: bool = False
) -> Uninstalled:
    """Remove the queues and tables of the endpoint's timeout manager.

    After a crash, a second call continues the removal. Unless *force*, raises FeatureRefused while
    a timeout is pending, the feature is enabled, or a process with the feature runs.
    """
    if not force and any(feature.name == "timeout-manager" for feature in settings.features):
        raise FeatureRefused(
            f"TimeoutManager is enabled for {settings.name!r}, and its processes would miss their "
            "queues. Take it out of the configuration and restart every process first"
        )
    if not force:
        _refuse_running(settings, "restart them without it first")
    found = find_leftovers(settings)
    if found.pending and not force:
        raise FeatureRefused(
            f"the timeout manager of {settings.name!r} still has messages ({found}); "
            f"{KEEP_OR_FORCE}"
        )
    if found.is_hidden and not force:
        raise FeatureRefused(
            f"the store of the timeout manager of {settings.name!r} is not known: "
            f"{NAME_IT}; or use --force, which leaves its tables as they are"
        )
    if dry_run:
        return Uninstalled(queues=found.queues, tables=_tables_then(settings))
    with closing(settings.transport.session()) as session:
        session.delete_queues(list(found.queues))
    reach("uninstall.queues_deleted")
    _remove_marker(settings)
    return Uninstalled(queues=found.queues, tables=_remove_tables(settings, force))


def _refuse_running(settings: EndpointSettings, remedy: str) -> None:
    """Raise FeatureRefused while a process with the timeout manager lives.

    No count includes the messages that such a process handles now. After a removal it would fail to
    store them, and it would not notice a new marker.
    """
    store = stored_of(settings)
    if store is None:
        return
    oldest = store.now() - LIVE
    running = [f"{one.host} {one.pid}" for one in store.processes() if one.heartbeat >= oldest]
    if running:
        raise FeatureRefused(
            f"processes with the timeout manager of {settings.name!r} run ({', '.join(running)}); "
            f"{remedy}. A killed process counts for three more minutes"
        )


def _tables_then(settings: EndpointSettings) -> str:
    if not isinstance(settings.persistence, CanUninstall):
        return "no persistence is configured, so that tables would be left as they are"
    return f"the rows of {settings.name!r}, and the tables if no other endpoint is in them"


def _remove_marker(settings: EndpointSettings) -> None:
    try:
        settings.transport.check()
        if settings.persistence is not None:
            settings.persistence.check()
    except SchemaMissing as error:
        logger.debug(
            "uninstall of endpoint %s found no marker: %s",
            settings.name,
            on_one_line(error),
            extra={"event": "marker_missing", "endpoint": settings.name},
        )
        return
    unmark_broker(settings)
    reach("uninstall.broker_unmarked")


def _remove_tables(settings: EndpointSettings, force: bool) -> str:
    persistence = settings.persistence
    if persistence is None or not isinstance(persistence, CanUninstall):
        return "no persistence is configured: tables are left as they are"
    try:
        persistence.check()
    except SchemaMissing as error:
        logger.debug(
            "uninstall of endpoint %s found no tables: %s",
            settings.name,
            on_one_line(error),
            extra={"event": "tables_missing", "endpoint": settings.name},
        )
        return "there were no tables"
    if persistence.uninstall(settings.name, force=force):
        return "the tables are removed"
    return f"the rows of {settings.name!r} are removed; other endpoints use the tables"


def install(parts: AssembledEndpoint, *, new_marker: bool = False) -> list[str]:
    """Create the tables and queues of *parts*; return the queues that exist now.

    *new_marker* gives store and broker a new common marker, even if their markers differ.
    Idempotent and safe to run concurrently. Raises TransportUnavailable, StorageUnavailable,
    LossyQueue for an existing queue that drops messages, WrongPair for a store that belongs to
    another broker, and FeatureRefused for a *new_marker* while a process uses the store.
    """
    settings = parts.settings
    settings.transport.install()
    reach("install.queue_tables")
    if settings.installed_persistence is not None:
        settings.installed_persistence.install()
    reach("install.store_tables")
    if parts.features.delayed is not None:
        parts.features.delayed.set_up()
    create_queues(parts)
    reach("install.queues")
    refuse_lossy_queues(parts)
    for database in parts.databases:
        require_durable(database, accept_loss=settings.accept_loss)
    # After the queues, because a feature may have to bind them.
    for installed in parts.features.installed:
        installed.install()
        reach("install.feature")
    if parts.features.store is not None or parts.features.delayed is not None:
        _compare_pair(settings, new_marker)
    return parts.queues


def install_tables(parts: AssembledEndpoint) -> None:
    """Create only the tables of the store, for timeouts that are migrated into it.

    During the migration the broker may still belong to another store.
    """
    settings = parts.settings
    if settings.installed_persistence is None:
        raise FeatureRefused(
            f"endpoint {settings.name!r} has no store whose tables could be made; name a "
            "persistence, or install without --tables"
        )
    settings.installed_persistence.install()
    require_durable(settings.installed_persistence.database, accept_loss=settings.accept_loss)


def create_queues(parts: AssembledEndpoint) -> None:
    """Create missing queues: first the error queue, to which the other queues refer."""
    settings = parts.settings
    if not parts.queues:
        return
    with closing(settings.transport.session()) as session:
        session.create_queues([settings.error_queue])
        reach("install.error_queue")
        rest = [queue for queue in parts.queues if queue != settings.error_queue]
        dead_messages_to = parts.features.dead_messages_to
        own = [queue for queue in rest if queue == settings.input_queue and dead_messages_to]
        # The target of dead messages must exist before queues that refer to it.
        session.create_queues(
            [queue for queue in rest if queue not in own], error_queue=settings.error_queue
        )
        if own:
            session.create_queues(own, error_queue=dead_messages_to)


def prepare(parts: AssembledEndpoint) -> None:
    """Install if the settings say so; check that nothing is missing.

    The transport must answer. The storage may be down: the endpoint starts without it, installs and
    checks it as soon as it answers, and a breaker raises a critical error after a long outage.
    """
    settings = parts.settings
    doubt = host_file_beside_broker(settings)
    if doubt is not None:
        fields = {"event": "host_file", "endpoint": settings.name}
        logger.warning(
            "endpoint %s is for one host: %s; %s", settings.name, doubt, REMEDY, extra=fields
        )
    if settings.install:
        settings.transport.install()
        reach("install.queue_tables")
        create_queues(parts)
        reach("install.queues")
    settings.transport.check()
    require_durable(settings.transport.database, accept_loss=settings.accept_loss)
    _require_queues(parts)
    _warn_of_missing_exchanges(parts)
    refuse_lossy_queues(parts)
    for installed in parts.features.installed:
        if settings.install:
            installed.install()
            reach("install.feature")
        installed.check()
    try:
        if settings.installed_persistence is not None:
            if settings.install:
                settings.installed_persistence.install()
            settings.installed_persistence.check()
            stored_in = settings.installed_persistence.database
            require_durable(stored_in, accept_loss=settings.accept_loss)
            if parts.features.store is not None:
                check_pair(settings)
        if parts.features.delayed is not None:
            parts.features.delayed.start()
            parts.features.delayed.compare()
    except StorageUnavailable as error:
        logger.warning(
            "endpoint %s starts without its timeout storage: %s",
            settings.name,
            on_one_line(error),
            extra={"event": "storage_away", "endpoint": settings.name},
        )


def existing_satellites(parts: AssembledEndpoint) -> list[Satellite]:
    """Return the satellites whose queues exist; call it after missing queues were created."""
    found = {each.consumption.queue for each in parts.satellites if each.optional_queue}
    if found:
        with closing(parts.settings.transport.session()) as session:
            found -= set(session.missing_queues(sorted(found)))
    return [
        each
        for each in parts.satellites
        if not each.optional_queue or each.consumption.queue in found
    ]


def _compare_pair(settings: EndpointSettings, new_marker: bool) -> None:
    if new_marker:
        _refuse_running(settings, "stop them first, or they go on with the former pair")
        renew_marker(settings)
    else:
        compare_markers(settings, write=True)


def missing_exchanges(parts: AssembledEndpoint) -> list[str] | None:
    """Return the queues of *parts* without the exchange by which other programs address them.

    None if queues need no exchange.
    """
    if not parts.queues:
        return None
    with closing(parts.settings.transport.session()) as session:
        if isinstance(session, InspectsExchanges):
            return session.missing_exchanges(parts.queues)
    return None


def _warn_of_missing_exchanges(parts: AssembledEndpoint) -> None:
    for queue in missing_exchanges(parts) or ():
        fields = {"event": "exchange_missing", "endpoint": parts.settings.name}
        logger.warning(
            "queue %.80r has no exchange of its name: %s", queue, UNREACHED, extra=fields
        )


def _require_queues(parts: AssembledEndpoint) -> None:
    if not parts.queues:
        return
    with closing(parts.settings.transport.session()) as session:
        missing = session.missing_queues(parts.queues)
    if missing:
        raise QueueMissing(missing, "run `timeoutmgr install`, or start with install = true")


@contextmanager
def schema_expected(parts: AssembledEndpoint) -> Iterator[None]:
    """Replace an error about a missing table by SchemaMissing, with the command to run.

    This is for an endpoint before its start, when nothing was checked and waiting would not help. A
    running satellite treats the same error as an outage: its messages wait for the tables.
    """
    try:
        yield
    except (StorageUnavailable, TransportUnavailable, DBAPIError) as error:
        missing = parts.missing_schema(error)
        if missing is None:
            raise
        raise missing from error

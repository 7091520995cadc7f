"""Installers, which create missing queues and tables; and the checks of a start."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from timeoutmgr.crashpoints import reach
from timeoutmgr.database.durability import require_durable
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.endpoint.host_files import REMEDY, host_file_beside_broker
from timeoutmgr.endpoint.own_queues import refuse_lossy_queues
from timeoutmgr.errors import (
    QueueMissing,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.features.markers import check_pair, compare_markers, renew_marker
from timeoutmgr.features.parts import Satellite
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)


def install(parts: AssembledEndpoint, *, new_marker: bool = False) -> list[str]:
    """Create the tables and queues of *parts*; return the queues that are there now.

    *new_marker* pairs store and broker anew, also if their markers differ.
    Twice and concurrently is fine. Raises TransportUnavailable, StorageUnavailable, and
    LossyQueue for a queue that was there before and drops messages, WrongPair for a store that
    belongs to another broker.
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
    # After the queues, which a feature may have to bind.
    for installed in parts.features.installed:
        installed.install()
        reach("install.feature")
    if parts.features.store is not None or parts.features.delayed is not None:
        _compare_pair(settings, new_marker)
    return parts.queues


def create_queues(parts: AssembledEndpoint) -> None:
    """Create missing queues: first the error queue, to which the rest point."""
    settings = parts.settings
    if not parts.queues:
        return
    session = settings.transport.session()
    try:
        session.create_queues([settings.error_queue])
        reach("install.error_queue")
        rest = [queue for queue in parts.queues if queue != settings.error_queue]
        session.create_queues(rest, error_queue=settings.error_queue)
    finally:
        session.close()


def prepare(parts: AssembledEndpoint) -> None:
    """Install if the settings say so, and check that nothing is missing.

    The transport must answer. The storage may be away: an endpoint starts without it, installs
    and checks it as soon as it answers, and a breaker raises a critical error after a long outage.
    """
    settings = parts.settings
    doubt = host_file_beside_broker(settings)
    if doubt is not None:
        logger.warning(
            "endpoint %s is for one host: %s; %s",
            settings.name,
            doubt,
            REMEDY,
            extra={"event": "host_file", "endpoint": settings.name},
        )
    if settings.install:
        settings.transport.install()
        reach("install.queue_tables")
        create_queues(parts)
        reach("install.queues")
    settings.transport.check()
    require_durable(settings.transport.database, accept_loss=settings.accept_loss)
    _require_queues(parts)
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
    """Return the satellites whose queues exist, now that missing queues are created."""
    found = {each.consumption.queue for each in parts.satellites if each.optional_queue}
    if found:
        session = parts.settings.transport.session()
        try:
            found -= set(session.missing_queues(sorted(found)))
        finally:
            session.close()
    return [
        each
        for each in parts.satellites
        if not each.optional_queue or each.consumption.queue in found
    ]


def _compare_pair(settings: EndpointSettings, new_marker: bool) -> None:
    if new_marker:
        renew_marker(settings)
    else:
        compare_markers(settings, write=True)


def _require_queues(parts: AssembledEndpoint) -> None:
    if not parts.queues:
        return
    session = parts.settings.transport.session()
    try:
        missing = session.missing_queues(parts.queues)
    finally:
        session.close()
    if missing:
        raise QueueMissing(missing, "run `timeoutmgr install`, or start with install = true")


@contextmanager
def schema_expected(parts: AssembledEndpoint) -> Iterator[None]:
    """Raise SchemaMissing, with the command to run, in place of an error about a missing table.

    For an endpoint before its start, which has checked nothing: to wait would not help. A running
    satellite takes the same error for an outage, because its messages wait for the tables.
    """
    try:
        yield
    except (StorageUnavailable, TransportUnavailable, DBAPIError) as error:
        missing = parts.missing_schema(error)
        if missing is None:
            raise
        raise missing from error

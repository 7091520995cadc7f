"""Removal of a timeout manager that an endpoint no longer uses; never with messages in it."""

import logging
from contextlib import closing

from timeoutmgr.contracts import CanUninstall
from timeoutmgr.contracts.reports import LIVE
from timeoutmgr.crashpoints import reach
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.errors import FeatureRefused, SchemaMissing
from timeoutmgr.features.leftovers import (
    KEEP_OR_FORCE,
    NAME_IT,
    Uninstalled,
    find_leftovers,
    stored_of,
)
from timeoutmgr.features.markers import unmark_broker
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)


def uninstall_timeout_manager(
    settings: EndpointSettings, *, force: bool = False, dry_run: bool = False
) -> Uninstalled:
    """Remove the queues and tables of the endpoint's timeout manager.

    A second call after a crash continues the removal. Raises FeatureRefused while a timeout is
    pending, the feature is enabled, or a process with it runs, unless *force*.
    """
    if not force and any(feature.name == "timeout-manager" for feature in settings.features):
        raise FeatureRefused(
            f"TimeoutManager is enabled for {settings.name!r}, and its processes would miss their "
            "queues. Take it out of the configuration and restart every process first"
        )
    if not force:
        _refuse_running(settings)
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


def _refuse_running(settings: EndpointSettings) -> None:
    """Raise FeatureRefused while a process with the timeout manager lives.

    No count includes the messages that the process handles now, and after the removal it would
    fail to store them.
    """
    store = stored_of(settings)
    if store is None:
        return
    oldest = store.now() - LIVE
    running = [f"{one.host} {one.pid}" for one in store.processes() if one.heartbeat >= oldest]
    if running:
        raise FeatureRefused(
            f"processes with the timeout manager of {settings.name!r} run ({', '.join(running)}); "
            "restart them without it first. A killed process counts for three more minutes"
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

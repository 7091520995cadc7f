"""Taking parts away that an endpoint has no use for any more; never with messages in them."""

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from timeoutmgr.config import EndpointSettings
from timeoutmgr.contracts import CanUninstall
from timeoutmgr.contracts.reports import LIVE
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import FeatureRefused, SchemaMissing
from timeoutmgr.markers import unmark_broker
from timeoutmgr.native.feature import native_feature
from timeoutmgr.native.leftovers import NAME_IT, look, stored_of
from timeoutmgr.redaction import on_one_line

logger = logging.getLogger(__name__)

_KEEP_OR_FORCE = "wait until it is empty, or use --force, which loses what is in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninstalled:
    """What was removed, or would be: *queues* with their messages; *tables* as a sentence."""

    queues: Mapping[str, int]
    tables: str


def uninstall_timeout_manager(
    settings: EndpointSettings, *, force: bool = False, dry_run: bool = False
) -> Uninstalled:
    """Remove the queues and tables of the endpoint's timeout manager.

    Run again after a crash it goes on. Raises FeatureRefused while anything is pending, or while
    the feature is enabled or a process with it runs, unless *force*.
    """
    if not force and any(feature.name == "timeout-manager" for feature in settings.features):
        raise FeatureRefused(
            f"TimeoutManager is enabled for {settings.name!r}, and its processes would miss their "
            "queues. Take it out of the configuration and restart every process first"
        )
    if not force:
        _refuse_running(settings)
    found = look(settings)
    if found.pending and not force:
        raise FeatureRefused(
            f"the timeout manager of {settings.name!r} still has messages ({found}); "
            f"{_KEEP_OR_FORCE}"
        )
    if found.is_hidden and not force:
        raise FeatureRefused(
            f"what the store of the timeout manager of {settings.name!r} holds cannot be seen: "
            f"{NAME_IT}; or use --force, which leaves its tables as they are"
        )
    if dry_run:
        return Uninstalled(queues=found.queues, tables=_tables_then(settings))
    with closing(settings.transport.session()) as session:
        session.delete_queues(list(found.queues))
    reach("uninstall.queues_deleted")
    _remove_marker(settings)
    return Uninstalled(queues=found.queues, tables=_remove_tables(settings, force))


def uninstall_delay_levels(
    settings: EndpointSettings, *, force: bool = False, dry_run: bool = False
) -> Uninstalled:
    """Remove the delay levels, which all endpoints on the broker share that use these names.

    Where the unroutable go stays: levels of other names may send there. Raises FeatureRefused
    while anything is in the levels, unless *force*.
    """
    levels = native_feature(settings).levels(settings)
    counts = levels.counts()
    held = ", ".join(f"{count} in {name}" for name, count in counts.items() if count)
    if held and not force:
        raise FeatureRefused(
            f"the delay levels {levels.names.name!r} hold messages ({held}), perhaps of other "
            f"endpoints too; {_KEEP_OR_FORCE}"
        )
    if not dry_run:
        levels.remove()
    return Uninstalled(queues=counts, tables="")


def _refuse_running(settings: EndpointSettings) -> None:
    """Raise FeatureRefused while a process lives that has the timeout manager still.

    What it has in hand is in no count, and it would store it where nothing is any more.
    """
    store = stored_of(settings)
    if store is None:
        return
    oldest = store.now() - LIVE
    running = [f"{one.host} {one.pid}" for one in store.processes() if one.heartbeat >= oldest]
    if running:
        raise FeatureRefused(
            f"processes with the timeout manager of {settings.name!r} run ({', '.join(running)}); "
            "restart them without it first. One that was killed counts for three minutes more"
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
        logger.debug("there is no marker to remove: %s", on_one_line(error))
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
        logger.debug("nothing to remove: %s", on_one_line(error))
        return "there were no tables"
    if persistence.uninstall(settings.name, force=force):
        return "the tables are removed"
    return f"the rows of {settings.name!r} are removed; other endpoints use the tables"

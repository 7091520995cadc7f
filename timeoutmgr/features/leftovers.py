"""Leftovers of a timeout manager: its queues and its pending timeouts."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import KeepsTimeouts, TimeoutFilter, TimeoutStore
from timeoutmgr.errors import FeatureRefused, SchemaMissing
from timeoutmgr.features.feature import FeatureSettings, ManagerDisabled
from timeoutmgr.message.routes import DISPATCHER, TIMEOUTS

NAME_IT: Final = (
    "name the store in `persistence` until `timeoutmgr uninstall timeout-manager` is done"
)
KEEP_OR_FORCE: Final = "wait until it is empty, or use --force, which loses what is in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninstalled:
    """The removed parts: *queues* with their numbers of messages; *tables* as a sentence.

    After a dry run, the parts that would be removed.
    """

    queues: Mapping[str, int]
    tables: str


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Existing queues of the timeout manager with their messages, and timeouts in its store.

    *stored* is None if no store is configured or installed; *has_store* tells the two apart.
    """

    queues: Mapping[str, int]
    stored: int | None
    has_store: bool

    @property
    def pending(self) -> int:
        """How many messages still wait for the timeout manager, as far as is known."""
        return sum(self.queues.values()) + (self.stored or 0)

    @property
    def is_hidden(self) -> bool:
        """Whether there was a timeout manager whose store is unknown."""
        return bool(self.queues) and not self.has_store

    def __str__(self) -> str:
        held = [f"{count} in {queue!r}" for queue, count in self.queues.items()]
        held += [] if self.stored is None else [f"{self.stored} in its store"]
        return ", ".join(held) or "nothing"


def advice(settings: FeatureSettings, found: Leftovers, *, falls_back: bool) -> str:
    """Return advice about the timeout manager beside native delays."""
    if _is_enabled(settings) and falls_back:
        return (
            "the store will not drain: fallback_to_store sends it what the levels cannot hold; "
            "keep TimeoutManager"
        )
    if found.pending:
        if _is_enabled(settings):
            return f"draining ({found}); keep TimeoutManager until it is empty"
        return f"nobody delivers what is stored ({found}); enable TimeoutManager until it is empty"
    if found.is_hidden:
        return f"what its store holds cannot be seen: {NAME_IT}"
    if _is_enabled(settings):
        return (
            "drained: call config.disable_timeout_manager() and restart every process; then its "
            "queues and tables can go, by `timeoutmgr uninstall timeout-manager`"
        )
    if found.queues:
        return (
            f"empty: {', '.join(found.queues)} and the tables can go, by "
            "`timeoutmgr uninstall timeout-manager`"
        )
    if settings.manager_disabled is ManagerDisabled.NOT_SAID:
        return (
            "none has run here; say config.disable_timeout_manager(), so that none is enabled by "
            "mistake"
        )
    return "disabled, and nothing of it is left"


def find_leftovers(settings: FeatureSettings) -> Leftovers:
    """Return the present queues and timeouts of this endpoint's timeout manager."""
    has_store = settings.persistence is not None
    return Leftovers(_queues(settings), _stored(settings), has_store)


def refuse_leftovers(settings: FeatureSettings) -> None:
    """Raise FeatureRefused if this endpoint would leave stored messages undelivered.

    This is for an endpoint without a timeout manager: only a timeout manager can send timeouts that
    were stored before. Raises StorageUnavailable if that is unknown. After its queues are
    uninstalled, the database of the timeout manager need not exist.
    """
    if settings.manager_disabled is ManagerDisabled.FORCED or not _queues(settings):
        return
    found = find_leftovers(settings)
    if settings.manager_disabled is ManagerDisabled.ONCE_DRAINED and found.pending:
        raise FeatureRefused(
            f"the timeout manager of {settings.name!r} is disabled and still has messages "
            f"({found}), which would never be delivered. Enable TimeoutManager beside "
            "NativeDelayedDelivery until `timeoutmgr status` says that it is drained, migrate "
            "them, or say disable_timeout_manager(force=True)"
        )
    if settings.manager_disabled is ManagerDisabled.ONCE_DRAINED and found.is_hidden:
        raise FeatureRefused(
            f"a timeout manager has run as {settings.name!r}: {', '.join(found.queues)} are there; "
            "and the timeouts in its store cannot be seen. To be sure that nothing is left behind, "
            f"{NAME_IT}; or say disable_timeout_manager(force=True)"
        )
    if settings.manager_disabled is ManagerDisabled.NOT_SAID:
        raise FeatureRefused(
            f"a timeout manager has run as {settings.name!r} ({found}). Enable TimeoutManager "
            "beside NativeDelayedDelivery until `timeoutmgr status` says that it is drained; then "
            "call config.disable_timeout_manager(), and run `timeoutmgr uninstall timeout-manager`"
        )


def _is_enabled(settings: FeatureSettings) -> bool:
    return any(feature.name == "timeout-manager" for feature in settings.features)


def _queues(settings: FeatureSettings) -> dict[str, int]:
    names = [settings.name + TIMEOUTS, settings.name + DISPATCHER]
    with closing(settings.transport.session()) as session:
        missing = session.missing_queues(names)
        return {name: session.count(name) for name in names if name not in missing}


def stored_of(settings: FeatureSettings) -> TimeoutStore | None:
    """Return the store of this endpoint's timeout manager; None if it is not installed."""
    persistence = settings.persistence
    if not isinstance(persistence, KeepsTimeouts):
        return None
    try:
        persistence.check()
    except SchemaMissing:
        return None
    return persistence.timeouts(settings.name, settings.clock)


def _stored(settings: FeatureSettings) -> int | None:
    store = stored_of(settings)
    return None if store is None else store.count(TimeoutFilter())

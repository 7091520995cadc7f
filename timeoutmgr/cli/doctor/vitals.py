"""Vital signs of an endpoint, read concurrently from its store and its queues."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from timeoutmgr.cli.output import shown_time
from timeoutmgr.cli.shared import require_installed
from timeoutmgr.contracts import (
    EndpointReport,
    HasStoreClock,
    Insight,
    ReportsEndpoints,
    Timeout,
    TimeoutFilter,
    TimeoutStore,
)
from timeoutmgr.contracts.pauses import Pause, PausesDispatch
from timeoutmgr.contracts.reports import LIVE, SENDERS_AHEAD, Count
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.features.delayed_delivery import StoreStart
from timeoutmgr.message.instants import Micros, duration_micros
from timeoutmgr.resilience.breakers import BreakerState


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreVitals:
    """Vital signs in the store; *now* and all other times are from its clock.

    A timeout that one of *pauses* has parked is due at the end of the pause. *overdue* is None if
    the store does not count. *processes* is None if the processes of this endpoint leave no
    heartbeats. *deserted* are other endpoints with timeouts and no process.
    """

    now: Micros
    earliest: Micros | None
    first: Timeout | None = None
    overdue: Count | None = None
    processes: Sequence[Mapping[str, Any]] | None = None
    deserted: Sequence[EndpointReport] = ()
    pauses: Sequence[Pause] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueVitals:
    """Numbers of waiting messages; None for a queue that is missing or not needed.

    *unstored* messages wait for the timeout manager, *waiting* messages in any queue that only this
    endpoint consumes: the queue of unroutable messages has other consumers, too.
    """

    error_queue: str
    errors: int | None
    unstored: int | None
    waiting: int


def store_vitals(parts: AssembledEndpoint, max_overdue: timedelta) -> StoreVitals | None:
    """Return the vital signs in the store; None if this endpoint stores nothing.

    Raises StorageUnavailable and SchemaMissing.
    """
    if parts.features.delayed is not None:
        return _of_delayed(parts, parts.features.delayed)
    store, persistence = parts.features.store, parts.settings.persistence
    if store is None or persistence is None:
        return None
    require_installed(persistence)
    now = store.now()
    first = next(iter(store.list(TimeoutFilter(), limit=1)), None)
    pauses = store.pauses() if isinstance(store, PausesDispatch) else ()
    if first is not None and first.key.due in [each.place for each in pauses]:
        first = replace(first, due=first.key.due)  # parked, and all later rows are due later
    reports = persistence.endpoints() if isinstance(persistence, ReportsEndpoints) else ()
    return StoreVitals(
        now=now,
        earliest=None if first is None else first.due,
        first=first,
        overdue=_overdue(store, first, now - duration_micros(max_overdue)),
        processes=live_processes(store, now),
        deserted=[
            each
            for each in reports
            if each.endpoint != store.endpoint and each.last_heartbeat < now - LIVE
        ],
        pauses=[each for each in pauses if not each.is_ending],
    )


def queue_vitals(parts: AssembledEndpoint) -> QueueVitals:
    """Return the vital signs in the queues; raise TransportUnavailable and SchemaMissing."""
    require_installed(parts.settings.transport)
    error_queue, manager = parts.settings.error_queue, parts.features.manager_address
    with closing(parts.settings.transport.session()) as session:
        missing = session.missing_queues(parts.queues)
        counts = {queue: session.count(queue) for queue in parts.queues if queue not in missing}
    return QueueVitals(
        error_queue=error_queue,
        errors=counts.get(error_queue),
        unstored=None if manager is None else counts.get(manager),
        waiting=sum(
            count
            for queue, count in counts.items()
            if queue != error_queue and f"{queue}.".startswith(f"{parts.settings.name}.")
        ),
    )


def _overdue(store: TimeoutStore, first: Timeout | None, before: Micros) -> Count:
    if isinstance(store, Insight):
        return store.overdue(before).count
    # Usually no timeout is overdue: the first row shows this without a count.
    if first is None or first.due >= before:
        return Count(0)
    return Count(store.count(TimeoutFilter(due_before=before)))


def _of_delayed(parts: AssembledEndpoint, delayed: StoreStart) -> StoreVitals:
    delayed.start(install=False)
    store = delayed.store
    clock = store if isinstance(store, HasStoreClock) else parts.settings.clock
    return StoreVitals(now=clock.now(), earliest=store.next())


_BREAKER: Final = "breaker_"


def live_processes(store: TimeoutStore, now: Micros) -> list[dict[str, Any]]:
    """Return the live processes of the endpoint, for JSON."""
    breaker_states = {state.value for state in BreakerState}
    return [
        {
            "host": each.host,
            "pid": each.pid,
            "started": shown_time(each.started),
            "heartbeat": shown_time(each.heartbeat),
            "breakers": {
                name.removeprefix(_BREAKER): value
                for name, value in each.state.items()
                if value in breaker_states
            },
            "senders_ahead": each.state.get(SENDERS_AHEAD),
        }
        for each in store.processes()
        if each.heartbeat >= now - LIVE
    ]

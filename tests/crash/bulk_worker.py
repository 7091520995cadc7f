"""A process that pauses, resumes, or changes timeouts in bulk; it may be told where to die."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

from tests.support.clock import FakeClock
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.bulk_runs import BulkAction, BulkChange
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql import bulk_runs, load_counts
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

PREFIX: Final = "crash_bulk_"
BY: Final = ChangedBy(channel="cli", actor="ann", reason="because")
HOUR: Final = 3_600_000_000
CHANGES: Final = {
    "shift": BulkChange(action=BulkAction.SHIFT, by=2 * HOUR),
    "cancel": BulkChange(action=BulkAction.CANCEL),
    "reroute": BulkChange(action=BulkAction.REROUTE, destination="shipping"),
}
BATCH: Final = 2


def main(given: dict[str, Any]) -> int:
    """Do the work that *given* names, at the instant that *given* names; return 0."""
    # Little enough that a few timeouts come by every point more than once.
    bulk_runs.BATCH, bulk_runs._PAGE = BATCH, BATCH  # type: ignore[misc]  # for this process alone
    load_counts.FIRST = load_counts._MOST = BATCH  # type: ignore[misc]  # the same
    with closing(persistence(given["url"])) as opened:
        store = opened.timeouts(given["endpoint"], FakeClock(given["at"]))
        WORK[given["work"]](store, given)
    return 0


def persistence(url: str) -> SqlPersistence:
    """Return the store: it goes by the clock of the test, and keeps a full history."""
    return SqlPersistence(url, prefix=PREFIX, settings=SqlSettings(clock="host", history="full"))


def face(store: SqlTimeoutStore) -> Timeouts:
    """Return the timeouts of the endpoint as a program sees them."""
    return Timeouts(store, lambda due: None)


def dispatch(store: SqlTimeoutStore) -> list[str]:
    """Claim and close all that is due, as poller and dispatcher do; return the ids."""
    from timeoutmgr.contracts import Outcome, OutcomeKind

    now, sent = store.now(), list[str]()
    while (chunk := store.claim(now, 100, "dispatcher")).keys:
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            keys = [one.key for one in locked.timeouts]
            locked.close([Outcome(key=k, kind=OutcomeKind.DISPATCHED, at=now) for k in keys])
        sent += [key.id for key in keys]
    return sent


def count_all(store: SqlTimeoutStore) -> None:
    """Count by bucket, as the upkeep does, until no pass is due."""
    store.request_load_counts()
    while store.run_maintenance():
        pass


def _plan(store: SqlTimeoutStore, given: Mapping[str, Any]) -> None:
    bulk, ids = face(store).bulk, list[str]()
    bulk.plan(
        CHANGES[given["change"]],
        by=BY,
        export=lambda run_id: ids.extend(key.id for key in bulk.keys(run_id)),
    )
    assert len(ids) == store.bulk_runs()[0].selected, "all are exported, each once"


def _apply(store: SqlTimeoutStore, given: Mapping[str, Any]) -> None:
    face(store).bulk.apply(given["run"], by=BY)


def _undo(store: SqlTimeoutStore, given: Mapping[str, Any]) -> None:
    face(store).bulk.undo(given["run"], by=BY)


WORK: Final[Mapping[str, Callable[[SqlTimeoutStore, Mapping[str, Any]], object]]] = {
    "plan": _plan,
    "apply": _apply,
    "undo": _undo,
    "pause": lambda store, given: face(store).pause("billing", by=BY),
    "resume": lambda store, given: face(store).resume("billing", by=BY),
    "dispatch": lambda store, given: dispatch(store),
    "count": lambda store, given: count_all(store),
    "cancel_saga": lambda store, given: face(store).cancel_saga("s"),
}

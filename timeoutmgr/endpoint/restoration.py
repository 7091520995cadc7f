"""Restore of a store to a point in time: which of its timeouts may have been sent already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from timeoutmgr.contracts import (
    BrowsesQueues,
    Insight,
    KeepsSchedules,
    LockedSchedule,
    TimeoutFilter,
    TimeoutStore,
)
from timeoutmgr.contracts.audit import AuditEntry, ChangedBy, KeepsAudit
from timeoutmgr.contracts.insight import GroupBy
from timeoutmgr.contracts.reports import LIVE, Count
from timeoutmgr.database import as_database, same_database
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import EARLIEST, Micros, from_micros

if TYPE_CHECKING:
    from timeoutmgr.endpoint.assembly import AssembledEndpoint

_GROUPED: Final = 10_000
"""Maximum number of timeouts that are counted by destination."""
_BROWSED: Final = 1_000
"""Messages that are counted by browsing a queue; leased messages are at its front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """Effect of a restore to the instant *at* on the timeouts of an endpoint.

    The *window* are the pending timeouts that were due before *end*, and to be tried from *start*
    on: the lost store may have sent each of them. They include timeouts that were due earlier, and
    that a pause held back or that waited for another try. Timeouts *before* the window were already
    overdue. The first 10,000 of the window are counted *by_destination*. The timeouts of the
    *released* claims are free again, and are marked as maybe sent.
    """

    at: Micros
    start: Micros
    end: Micros
    window: Count
    before: Count
    by_destination: Mapping[str, int]
    released: int


class Restoration:
    """Looks at a restored store, and releases the claims of processes that it was lost to."""

    def __init__(self, store: TimeoutStore, at: Micros, overdue: Micros) -> None:
        self._store = store
        self._at = at
        self._start = max(EARLIEST, at - overdue)

    def release(self, by: ChangedBy) -> RestoreReport:
        """Release all claims, record this in the audit, and report the window.

        Raises InvalidMessage if processes already work on the store, or for a future instant.
        """
        now = self._store.now()
        self._require_past(now)
        self._require_rest(now)
        report = self._report(now, self._release_claims())
        if isinstance(self._store, KeepsAudit):
            bounds = {"at": report.at, "due_from": report.start, "due_before": report.end}
            number = report.window.number
            self._store.write_audit(
                AuditEntry(action="restored", by=by, selection=bounds, expected=number, changed=0)
            )
        return report

    def _require_past(self, now: Micros) -> None:
        if self._at > now:
            raise InvalidMessage(
                f"the store cannot have been restored to {from_micros(self._at)}: its own clock "
                f"has {from_micros(now)}; give the time to which the recovery went"
            )

    def _require_rest(self, now: Micros) -> None:
        """Raise if there is a heartbeat that cannot have come from the restored backup."""
        since = max(self._at, now - LIVE)
        running = [each for each in self._store.processes() if each.heartbeat > since]
        if running:
            names = ", ".join(f"{each.host}:{each.pid}" for each in running[:5])
            raise InvalidMessage(
                f"{len(running)} processes have worked on the store since {from_micros(since)}: "
                f"{names}; stop them, and give the command again {LIVE // 60_000_000} minutes later"
            )

    def _release_claims(self) -> int:
        """Release the claims, and mark their timeouts as maybe sent."""
        released: set[str] = set()
        while tokens := self._claims() - released:
            for token in tokens:
                self._store.release(token, maybe_sent=True)
            released |= tokens
        return len(released)

    def _claims(self) -> set[str]:
        if not isinstance(self._store, Insight):
            return set()
        return {claim.token for claim in self._store.in_flight().claims}

    def _report(self, now: Micros, released: int) -> RestoreReport:
        window = TimeoutFilter(tried_from=self._start, due_before=now)
        return RestoreReport(
            at=self._at,
            start=self._start,
            end=now,
            window=self._count(window),
            before=self._count(TimeoutFilter(tried_before=self._start)),
            by_destination=self._destinations(window),
            released=released,
        )

    def _count(self, which: TimeoutFilter) -> Count:
        if isinstance(self._store, Insight):
            return self._store.count_in_bounds(which)
        return Count(self._store.count(which))

    def _destinations(self, which: TimeoutFilter) -> Mapping[str, int]:
        if not isinstance(self._store, Insight):
            return {}
        found, behind = Counter[str](), None
        while (left := _GROUPED - found.total()) > 0:
            some = self._store.groups(which, GroupBy.DESTINATION, limit=left, after=behind)
            found.update({name or "": number for name, number in some.counts.items()})
            behind = some.searched_to
            if behind is None:
                break
        return found


def restored_messages(parts: AssembledEndpoint) -> Mapping[str, int]:
    """Return the number of messages in each queue of the endpoint restored with the store.

    The messages may have been handled before the loss. Empty if the queues are in another place.
    Raises SchemaMissing and TransportUnavailable.
    """
    transport, persistence = parts.settings.transport, parts.settings.persistence
    store = None if persistence is None else persistence.database
    if transport.database is None or store is None:
        return {}
    if not same_database(as_database(transport.database).url, as_database(store).url):
        return {}
    transport.check()
    names = {*parts.queues} - {parts.settings.error_queue}
    with closing(transport.session()) as session:
        found = {name: session.count(name) for name in names - {*session.missing_queues(names)}}
        if isinstance(session, BrowsesQueues):
            # The count excludes leased messages, but their handlers may have ended since.
            for name in found:
                found[name] = max(found[name], sum(1 for _ in session.browse(name, _BROWSED)))
    return dict(sorted(found.items()))


def skip_runs(store: TimeoutStore | None, until: Micros, by: ChangedBy) -> None:
    """Count the occurrences before *until* of each schedule as done, whatever ``catch_up`` says.

    The lost store may have sent their runs. A run that is stored for after *until* stays.
    """

    def skip(locked: LockedSchedule) -> None:
        record, done = locked.record, locked.record.done_until
        if done is None:
            return  # it begins when a process with it starts
        if record.run_due is not None and record.run_due < until:
            record = replace(record, run_due=None, run_id=None)
        locked.write(replace(record, done_until=max(until, done)))
        locked.audit("skip-recurring", by.channel)

    if isinstance(store, KeepsSchedules):
        for each in store.schedules():
            store.change_schedule(each.name, skip)

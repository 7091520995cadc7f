"""Bulk runs, pauses and the audit, for the pages to read and change."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from timeoutmgr.contracts import Key
from timeoutmgr.contracts.audit import AuditEntry, AuditOutcome, AuditRecord, ChangedBy, KeepsAudit
from timeoutmgr.contracts.bulk_runs import SAMPLES, BulkChange, BulkRun, BulkState
from timeoutmgr.contracts.pauses import Pause
from timeoutmgr.errors import InvalidMessage, TimeoutManagerError
from timeoutmgr.message.instants import from_micros
from timeoutmgr.message.redaction import masked, on_one_line
from timeoutmgr.resilience.thread_task import begin_thread
from timeoutmgr.web.forms import PendingForm
from timeoutmgr.web.source import EndpointSource

logger = logging.getLogger(__name__)

_LISTED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run, its first keys, its audit rows, and the reason if it stopped in this process."""

    run: BulkRun
    keys: Sequence[Key]
    audit: Sequence[AuditRecord]
    problem: str | None
    is_active: bool
    """Whether a thread of this process works on the run."""

    @property
    def done(self) -> int:
        """The number of timeouts that the run has processed."""
        if self.run.state is BulkState.UNDOING:
            return self.run.undone
        return self.run.changed + self.run.left

    @property
    def can_apply(self) -> bool:
        """Whether the run can be applied, or continued."""
        return not self.is_active and self.run.state in (BulkState.PLANNED, BulkState.RUNNING)

    @property
    def can_undo(self) -> bool:
        """Whether the run can be undone, or its undo continued."""
        run = self.run
        is_done = run.state in (BulkState.COMPLETED, BulkState.UNDOING)
        return not self.is_active and is_done and run.change.action.is_undoable and run.changed > 0


class Operations:
    """Bulk runs, pauses and audit. Runs go one by one, in a thread that cannot delay an exit."""

    def __init__(self, source: EndpointSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._problems: dict[str, str] = {}
        self._active: set[str] = set()
        self._is_closed = False

    def close(self) -> None:
        """Interrupt the current run, wait for its thread, and start no waiting run."""
        self._is_closed = True
        with self._lock:
            pass  # the run that had the lock has ended

    def _go_on(self, _number: int) -> None:
        if self._is_closed:
            raise TimeoutManagerError("the dashboard was closed; continue the run in another")

    # --- bulk runs ----------------------------------------------------------------------------

    def runs(self) -> Sequence[BulkRun]:
        """Return the newest plans and runs."""
        return self._source.timeouts.bulk.list(limit=_LISTED)

    def run(self, run_id: str) -> RunView | None:
        """Return a run; None if the store does not have it."""
        timeouts = self._source.timeouts
        run = timeouts.bulk.get(run_id)
        if run is None:
            return None
        return RunView(
            run=run,
            keys=list(islice(timeouts.bulk.keys(run_id), SAMPLES)),
            audit=timeouts.audit(run_id=run_id),
            problem=self._problems.get(run_id),
            is_active=run_id in self._active,
        )

    def plan(self, form: PendingForm, change: BulkChange, by: ChangedBy) -> BulkRun:
        """Plan a run with the timeouts that *form* selects now, without changing them."""
        given: dict[str, Any] = {
            name: value for name, value in asdict(form.filter).items() if value not in (None, ())
        }
        for bound in given.keys() & {"due_from", "due_before"}:
            given[bound] = from_micros(given[bound])
        if form.label:
            name, _equals, value = form.label.partition("=")
            given["labels"] = {name: value}
        return self._source.timeouts.bulk.plan(change, by=by, **given).run

    def begin(self, run_id: str, by: ChangedBy, *, undo: bool) -> None:
        """Apply, continue or undo the run in a thread; InvalidMessage if one works on it."""
        self._go_on(0)
        bulk = self._source.timeouts.bulk
        if run_id in self._active:  # a second click
            raise InvalidMessage("the run is in progress already; the page shows it")
        self._problems.pop(run_id, None)
        self._active.add(run_id)
        work = bulk.undo if undo else bulk.apply

        def carry_out() -> None:
            try:
                with self._lock:
                    self._go_on(0)
                    work(run_id, by=by, progress=self._go_on)
            except TimeoutManagerError as error:
                # The run stays in the store, and the page offers to continue it.
                self._problems[run_id] = masked(str(error))
            except Exception as error:
                verb = "undo" if undo else "apply"
                logger.exception(
                    "dashboard could not %s run %s for %.80s",
                    verb,
                    run_id,
                    on_one_line(by.actor),
                    extra={"event": "run_failed", "endpoint": self._source.name},
                )
                self._problems[run_id] = masked(f"{type(error).__name__}: {error}")
            finally:
                self._active.discard(run_id)

        try:
            begin_thread(carry_out, "timeoutmgr-web-run")
        except RuntimeError as error:  # the system has no more threads
            self._active.discard(run_id)
            raise TimeoutManagerError(f"the run cannot start: {error}; try again later") from error

    # --- pauses -------------------------------------------------------------------------------

    def pauses(self) -> Sequence[Pause]:
        """Return the pauses in force."""
        return self._source.timeouts.pauses()

    def pause(self, destination: str, until: datetime | timedelta | None, by: ChangedBy) -> bool:
        """Pause a destination, or all if it is empty; return whether the pause is new.

        Raises InvalidMessage for a name with an outer space that no pending timeout has: a typo.
        """
        is_padded = destination != destination.strip()
        if is_padded and not self._source.timeouts.count_in_bounds(destination=destination).number:
            raise InvalidMessage(
                f"{destination!r} begins or ends with a space, and no timeout goes there; remove "
                "the space"
            )
        return self._source.timeouts.pause(destination or None, until=until, by=by)

    def resume(self, destination: str, by: ChangedBy) -> int | None:
        """End the pause of a destination; return how many timeouts were parked."""
        return self._source.timeouts.resume(destination or None, by=by)

    # --- audit --------------------------------------------------------------------------------

    def audit(self, run_id: str) -> Sequence[AuditRecord]:
        """Return the newest rows of the audit, newest first."""
        rows = self._source.timeouts.audit(limit=_LISTED, run_id=run_id or None)
        return list(reversed(rows))

    def note_denied(self, action: str, selection: Mapping[str, str], by: ChangedBy) -> None:
        """Record in the audit that a visitor tried an action that the role does not permit."""
        store = self._source.store
        if isinstance(store, KeepsAudit):
            entry = AuditEntry(
                action=action, by=by, selection=selection, outcome=AuditOutcome.DENIED, changed=0
            )
            store.write_audit(entry)

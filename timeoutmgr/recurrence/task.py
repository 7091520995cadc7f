"""A running endpoint's task: it keeps the next run of each schedule stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from timeoutmgr.contracts import KeepsSchedules, ScheduleRecord, TimeoutStore
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import StorageUnavailable, TimeoutManagerError
from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.recurrence.changes import Advance, StoresRuns, advance, needs_change
from timeoutmgr.recurrence.definition import RecurringTimeout
from timeoutmgr.resilience.thread_task import ThreadTask
from timeoutmgr.telemetry import Telemetry

logger = logging.getLogger(__name__)

IDLE: Final = 60.0
"""Seconds between two steps at most: another process may have changed a schedule."""
WHILE_PAUSED: Final = 10.0
"""The same while a schedule is paused: a command of another process resumes it."""
_AFTER_FAILURE: Final = 5.0


@runtime_checkable
class RecurringStore(TimeoutStore, KeepsSchedules, Protocol):
    """A timeout store that keeps schedules."""


class RecurringTask(ThreadTask):
    """Stores the next run of each schedule when the run before it is due.

    Each process of the endpoint has this task. When a run is due, the first process that locks the
    schedule stores the next run, and the other processes find it stored. *wake* is called for
    stored runs.
    """

    thread_name = "timeoutmgr-recurring"

    def __init__(
        self,
        definitions: Sequence[RecurringTimeout],
        store: RecurringStore,
        runs: StoresRuns,
        *,
        ready: Callable[[], None],
        wake: Callable[[Micros], None],
        telemetry: Telemetry,
    ) -> None:
        super().__init__()
        self._definitions = definitions
        self._store = store
        self._runs = runs
        self._ready = ready
        self._wake = wake
        self._telemetry = telemetry
        self._started: Micros | None = None
        self._is_ready = False

    def start(self) -> None:
        """Start; the first step runs at once."""
        self._started = None
        super().start()

    def step(self) -> float:
        """Advance all schedules; return the seconds until the next step. Never waits.

        A schedule that fails does not stop the others. Raises StorageUnavailable, and SchemaMissing
        until the tables are installed.
        """
        if not self._is_ready:
            self._ready()
            self._is_ready = True
        now = self._store.now()
        if self._started is None or self._started > now:
            self._started = now  # an instant ahead would keep its config in force
        records = {record.name: record for record in self._store.schedules()}
        waits, failure = [IDLE], None
        for definition in self._definitions:
            record = records.get(definition.name, ScheduleRecord(name=definition.name))
            if needs_change(record, definition, now):
                try:
                    record = self._advanced(definition, record)
                except StorageUnavailable as error:  # another transaction may lock its row
                    failure = error
                    self._store.schedules()  # raises in an outage: each schedule would wait for it
            if record.is_paused:
                waits.append(WHILE_PAUSED)
            elif record.run_due is not None:
                waits.append(max(record.run_due - now, 0) / 1_000_000)
        if failure is not None:
            raise failure
        return min(waits)

    def _advanced(self, definition: RecurringTimeout, record: ScheduleRecord) -> ScheduleRecord:
        started = self._started or 0
        try:
            result = self._store.change_schedule(
                definition.name, lambda locked: advance(locked, definition, self._runs, started)
            )
        except StorageUnavailable:
            raise
        except Exception as error:  # also an error of a send middleware
            logger.error(
                "endpoint %s could not store the next run of %.80r: %s",
                self._runs.endpoint,
                definition.name,
                on_one_line(error),
                exc_info=not isinstance(error, TimeoutManagerError),
                extra=self._fields("recurring_run_refused", definition.name),
            )
            self._telemetry.count("recurring_runs_refused")
            return ScheduleRecord(name=record.name)
        reach("recurring.committed")
        if result.stored:
            self._wake(min(result.stored))
        self._report(definition.name, result)
        return result.record

    def _report(self, name: str, result: Advance) -> None:
        if result.replaced is not None:
            logger.warning(
                "endpoint %s replaced the run of %.80r for %s by the next occurrence: the clock "
                "was set back",
                self._runs.endpoint,
                name,
                from_micros(result.replaced).isoformat(),
                extra=self._fields("recurring_run_replaced", name),
            )
        if result.skipped:
            logger.warning(
                "endpoint %s skipped missed occurrences of %.80r",
                self._runs.endpoint,
                name,
                extra=self._fields("recurring_runs_skipped", name),
            )
            self._telemetry.count("recurring_runs_skipped")
        if result.stored:
            self._telemetry.count("recurring_runs_stored", len(result.stored))
            logger.debug(
                "endpoint %s stored %d runs of %.80r, the last for %s",
                self._runs.endpoint,
                len(result.stored),
                name,
                from_micros(result.stored[-1]).isoformat(),
                extra=self._fields("recurring_runs_stored", name),
            )

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            wait = _AFTER_FAILURE
            try:
                wait = self.step()
            except TimeoutManagerError as error:
                logger.info(
                    "endpoint %s stores the next runs later: %s",
                    self._runs.endpoint,
                    on_one_line(error),
                    extra={"event": "recurring_delayed", "endpoint": self._runs.endpoint},
                )
            except Exception:
                logger.exception(
                    "recurring timeouts of endpoint %s failed and continue",
                    self._runs.endpoint,
                    extra={"event": "recurring_failed", "endpoint": self._runs.endpoint},
                )
                self._telemetry.count("recurring_failures")

    def _fields(self, event: str, name: str) -> dict[str, str]:
        return {"event": event, "endpoint": self._runs.endpoint, "schedule": name}

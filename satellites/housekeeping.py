"""Housekeeping about once a minute: compare clocks, write a heartbeat, maintain and purge."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from timeoutmgr.contracts import MeasuresPartitions, MeasuresPurge, TimeoutStore
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import own_name
from timeoutmgr.resilience.thread_task import ThreadTask
from timeoutmgr.telemetry import Telemetry

logger = logging.getLogger(__name__)

# --- purge: it keeps pace with rows that become old, and leaves the server to dispatches -------

UNPURGED: Final = 1800.0
"""Seconds between a purge that found no old rows and the next purge."""
_MEASURED: Final = 1.0
"""Seconds between two measurements of the lag."""
_GENTLE: Final = 5.0
"""Rest after a removal, as a multiple of its duration, while the lag falls."""
_URGENT: Final = 0.5
"""The rest while the lag grows: more rows become old than the purge removes."""


@dataclass(slots=True)
class Purger:
    """Removes old rows, in one transaction at a time; the measured lag decides how long it rests.

    A removal that takes longer, on a slow or busy server, is followed by a longer rest: dispatches
    keep their share. *rest* waits, and returns whether to stop.
    """

    store: TimeoutStore
    _: KW_ONLY
    telemetry: Telemetry
    rest: Callable[[float], bool]
    monotonic: Callable[[], float] = time.monotonic
    _next: float = field(default=-math.inf, init=False)
    _measure_next: float = field(default=-math.inf, init=False)
    _lag: Micros = field(default=0, init=False)
    _rests_until: float = field(default=-math.inf, init=False)
    _pace: float = field(default=_GENTLE, init=False)

    def restart(self) -> None:
        """Make the next purge due at once."""
        self._next = -math.inf

    def purge_until(self, end: float) -> None:
        """Purge until no old rows remain, or the monotonic clock reaches *end*.

        If the first removal finds no old rows, further calls return at once for half an hour.
        Raises StorageUnavailable.
        """
        if self.monotonic() < self._next or not self._has_rested(end):
            return
        self._lag = LATEST  # rows that became old since the last purge do not show a growing lag
        self._measure()
        if not self._remove():
            self._next = self.monotonic() + UNPURGED
            return
        while self._has_rested(end):
            if self.monotonic() >= self._measure_next:
                self._measure()
            if not self._remove():
                self._measure()
                return

    def _has_rested(self, end: float) -> bool:
        """Rest after the last removal, until *end* at most; return whether to remove more."""
        left = min(self._rests_until, end) - self.monotonic()
        return not (left > 0 and self.rest(left)) and self.monotonic() < end

    def _remove(self) -> int:
        begun = self.monotonic()
        purged = self.store.purge()
        now = self.monotonic()
        self._rests_until = now + (now - begun) * self._pace
        self.telemetry.count("rows_purged", purged)
        return purged

    def _measure(self) -> None:
        """Measure the lag; choose the urgent pace if the lag grew."""
        if not isinstance(self.store, MeasuresPurge):
            return
        before, self._lag = self._lag, self.store.purge_lag()
        self._pace = _URGENT if self._lag > before else _GENTLE
        self._measure_next = self.monotonic() + _MEASURED
        self.telemetry.value("purge_lag_seconds", self._lag / 1_000_000)


_EVERY: Final = 75.0
"""Seconds. Including the poll of each minute, an idle process queries its database less than twice
a minute. ``contracts.reports.LIVE`` still allows for a failed heartbeat."""
_STEPS: Final = 500
"""Maximum steps of maintenance in a row; after each step follows a pause as long as the step."""


class Housekeeping(ThreadTask):
    """Housekeeping has its own thread: a storage that hangs must not block the watchdog."""

    thread_name = "timeoutmgr-housekeeping"
    _owner = ""  # before it is made

    def __init__(
        self,
        store: TimeoutStore,
        *,
        owner: str,
        ready: Callable[[], None],
        measure_offset: Callable[[Callable[[], Micros | None]], None],
        state: Callable[[], Mapping[str, str]],
        telemetry: Telemetry,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._store = store
        self._owner = owner
        self._ready = ready
        self._measure_offset = measure_offset
        self._state = state
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._purger = Purger(
            store, telemetry=telemetry, rest=lambda s: self._stop.wait(s), monotonic=monotonic
        )

    def after_fork(self) -> None:
        """Write heartbeats for this child, from a new thread."""
        super().after_fork()
        self._owner = own_name(self._owner)

    def start(self) -> None:
        """Start; write the first heartbeat at once."""
        self._purger.restart()
        super().start()

    def stop(self) -> None:
        """Stop; returns when the thread has ended."""
        had_started = self._thread is not None
        super().stop()
        if not had_started:
            return
        try:
            self._store.unregister_process(self._owner)
        except StorageUnavailable as error:
            logger.info(
                "process could not remove its heartbeat, the storage is away: %s",
                on_one_line(error),
                extra=self._fields("heartbeat_not_removed"),
            )

    def keep_house(self) -> None:
        """Compare clocks, write a heartbeat, run maintenance, purge old rows.

        While old rows remain, return when the next heartbeat is due. Raises StorageUnavailable.
        """
        begun = self._monotonic()
        self._ready()
        self._measure_offset(lambda: self._store.heartbeat(self._owner, self._state()))
        try:
            self._maintain(begun + _EVERY / 2)
            self._note_partitions()
        finally:  # a right may be missing that only the maintenance needs
            self._purger.purge_until(begun + _EVERY)

    def _fields(self, event: str) -> Mapping[str, str]:
        return {"event": event, "endpoint": self._store.endpoint}

    def _maintain(self, end: float) -> None:
        for _ in range(_STEPS):
            begun = self._monotonic()
            has_more = begun < end and self._store.run_maintenance()
            if not has_more or self._stop.wait(self._monotonic() - begun):
                return

    def _note_partitions(self) -> None:
        if isinstance(self._store, MeasuresPartitions):
            missing = self._store.partitions_missing()
            if missing is not None:
                self._telemetry.value("partitions_missing", missing)

    def _run(self) -> None:
        while True:
            begun = self._monotonic()
            try:
                self.keep_house()
            except StorageUnavailable as error:
                logger.info(
                    "housekeeping goes on at its next round, the storage is away: %s",
                    on_one_line(error),
                    extra=self._fields("housekeeping_delayed"),
                )
            except Exception:
                logger.exception(
                    "housekeeping failed and goes on", extra=self._fields("housekeeping_failed")
                )
                self._telemetry.count("housekeeping_failures")
            if self._stop.wait(max(begun + _EVERY - self._monotonic(), 0.0)):
                return

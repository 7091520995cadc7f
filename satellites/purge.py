"""The purge keeps pace with the rows that become old, and leaves the server to dispatches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from timeoutmgr.contracts import MeasuresPurge, TimeoutStore
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.telemetry import Telemetry

UNPURGED: Final = 1800.0
"""Seconds between a purge that found no old rows and the next purge."""
_MEASURED: Final = 1.0
"""Seconds between two measurements of the lag."""
_GENTLE: Final = 3.0
"""Rest after a removal, as a multiple of its duration, while the lag falls."""
_URGENT: Final = 0.5
"""The rest while the lag grows: more rows become old than the purge removes."""


class Purger:
    """Removes old rows, a transaction at a time; the measured lag decides how long it rests.

    A removal that takes longer, on a slow or busy server, is followed by a longer rest: dispatches
    keep their share. *rest* waits, and returns whether to stop.
    """

    def __init__(
        self,
        store: TimeoutStore,
        *,
        telemetry: Telemetry,
        rest: Callable[[float], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._telemetry = telemetry
        self._rest = rest
        self._monotonic = monotonic
        self._next = -math.inf
        self._measure_next = -math.inf
        self._lag: Micros = 0
        self._took = 0.0
        self._pace = _GENTLE

    def restart(self) -> None:
        """Make the next purge due at once."""
        self._next = -math.inf

    def purge_until(self, end: float) -> None:
        """Purge until no old rows remain, or the monotonic clock reaches *end*.

        If the first removal finds no old rows, further calls return at once for half an hour.
        Raises StorageUnavailable.
        """
        if self._monotonic() < self._next:
            return
        self._lag = LATEST  # rows that became old since the last purge do not show a growing lag
        self._measure()
        if not self._remove():
            self._next = self._monotonic() + UNPURGED
            return
        while not self._rest(self._took * self._pace) and self._monotonic() < end:
            if self._monotonic() >= self._measure_next:
                self._measure()
            if not self._remove():
                self._measure()
                return

    def _remove(self) -> int:
        begun = self._monotonic()
        purged = self._store.purge()
        self._took = self._monotonic() - begun
        self._telemetry.count("rows_purged", purged)
        return purged

    def _measure(self) -> None:
        """Measure the lag; choose the urgent pace if the lag grew."""
        if not isinstance(self._store, MeasuresPurge):
            return
        before, self._lag = self._lag, self._store.purge_lag()
        self._pace = _URGENT if self._lag > before else _GENTLE
        self._measure_next = self._monotonic() + _MEASURED
        self._telemetry.value("purge_lag_seconds", self._lag / 1_000_000)

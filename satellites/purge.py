"""Old rows purged as fast as they come, and no faster than others can bear."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from timeoutmgr.contracts import MeasuresPurge, TimeoutStore
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.telemetry import Telemetry

UNPURGED: Final = 1800.0
"""Seconds until old rows are looked for again after a round that found none."""
_MEASURED: Final = 1.0
"""Seconds between two measurements of the lag."""
_GENTLE: Final = 3.0
"""Rest behind a removal, as a multiple of its duration, while the lag falls."""
_URGENT: Final = 0.5
"""The same while the lag grows: more rows become old than are removed."""


class Purger:
    """Removes old rows, a transaction at a time, with rests that the measured lag decides about.

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
        """Have the next round look, whenever the last one was."""
        self._next = -math.inf

    def purge_until(self, end: float) -> None:
        """Purge until nothing is old, or the monotonic clock reaches *end*.

        Where the first look finds nothing, further rounds do not look for half an hour. Raises
        StorageUnavailable.
        """
        if self._monotonic() < self._next:
            return
        self._lag = LATEST  # what became old since the last round is no sign of a lag that grows
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
        """Measure the lag, and choose the pace by whether it grew."""
        if not isinstance(self._store, MeasuresPurge):
            return
        before, self._lag = self._lag, self._store.purge_lag()
        self._pace = _URGENT if self._lag > before else _GENTLE
        self._measure_next = self._monotonic() + _MEASURED
        self._telemetry.value("purge_lag_seconds", self._lag / 1_000_000)

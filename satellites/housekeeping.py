"""Housekeeping about once a minute: compare clocks, write a heartbeat, maintain and purge."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.telemetry import Telemetry

from .purge import Purger

logger = logging.getLogger(__name__)

_EVERY: Final = 75.0
"""Seconds. With the poll of each minute an idle process asks its database less than twice a minute.
``contracts.reports.LIVE`` still allows for a failed heartbeat."""
_STEPS: Final = 500
"""Steps of maintenance in a row; a pause as long as the step follows each step."""


class Housekeeping:
    """Housekeeping has its own thread: a storage that hangs must not block the watchdog."""

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
        self._store = store
        self._owner = owner
        self._ready = ready
        self._measure_offset = measure_offset
        self._state = state
        self._telemetry = telemetry
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._purger = Purger(store, telemetry=telemetry, rest=self._stop.wait, monotonic=monotonic)

    def start(self) -> None:
        """Start; the first heartbeat is written at once."""
        self._stop.clear()
        self._purger.restart()
        self._thread = threading.Thread(
            target=self._run, name="timeoutmgr-housekeeping", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop; returns when the thread has ended."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join()
        try:
            self._store.unregister_process(self._owner)
        except StorageUnavailable as error:
            logger.info(
                "process could not remove its heartbeat, the storage is away: %s",
                on_one_line(error),
                extra=self._fields("heartbeat_not_removed"),
            )

    def watch(self) -> None:
        """No-op."""

    def keep_house(self) -> None:
        """Compare clocks, write a heartbeat, run maintenance, purge old rows.

        While old rows remain, return when the next heartbeat is due. Raises StorageUnavailable.
        """
        begun = self._monotonic()
        self._ready()
        self._measure_offset(lambda: self._store.heartbeat(self._owner, self._state()))
        self._maintain()
        self._purger.purge_until(begun + _EVERY)

    def _fields(self, event: str) -> Mapping[str, str]:
        return {"event": event, "endpoint": self._store.endpoint}

    def _maintain(self) -> None:
        for _ in range(_STEPS):
            begun = self._monotonic()
            if not self._store.run_maintenance() or self._stop.wait(self._monotonic() - begun):
                return

    def _run(self) -> None:
        while True:
            begun = self._monotonic()
            try:
                self.keep_house()
            except StorageUnavailable as error:
                logger.info(
                    "process could not write its heartbeat, the storage is away: %s",
                    on_one_line(error),
                    extra=self._fields("heartbeat_not_written"),
                )
            except Exception:
                logger.exception(
                    "housekeeping failed and goes on", extra=self._fields("housekeeping_failed")
                )
                self._telemetry.count("housekeeping_failures")
            if self._stop.wait(max(begun + _EVERY - self._monotonic(), 0.0)):
                return

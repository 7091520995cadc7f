"""The sweep: once a minute, overdue copies move to their dead-letter queue."""

import logging
import threading
from datetime import timedelta

from timeoutmgr.contracts import Clock
from timeoutmgr.deadletter.manager import SWEEP, QueueManager
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.telemetry import Telemetry

logger = logging.getLogger(__name__)


class Sweeper:
    """The loop of the sweep, in a thread; ``sweep`` is the step."""

    def __init__(
        self, manager: QueueManager, interval: timedelta, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._manager = manager
        self._interval = interval.total_seconds()
        self._clock = clock
        self._telemetry = telemetry
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start; the first sweep is at once."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="timeoutmgr-sweep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop; returns when the thread has ended."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def watch(self) -> None:
        """No-op."""

    def sweep(self) -> int:
        """Move all overdue copies; return their number. Raises StorageUnavailable."""
        moved = 0
        while not self._stop.is_set():
            now = self._manager.sweep(self._clock.now())
            moved += now
            self._telemetry.count("kept_messages_expired", now)
            if now < SWEEP:
                break
        return moved

    def _run(self) -> None:
        while True:
            try:
                moved = self.sweep()
                if moved:
                    logger.warning(
                        "sweeper moved %d messages without a final acknowledgement in time to the "
                        "transactional dead-letter queue of node %s",
                        moved,
                        self._manager.node,
                        extra={"event": "final_acknowledgements_overdue"},
                    )
            except StorageUnavailable as error:
                logger.info(
                    "sweeper skips a sweep, it cannot reach the dead-letter store: %s",
                    on_one_line(error),
                    extra={"event": "sweep_skipped"},
                )
            except Exception:
                logger.exception("sweeper failed and goes on", extra={"event": "sweep_failed"})
                self._telemetry.count("sweep_failures")
            if self._stop.wait(self._interval):
                return

"""The threads of a running endpoint: pumps, tasks and the watchdog over them."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from timeoutmgr.assembly import Parts
from timeoutmgr.installation import there
from timeoutmgr.transport.pump import Pump, PumpSurroundings

logger = logging.getLogger(__name__)

_WATCH_EVERY: Final = 1.0
_JOIN: Final = 60.0
"""Seconds that stop waits for one thread; a handler that takes longer is left to the process."""


class Runner:
    """Starts and stops what runs. Start and stop are called under the endpoint's lock."""

    def __init__(self, parts: Parts, on_watch: Callable[[], None]) -> None:
        self._parts = parts
        self._on_watch = on_watch
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pumps: list[Pump] = []

    def start(self) -> None:
        """Start the tasks first (a poller finds what was left behind), then the pumps."""
        settings = self._parts.settings
        surroundings = PumpSurroundings(
            endpoint=settings.name,
            transport=settings.transport,
            mode=self._parts.mode,
            error_queue=settings.error_queue,
            clock=settings.clock,
            telemetry=settings.telemetry,
            broker=self._parts.broker,
            dead_letters=self._parts.context.dead_letters,
            stop=self._stop,
        )
        for task in self._parts.context.tasks:
            task.start()
        for satellite in there(self._parts):
            for number in range(satellite.concurrency):
                pump = Pump(satellite.consumption, surroundings)
                self._pumps.append(pump)
                self._spawn(pump.run, f"{satellite.consumption.queue}-{number}")
        self._spawn(self._watch, "watchdog")

    def stop(self) -> None:
        """Stop everything; what is being handled is finished first."""
        self._stop.set()
        for pump in self._pumps:
            pump.interrupt()
        for task in self._parts.context.tasks:
            task.stop()
        for thread in self._threads:
            if thread is threading.current_thread():
                continue  # a handler or hook that stops its own endpoint
            thread.join(_JOIN)
            if thread.is_alive():
                logger.error("thread %s did not end within %.0f s", thread.name, _JOIN)
        self._threads.clear()
        self._pumps.clear()

    def _spawn(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=f"timeoutmgr-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_EVERY):
            try:
                for breaker in self._parts.context.breakers:
                    breaker.check()
                for task in self._parts.context.tasks:
                    task.watch()
                self._on_watch()
            except Exception:
                logger.exception("the watchdog failed; it goes on")
                self._parts.settings.telemetry.count("watchdog_failures")

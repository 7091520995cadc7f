"""The threads of a running endpoint: pumps, tasks and the watchdog over them."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.installation import existing_satellites
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.resilience.thread_task import ThreadTask
from timeoutmgr.transport.batch_progress import LONG_HANDLING
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings

logger = logging.getLogger(__name__)

_WATCH_EVERY: Final = 1.0
_JOIN: Final = 60.0
"""Seconds that stop waits for its threads; a handler that takes longer is left to the process."""


class Runner:
    """Starts and stops the threads of an endpoint; the endpoint's lock protects both."""

    def __init__(self, parts: AssembledEndpoint, on_watch: Callable[[], None]) -> None:
        self._parts = parts
        self._on_watch = on_watch
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pumps: list[_PumpThread] = []
        self.ended_pumps: tuple[str, ...] = ()
        """The queues of pumps that ended by themselves; none of them starts again."""

    def start(self) -> None:
        """Start the tasks, then the pumps, so that a poller finds overdue timeouts first."""
        surroundings = replace(surroundings_of(self._parts), stop=self._stop)
        for silence in self._parts.breakers.silences:
            silence.start()
        for task in self._parts.features.tasks:
            task.start()
        if self._parts.coroutines is not None:
            self._parts.coroutines.start()
        for satellite in existing_satellites(self._parts):
            for number in range(satellite.concurrency):
                pump = _pump(satellite.consumption, surroundings)
                thread = _PumpThread(pump, satellite.consumption.queue, number)
                self._spawn(thread)
                self._pumps.append(thread)
        if any(pump.pump.gives_back for pump in self._pumps):
            self._spawn(
                threading.Thread(target=self._relieve, name="timeoutmgr-relief", daemon=True)
            )
        self._spawn(threading.Thread(target=self._watch, name="timeoutmgr-watchdog", daemon=True))

    def stop(self) -> None:
        """Stop everything, and wait for running handlers."""
        self._stop.set()
        for each in self._pumps:
            each.pump.interrupt()
        coroutines, patience = self._parts.coroutines, _JOIN
        if coroutines is not None:
            shutdown_timeout = self._parts.settings.shutdown_timeout.total_seconds()
            coroutines.stop_within(shutdown_timeout)
            patience += shutdown_timeout
        for task in self._parts.features.tasks:
            task.stop()
        end = time.monotonic() + patience
        for thread in self._threads:
            if thread is threading.current_thread():
                continue  # a handler or hook that stops its own endpoint
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                logger.error(
                    "thread %s did not end within %.0f s",
                    thread.name,
                    patience,
                    extra=self._fields("thread_lingers"),
                )
        self._threads.clear()
        self._pumps.clear()
        if coroutines is not None:
            coroutines.stop()
        for silence in self._parts.breakers.silences:
            silence.stop()

    @property
    def is_stopped(self) -> bool:
        """Whether ``stop`` was called, also if a signal interrupted it."""
        return self._stop.is_set()

    def is_here(self) -> bool:
        """Return whether the calling thread is of this runner: ``stop`` waits for it."""
        tasks = self._parts.features.tasks
        return threading.current_thread() in self._threads or any(
            isinstance(task, ThreadTask) and task.is_here() for task in tasks
        )

    def _spawn(self, thread: threading.Thread) -> None:
        thread.start()
        self._threads.append(thread)  # after start: a thread that did not start cannot be joined

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_EVERY):
            try:
                for silence in self._parts.breakers.silences:
                    silence.check()
                for breaker in self._parts.breakers:
                    breaker.check()
                self._report_ended_pumps()
                self._parts.critical.report_kept()
                for task in self._parts.features.tasks:
                    task.watch()
                self._on_watch()
            except BaseException:
                # SystemExit too: it would end only this thread, the watchdog.
                logger.exception(
                    "watchdog of endpoint %s failed and continues",
                    self._parts.settings.name,
                    extra=self._fields("watchdog_failed"),
                )
                self._parts.settings.telemetry.count("watchdog_failures")

    def _relieve(self) -> None:
        # Not in the watchdog: a database that hangs must not block it.
        while not self._stop.wait(LONG_HANDLING):
            for each in list(self._pumps):
                try:
                    each.pump.give_back()
                except Exception:
                    logger.exception(
                        "endpoint %s could not give back messages behind a slow handler",
                        self._parts.settings.name,
                        extra=self._fields("messages_not_given_back"),
                    )

    def _fields(self, event: str) -> dict[str, str]:
        return {"event": event, "endpoint": self._parts.settings.name}

    def _report_ended_pumps(self) -> None:
        ended = [thread for thread in self._pumps if not thread.is_alive()]
        if not ended or self._stop.is_set():
            return
        self._pumps = [thread for thread in self._pumps if thread not in ended]
        self.ended_pumps += tuple(thread.queue for thread in ended)
        for thread in ended:
            self._parts.critical.raise_error(
                f"The pump of {thread.queue!r} ended by itself, endpoint will be terminated.",
                thread.error,
            )


def surroundings_of(parts: AssembledEndpoint) -> PumpSurroundings:
    """Return the parts that all pumps of an endpoint share."""
    settings = parts.settings
    return PumpSurroundings(
        endpoint=settings.name,
        transport=settings.transport,
        mode=parts.mode,
        error_queue=settings.error_queue,
        clock=settings.clock,
        telemetry=settings.telemetry,
        broker=parts.broker,
        failures=parts.features.policies.failures,
    )


def _pump(consumption: Consumption, surroundings: PumpSurroundings) -> Pump:
    if consumption.concurrent is None:
        return Pump(consumption, surroundings)
    from timeoutmgr.transport.concurrent_pump import ConcurrentPump

    return ConcurrentPump(consumption, surroundings, consumption.concurrent)


class _PumpThread(threading.Thread):
    """Runs a pump, and keeps the error that ended it."""

    def __init__(self, pump: Pump, queue: str, number: int) -> None:
        super().__init__(name=f"timeoutmgr-{queue}-{number}", daemon=True)
        self.pump = pump
        self.queue = queue
        self.error: BaseException = TimeoutManagerError(f"thread {self.name} has returned")

    def run(self) -> None:
        """Run the pump until it is stopped; save an error that ends it, for the watchdog."""
        try:
            self.pump.run()
        except BaseException as error:
            logger.exception("pump of queue %s ended", self.queue, extra={"event": "pump_ended"})
            self.error = error

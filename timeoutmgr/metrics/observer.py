"""Observers of ``timeoutmgr run``: of the endpoint in a process, and of a supervisor's children."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from timeoutmgr.metrics.memory import CountMemory, Section, State
from timeoutmgr.metrics.notification import READY, STOPPING, WATCHDOG, ServiceManager
from timeoutmgr.metrics.probes import not_alive, not_started
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.metrics.samples import note_breakers, note_connections, samplers_of

if TYPE_CHECKING:
    from timeoutmgr.endpoint.configuration import EndpointConfiguration
    from timeoutmgr.endpoint.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Observer:
    """Counts and states of the endpoint in this process, in *section* of *memory*."""

    memory: CountMemory
    section: Section
    manager: ServiceManager | None = None

    @classmethod
    def alone(cls, manager: ServiceManager | None) -> Self:
        """Return the observer of a run of one process."""
        memory = CountMemory.create(1)
        return cls(memory, memory.sections[0], manager)

    @classmethod
    def of_child(cls, descriptor: int, number: int) -> Self:
        """Return the observer of child *number*; the supervisor has made the memory."""
        memory = CountMemory.attach(descriptor)
        return cls(memory, memory.sections[number - 1])

    def prepare(self, config: "EndpointConfiguration") -> None:
        """Make the endpoint of *config* count here."""
        config.telemetry = Recorder(self.memory, self.section, config.telemetry)

    @contextmanager
    def running(self, endpoint: "Endpoint") -> Iterator[None]:
        """Observe the started *endpoint*; the end of the block means that it stops."""
        for state in (State.TICK, State.STARTED):
            self.section.set_state(state, time.monotonic())
        self._notify(READY)
        with ExitStack() as stack:
            for sampler in samplers_of(endpoint.parts, self.memory, self.section):
                sampler.start()
                stack.callback(sampler.end)
            try:
                yield
            finally:
                # Before the endpoint stops: a draining process must get no more work.
                self.section.set_state(State.DRAINING, time.monotonic())
                self._notify(STOPPING)

    def tick(self, endpoint: "Endpoint") -> None:
        """Record that the watchdog of *endpoint* runs."""
        self.section.set_state(State.TICK, time.monotonic())
        self.section.set_state(State.PUMPS_ENDED, len(endpoint.ended_pumps))
        note_breakers(endpoint.parts, self.memory, self.section)
        note_connections(endpoint.parts, self.section)
        if not endpoint.ended_pumps:
            self._notify(WATCHDOG)

    def _notify(self, state: str) -> None:
        if self.manager is not None:
            self.manager.notify(state)


class FleetObserver:
    """Counts and states of the children of a supervisor, in its memory."""

    def __init__(self, processes: int, manager: ServiceManager | None) -> None:
        self.memory = CountMemory.create(processes)
        self._manager = manager
        self._is_ready = False
        self._next = 0.0

    def ended(self, number: int) -> None:
        """Clear the values of child *number*, which has ended; its counts stay."""
        self.memory.sections[number - 1].forget_values()

    def tick(self) -> None:
        """Notify the service manager of the start, and while all children live."""
        if self._manager is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 1.0
        if not self._is_ready and not not_started(self.memory.sections, now):
            self._is_ready = True
            self._manager.notify(READY)
        if not not_alive(self.memory.sections, now):
            self._manager.notify(WATCHDOG)

    def stopping(self) -> None:
        """Record that all children are to stop."""
        for section in self.memory.sections:
            section.set_state(State.DRAINING, time.monotonic())
        if self._manager is not None:
            self._manager.notify(STOPPING)

"""A node: a process with store pump, poller, dispatcher and housekeeping, and its restarts."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import StorageUnavailable, TimeoutManagerError
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.satellites.housekeeping import Housekeeping
from timeoutmgr.satellites.poller import PollTimeouts
from timeoutmgr.satellites.timeout_manager.dispatcher import DispatchTimeouts
from timeoutmgr.satellites.timeout_manager.timeouts import StoreTimeouts
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.transport.delivery_policy import Outage
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings
from timeoutmgr.transport.work import Step

from .broker import CONTROL, ERROR, STORE
from .database import Database
from .poller import SteppedPoller
from .process import Calls, Process
from .store import SimStore, as_store
from .timeline import MINUTE, SECOND, Actor, HostClock, Killed
from .transport import SimTransport, as_transport
from .world import World

WAIT: Final = timedelta(minutes=2)
AHEAD: Final = 2 * SECOND
"""How much ahead due timeouts are ordered. More than the product does: here all takes longer."""
_LONGEST_IDLE: Final = 32 * SECOND
_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a node; mutants have other parts."""

    store: type[SimStore] = SimStore
    database: type[Database] = Database
    storing: type[StoreTimeouts] = StoreTimeouts
    dispatching: type[DispatchTimeouts] = DispatchTimeouts
    polling: type[PollTimeouts] = PollTimeouts
    store_mode: TransactionMode = TransactionMode.RECEIVE_ONLY


class Node:
    """A host, and the process that runs on it now."""

    def __init__(self, world: World, name: str, parts: Parts, chunk: int) -> None:
        self.name = name
        self.clock = HostClock(world.timeline)
        self._world = world
        self._parts = parts
        self._chunk = chunk
        self._starts = itertools.count(1)
        self._ids = itertools.count(1)
        self._actors: list[Actor] = []
        self.process = Process("", self.clock)
        self.timeouts: Timeouts

    def start(self) -> None:
        """Start a process."""
        world, parts = self._world, self._parts
        self.process = Process(f"{self.name}.{next(self._starts)}", self.clock)
        world.note(self.process.name, "starts")
        dispatcher, poller = self._calls("dispatcher"), self._calls("poller")
        store, housekeeper = self._calls("store"), self._calls("keeper")
        dispatch = parts.dispatching(
            store=as_store(parts.store(world, dispatcher)),
            error_queue=ERROR,
            limits=_LIMITS,
            clock=self.clock,
            telemetry=Watchful(world),
            ahead=AHEAD,
            rest=lambda seconds: world.timeline.pass_time(round(seconds * SECOND)),
        )
        polling = self._poller(poller)
        storing = parts.storing(
            store=as_store(parts.store(world, store)),
            limits=_LIMITS,
            clock=self.clock,
            telemetry=Watchful(world),
            wake=polling.wake,
            dispatch_now=dispatch.dispatch_now,
        )
        polls = polling.play_in(world.timeline, poller)
        kept = parts.store(world, housekeeper)
        house = Housekeeping(
            as_store(kept),
            owner=self.process.name,
            ready=kept.ping,
            measure_offset=polling.measure_offset,
            state=dict,
            telemetry=Watchful(world),
        )
        receive_only = TransactionMode.RECEIVE_ONLY
        self._actors = [
            self._pump(dispatcher, CONTROL, dispatch, 1, receive_only),
            self._pump(store, STORE, storing, 100, parts.store_mode),
            polls,
            Actor("keeper", lambda: _keep_house(house, polling)),
        ]
        for actor in self._actors:
            world.timeline.at(world.timeline.now + world.random.randrange(SECOND), actor)
        client = parts.store(world, self._calls("client"))
        self.timeouts = Timeouts(as_store(client), polling.wake)

    def died(self) -> None:
        """Let nothing of the dead process act any more; start another one later."""
        world = self._world
        for actor in self._actors:
            actor.removed = True
        for consumers in world.broker.consumers.values():
            consumers[:] = [one for one in consumers if one not in self._actors]
        world.timeline.happens(world.random.randrange(20 * SECOND), self.start)

    def _calls(self, name: str) -> Calls:
        return Calls(self._world, self.process, name)

    def _breaker(self, name: str) -> OutageBreaker:
        world, who = self._world, self.process.name
        return OutageBreaker(
            name,
            time_to_wait=WAIT,
            on_trigger=lambda error: world.tells(who, name),
            clock=self.clock,
        )

    def _poller(self, calls: Calls) -> SteppedPoller:
        step = self._parts.polling(
            store=as_store(self._parts.store(self._world, calls)),
            queue=CONTROL,
            owner=self.process.name,
            mode=TransactionMode.RECEIVE_ONLY,
            chunk=self._chunk,
            clock=self.clock,
            new_id=lambda: f"{self.name}-{next(self._ids)}",
            telemetry=Watchful(self._world),
            ahead=AHEAD,
        )
        return SteppedPoller(
            step,
            interval=timedelta(minutes=1),
            sessions=SessionPool(as_transport(SimTransport(self._world, calls))),
            fetch=self._breaker("fetch"),
            ready=lambda: None,
            clock=self.clock,
            telemetry=Watchful(self._world),
            on_clock_offset=lambda seconds: None,
        )

    def _pump(
        self, calls: Calls, queue: str, step: Step, batch: int, mode: TransactionMode
    ) -> Actor:
        stop = StepEnds(self._world, calls)
        what = Consumption(
            name=calls.name,
            queue=queue,
            step=step,
            batch=batch,
            storage=Outage(
                breaker=self._breaker(f"storage {calls.name}"),
                probe=self._parts.store(self._world, calls).ping,
            ),
        )
        around = PumpSurroundings(
            endpoint="sales",
            transport=as_transport(SimTransport(self._world, calls)),
            mode=mode,
            error_queue=ERROR,
            clock=self.clock,
            telemetry=Watchful(self._world),
            broker=self._breaker(f"broker {calls.name}"),
            stop=stop,
        )
        pump, idle = Pump(what, around), SECOND // 2

        def act() -> Micros:
            nonlocal idle
            calls.received = None
            pump.run()
            # A later turn, or a message that comes, ends a receive that waits.
            idle = SECOND // 2 if calls.received else min(2 * idle, _LONGEST_IDLE)
            return 1_000 if calls.received else idle

        actor = Actor(calls.name, act)
        self._world.broker.consumers[queue].append(actor)
        return actor


def _keep_house(house: Housekeeping, poller: SteppedPoller) -> Micros:
    with contextlib.suppress(StorageUnavailable):
        house.keep_house()
    poller.watch()
    return MINUTE // 3


class StepEnds(threading.Event):
    """A pump's stop event: set once it has received, so that one run of its loop is one turn."""

    def __init__(self, world: World, calls: Calls) -> None:
        super().__init__()
        self._world = world
        self._calls = calls

    def is_set(self) -> bool:
        return self._calls.received is not None

    def wait(self, timeout: float | None = None) -> bool:
        # At least a millisecond: a wait below the clock's resolution would not let time pass.
        self._world.timeline.pass_time(max(1_000, int((timeout or 0) * SECOND)))
        if self._calls.process.dead:
            raise Killed
        return False


class Watchful:
    """A telemetry that records events which no simulated fault explains."""

    def __init__(self, world: World) -> None:
        self._world = world

    def count(self, event: str, amount: int = 1) -> None:
        if event in ("pump_failures", "polls_failed", "housekeeping_failures"):
            error = sys.exception()
            if not isinstance(error, TimeoutManagerError):
                self._world.ledger.surprise(f"{event}: {error!r}")

    def value(self, name: str, value: float) -> None:
        return

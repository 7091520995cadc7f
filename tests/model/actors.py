"""The real pumps and steps as actors, and the scenario that they play."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import cast

from tests.support.clock import FakeClock
from tests.support.makers import a_delayed, a_message
from timeoutmgr.contracts import TransactionMode, Transport
from timeoutmgr.errors import (
    DeliveryUnknown,
    LeaseLost,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import clear_timeouts, timeout_id
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.satellites.poller import PollTimeouts
from timeoutmgr.satellites.timeout_manager.dispatcher import DispatchTimeouts
from timeoutmgr.satellites.timeout_manager.timeouts import StoreTimeouts
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings
from timeoutmgr.transport.work import Step

from .broker import (
    CONTROL,
    DESTINATION,
    ERROR,
    STORE,
    Broker,
    SimReceiver,
    SimSession,
    as_receiver,
    as_session,
)
from .explorer import Actor, Model, Player
from .fenced import FencedStore
from .letters import body_number
from .promises import CANCEL, CHANGE, Promises
from .rowlocks import RowLockStore
from .store import SimStore, as_store
from .world import BEFORE, DUE, HOUR, LAST, LATER, Bounds, Copy, Map, Op, Outcomes, World

SCOPE, RECEIVE = TransactionMode.TRANSACTION_SCOPE, TransactionMode.RECEIVE_ONLY


class Quiet:
    """A telemetry that keeps nothing, and the clock of one run."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def count(self, event: str, amount: int = 1) -> None:
        return

    def value(self, name: str, value: float) -> None:
        return

    def now(self) -> Micros:
        return cast(Micros, self._player.ask(_CLOCK))

    def monotonic(self) -> float:
        return 0.0


def _read_clock(world: World) -> Outcomes:
    yield "", world, world.now


def _read_serial(world: World) -> Outcomes:
    yield "", world, f"c{world.serial}"


_CLOCK = Op("clock", _read_clock, quick=True)
_NEW_ID = Op("new id", _read_serial, quick=True)
BREAKER = OutageBreaker(
    "model", time_to_wait=timedelta(hours=1), on_trigger=lambda error: None, clock=FakeClock()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The actors, and the faults that may happen. Mutants change the fields at the end.

    *sent* are message ids and due times; an id that comes twice was sent again by its sender
    after a lost confirm. *clients* are pairs of CANCEL or CHANGE and a message id.
    """

    store: type[RowLockStore | FencedStore] = RowLockStore
    same_database: bool = False
    sent: tuple[tuple[str, Micros], ...] = (("m1", DUE),)
    saga: tuple[tuple[str, Micros], ...] = ()
    """The order of the queue, with times of sending: of *sent*, and of ``clear``, which clears."""
    clients: tuple[tuple[str, str], ...] = ()
    orders: tuple[str, ...] = ()
    """Message ids whose dispatch is ordered in NServiceBus' single-id form."""
    starts: Micros = DUE
    stores: int = 1
    dispatchers: int = 2
    chunk: int = 2
    bounds: Bounds = field(default_factory=Bounds)
    has_destination: bool = True
    store_step: Callable[..., Step] = StoreTimeouts
    dispatch_step: type[DispatchTimeouts] = DispatchTimeouts
    store_mode: TransactionMode | None = None
    poll: Callable[..., PollTimeouts] = PollTimeouts

    @property
    def mode(self) -> TransactionMode:
        return SCOPE if self.same_database else RECEIVE

    @property
    def ids(self) -> Mapping[str, str]:
        return MappingProxyType({name: timeout_id("sales", name) for name, _ in self.sent})

    @property
    def ahead(self) -> list[str]:
        """The messages ahead of the clear."""
        names = [name for name, _ in self.saga]
        return names[: names.index(CLEAR)] if names else []

    def model(self) -> Model:
        """Return the model of this scenario."""
        play = _Play(self)
        return Model(
            world=play.world(),
            actors=tuple(play.actors()),
            bounds=self.bounds,
            crash=self._crash,
            faults=(self._tick, self._lapse, self._redeliver, self._cut),
            check=play.promises.check,
            settle=_settle,
            check_end=play.promises.check_end,
        )

    def _crash(self, world: World, who: str) -> World:
        lost = [serial for serial, held in world.held.items() if held.owner == who]
        owned = [token for token, claim in world.claims.items() if claim.owner == who]
        # Only a dispatcher's death may have it sent again, and none where all is one transaction.
        cause = who.startswith("dispatcher") and not self.same_database
        world = world._replace(crashes=world.crashes + 1, causes=world.causes + cause)
        return world.requeued(*lost).over(*owned).released(who)

    def _tick(self, world: World) -> Iterator[tuple[str, World]]:
        if self.saga and (world.queues[STORE] or world.held):
            return  # nothing is due before the clear is handled
        latest = LATER if any(what == CHANGE for what, _ in self.clients) else DUE
        if world.now < latest:
            yield "the clock moves on", world._replace(now=world.now + HOUR)

    def _lapse(self, world: World) -> Iterator[tuple[str, World]]:
        if world.lapses >= self.bounds.lapses:
            return
        cause = issubclass(self.store, FencedStore) and not self.same_database
        for token, claim in world.claims.items():
            if not claim.over:
                lapsed = world.over(token)
                yield (
                    f"claim {token} lapses",
                    lapsed._replace(lapses=world.lapses + 1, causes=world.causes + cause),
                )

    def _redeliver(self, world: World) -> Iterator[tuple[str, World]]:
        if world.redeliveries >= self.bounds.redeliveries:
            return
        for serial, held in world.held.items():
            back = world.requeued(serial)
            yield (
                f"the broker takes a delivery back from {held.owner}",
                back._replace(redeliveries=world.redeliveries + 1),
            )

    def _cut(self, world: World) -> Iterator[tuple[str, World]]:
        if world.cuts >= self.bounds.cuts or self.same_database:
            return
        for who in {who for lock, who in world.locks.items() if lock != "writer"}:
            if who.startswith("dispatcher"):
                off = world.released(who)._replace(cut_off=world.cut_off | {who})
                yield (
                    f"the database drops the connection of {who}",
                    off._replace(cuts=world.cuts + 1, causes=world.causes + 1),
                )


class _Play:
    """Makes the actors of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._in = scenario
        self.promises = Promises(
            dues=dict(scenario.sent),
            ids=scenario.ids,
            changed_to=LATER,
            failing=not scenario.has_destination,
            cleared=frozenset(scenario.ahead),
        )
        self._broker = Broker(
            bounds=scenario.bounds,
            deliver=self.promises.delivered,
            has_destination=scenario.has_destination,
        )

    def world(self) -> World:
        sent = [a_delayed(name, due, DESTINATION, **_SENT_AT) for name, due in self._in.sent]
        if self._in.saga:
            dues = dict(self._in.sent)
            sent = [_of_saga(name, at, dues.get(name)) for name, at in self._in.saga]
        waiting = tuple(Copy(n, body_number(message)) for n, message in enumerate(sent))
        orders = [a_message(f"o{name}", timeout_id=self._in.ids[name]) for name in self._in.orders]
        ordered = tuple(Copy(100 + n, body_number(message)) for n, message in enumerate(orders))
        return World(
            now=self._in.starts,
            queues=Map({STORE: waiting, CONTROL: ordered}),
            serial=len(waiting),
        )

    def actors(self) -> Iterator[Actor]:
        for n in range(1, self._in.stores + 1):
            yield self._pump(f"store{n}", STORE)
        yield Actor(
            name="poller",
            kind="poller",
            activity=self._poll,
            may_begin=lambda world: (
                world.polls < self._in.bounds.polls
                and any(key.due <= world.now for key in world.rows)
            ),
        )
        for n in range(1, self._in.dispatchers + 1):
            yield self._pump(f"dispatcher{n}", CONTROL)
        for what, name in self._in.clients:
            yield Actor(
                name=f"{what} {name}",
                kind=f"{what} {name}",
                activity=partial(self._ask, what, name),
                once=True,
                ended=partial(self._answered, what, name),
            )

    def _store(self, player: Player, who: str) -> SimStore:
        atomic = self._in.same_database
        return self._in.store(player, who, self._in.bounds, atomic=atomic)

    def _session(self, player: Player, who: str) -> SimSession:
        one_writer = issubclass(self._in.store, FencedStore)
        return SimSession(player, who, self._broker, one_writer=one_writer)

    def _pump(self, who: str, queue: str) -> Actor:
        return Actor(
            name=who,
            kind=who.rstrip("0123456789"),
            activity=partial(self._consume, who, queue),
            may_begin=lambda world: bool(world.queues[queue]),
        )

    def _consume(self, who: str, queue: str, player: Player) -> Hashable:
        """Do the work of one turn of the pump's loop, and of the loop in an outage."""
        quiet = Quiet(player)
        mode = self._in.mode
        if queue == STORE and self._in.store_mode is not None:
            mode = self._in.store_mode
        surroundings = PumpSurroundings(
            endpoint="sales",
            transport=cast(Transport, None),
            mode=mode,
            error_queue=ERROR,
            clock=quiet,
            telemetry=quiet,
            broker=BREAKER,
            number=ord(who[-1]),
        )
        step, batch = self._step(who, queue, player, quiet)
        pump = Pump(Consumption(name=who, queue=queue, step=step, batch=batch), surroundings)
        receiver = SimReceiver(player, who, queue, counts=bool(self._in.saga))
        session = self._session(player, who)
        try:
            pump.pump_once(as_session(session), as_receiver(receiver), 0)
        except (StorageUnavailable, TransportUnavailable, DeliveryUnknown, LeaseLost):
            receiver.close()
        return None

    def _step(self, who: str, queue: str, player: Player, quiet: Quiet) -> tuple[Step, int]:
        store = as_store(self._store(player, who))
        dispatch = self._in.dispatch_step(
            store=store, error_queue=ERROR, limits=Limits(), clock=quiet, telemetry=quiet
        )
        if queue == CONTROL:
            return dispatch, 1
        step = self._in.store_step(
            store=store,
            limits=Limits(),
            clock=quiet,
            telemetry=quiet,
            wake=lambda due: None,
            dispatch_now=dispatch.dispatch_now,
        )
        return step, self._in.chunk

    def _poll(self, player: Player) -> Hashable:
        quiet = Quiet(player)
        step = self._in.poll(
            store=as_store(self._store(player, "poller")),
            queue=CONTROL,
            owner="poller",
            mode=self._in.mode,
            chunk=self._in.chunk,
            clock=quiet,
            new_id=lambda: cast(str, player.ask(_NEW_ID)),
            telemetry=quiet,
            stopping=lambda: bool(player.ask(Op("stopping", self._enough, quick=True))),
        )
        try:
            step(as_session(self._session(player, "poller")))
        except (StorageUnavailable, TransportUnavailable):
            return "failed"
        return "polled"

    def _enough(self, world: World) -> Outcomes:
        yield "", world, world.polls >= self._in.bounds.polls

    def _ask(self, what: str, name: str, player: Player) -> Hashable:
        store = as_store(self._store(player, f"{what} {name}"))
        try:
            if what == CANCEL:
                return store.cancel(self._in.ids[name]).value
            return store.reschedule(self._in.ids[name], LATER).value
        except StorageUnavailable:
            return "no answer"

    def _answered(self, what: str, name: str, world: World, answer: Hashable) -> World:
        return self.promises.answered(world, what, name, cast(str, answer))


def _of_saga(name: str, at: Micros, due: Micros | None) -> Message:
    if due is None:
        return clear_timeouts("s", STORE, name, at).message
    return a_delayed(name, due, DESTINATION, saga_id="s", time_sent=to_wire(at))


CLEAR = "clear"
_SENT_AT = {"time_sent": to_wire(BEFORE)}


def _settle(world: World) -> World:
    """Let claims lapse, and time pass beyond every next try."""
    return world.over(*world.claims)._replace(now=max(world.now, LAST) + HOUR)

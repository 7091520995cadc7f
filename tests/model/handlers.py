"""The real pump and the real step of handlers: two consumers of one queue, in shared commits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tests.support.makers import a_composer, a_message
from timeoutmgr.contracts import TransactionMode, Transport
from timeoutmgr.endpoint.handlers import ANY, HandlerContext, HandlerStep
from timeoutmgr.endpoint.list_handlers import BatchContext, ListHandlerStep
from timeoutmgr.errors import (
    DeliveryUnknown,
    LeaseLost,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Outgoing
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.transport.batch_progress import BATCH_SECONDS, LONG_HANDLING
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings

from .actors import BREAKER, Quiet
from .broker import (
    DESTINATION,
    ERROR,
    Broker,
    SimReceiver,
    SimSession,
    SimTransaction,
    as_receiver,
    as_session,
)
from .explorer import Actor, Model, Paused, Player
from .handler_promises import HandlerPromises
from .letters import body_number
from .world import BEFORE, DUE, Bounds, Copy, Map, Op, Outcomes, World

INPUT = "sales"
LONGER_THAN_BATCH, LONG = "takes its time", "is slow, its neighbours are given back"
FAILS, LOSES = "raises", "loses the transaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerScenario:
    """Consumers with handlers, and the faults that may happen. Mutants change the last two fields.

    The handler of *failing* raises *failures* times; None: each time. After *attempts* in a row the
    message moves to the error queue.
    """

    mode: TransactionMode = TransactionMode.TRANSACTION_SCOPE
    one_writer: bool = False
    sent: tuple[str, ...] = ("m1", "m2", "m3")
    failing: str = "m2"
    failures: int | None = None
    attempts: int = 2
    consumers: int = 2
    batch: int = 3
    counts: bool = True
    """Whether the broker reports which messages it delivered before."""
    lists: bool = False
    """Whether the handler gets the messages of a batch as a list."""
    bounds: Bounds = field(default_factory=Bounds)
    step: type[HandlerStep] = HandlerStep
    pump: type[Pump] = Pump

    @property
    def is_scope(self) -> bool:
        return self.mode is TransactionMode.TRANSACTION_SCOPE

    def model(self) -> Model:
        """Return the model of this scenario."""
        rejected = self.failing if self.failures is None else None
        promises = HandlerPromises(sent=self.sent, is_scope=self.is_scope, rejected=rejected)
        broker = _CountingBroker(bounds=self.bounds, deliver=promises.delivered)
        return Model(
            world=self._world(),
            actors=tuple(
                Actor(
                    name=f"consumer{n}",
                    kind="consumer",
                    activity=_Consumer(self, broker, f"consumer{n}").consume,
                    may_begin=lambda world: bool(world.queues[INPUT]),
                )
                for n in range(1, self.consumers + 1)
            ),
            bounds=self.bounds,
            crash=self._crash,
            faults=(self._redeliver,),
            check=promises.check,
            settle=lambda world: world,
            check_end=promises.check_end,
        )

    def _world(self) -> World:
        messages = [a_message(name, time_sent=to_wire(BEFORE)) for name in self.sent]
        copies = tuple(Copy(n, body_number(message)) for n, message in enumerate(messages))
        return World(now=DUE, queues=Map({INPUT: copies}), serial=len(copies))

    def _crash(self, world: World, who: str) -> World:
        lost = [serial for serial, held in world.held.items() if held.owner == who]
        world = self._interrupted(world._replace(crashes=world.crashes + 1), *lost)
        return world.requeued(*lost).released(who)

    def _redeliver(self, world: World) -> Iterator[tuple[str, World]]:
        if world.redeliveries >= self.bounds.redeliveries:
            return
        for serial, held in world.held.items():
            # An acknowledgement of the whole batch fails with that of this message.
            batch = [one for one, other in world.held.items() if other.owner == held.owner]
            back = self._interrupted(world, *batch).requeued(serial)
            yield (
                f"the broker takes {self.sent[serial]} back from {held.owner}",
                back._replace(redeliveries=world.redeliveries + 1),
            )

    def _interrupted(self, world: World, *serials: int) -> World:
        """Count an interruption of the messages *serials*: their handlers may repeat."""
        counted = world.handling.interrupted
        for name in (self.sent[serial] for serial in serials):
            counted = counted.having(name, counted.get(name, 0) + 1)
        return world._replace(handling=world.handling._replace(interrupted=counted))


class _CountingBroker(Broker):
    """A broker that counts the copies in the error queue."""

    def put(self, world: World, outgoing: Outgoing) -> World:
        world = super().put(world, outgoing)
        if outgoing.destination != ERROR:
            return world
        name, counted = outgoing.message.id, world.handling.error_copies
        counted = counted.having(name, counted.get(name, 0) + 1)
        return world._replace(handling=world.handling._replace(error_copies=counted))


class _Connection(SimTransaction, Connection):
    """The transaction as handlers see it: with savepoints, and of no engine."""

    engine = cast(Engine, None)

    def __init__(self) -> None:
        super().__init__()
        self.losses = 0

    @property
    def invalidated(self) -> bool:
        """It is of no pool, which would replace it."""
        return True

    def begin_nested(self) -> _Savepoint:  # type: ignore[override]  # as much as a session calls
        return _Savepoint(self)

    def lose(self) -> None:
        """End the transaction at the server, unseen by the driver: a new one follows."""
        self.changes.clear()
        self.losses += 1


class _Savepoint:
    """A savepoint, which ends with the transaction around it."""

    is_active = True

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._start = len(connection.changes)
        self._losses = connection.losses

    def commit(self) -> None:
        if self._losses != self._connection.losses:
            raise SQLAlchemyError("no such savepoint")

    def rollback(self) -> None:
        self.commit()
        del self._connection.changes[self._start :]


class _HandlerSession(SimSession):
    """A session whose transactions are connections."""

    def _new_transaction(self) -> SimTransaction:
        return _Connection()


class _Consumer:
    """One pump; *consume* is one batch of its loop."""

    def __init__(self, scenario: HandlerScenario, broker: Broker, who: str) -> None:
        self._in = scenario
        self._broker = broker
        self._who = who

    def consume(self, player: Player) -> Hashable:
        """Receive and settle one batch, as the pump's loop does, also in an outage."""
        given = self._in
        receiver = SimReceiver(player, self._who, INPUT, counts=given.counts)
        session = _HandlerSession(player, self._who, self._broker, one_writer=given.one_writer)
        pump = _Run(given, player).pump
        try:
            pump.pump_once(as_session(session), as_receiver(receiver), 0)
        except (StorageUnavailable, TransportUnavailable, DeliveryUnknown, LeaseLost):
            if player.asked is None:
                receiver.close()
        if player.asked is not None:
            # The step takes each error of a handler, this too, for a failure of its message.
            raise Paused
        return None


class _Run:
    """The pump, the handler and the watch of one batch."""

    def __init__(self, scenario: HandlerScenario, player: Player) -> None:
        self._in = scenario
        self._player = player
        self._seconds = 0.0
        quiet = Quiet(player)
        made: Any = (
            partial(ListHandlerStep, lists=frozenset({ANY})) if scenario.lists else scenario.step
        )
        step = made(
            queue=INPUT,
            handlers={ANY: [self._handle_list if scenario.lists else self._handle]},
            composer=replace(a_composer(quiet), new_id=lambda: cast(str, player.ask(_NEW_ID))),
            clock=quiet,
            telemetry=quiet,
        )
        self.pump = scenario.pump(
            Consumption(
                name="handlers",
                queue=INPUT,
                step=step,
                split=step.split,
                batch=scenario.batch,
                is_paced=True,
                policy=RecoverabilitySettings(immediate=scenario.attempts, delayed=0),
            ),
            PumpSurroundings(
                endpoint="sales",
                transport=cast(Transport, None),
                mode=scenario.mode,
                error_queue=ERROR,
                clock=quiet,
                telemetry=quiet,
                broker=BREAKER,
                monotonic=lambda: self._seconds,
            ),
        )

    def _handle(self, _body: object, context: HandlerContext) -> None:
        """Have one effect, send one message, and then end as the explorer wants."""
        name = context.message_id
        if self._in.is_scope:
            _connection(context).changes.append(partial(_with_effect, name))
        context.send(DESTINATION, "Handled", {"cause": name})
        end = self._player.ask(Op(f"handle {name}", partial(self._ends, name)))
        if LOSES in end:
            _connection(context).lose()
        if end == LONGER_THAN_BATCH:
            self._seconds += 2 * BATCH_SECONDS
        elif end == LONG:
            self._seconds += 2 * LONG_HANDLING
            self.pump.give_back()  # of another thread, while this handler waits
        elif FAILS in end:
            raise ValueError(name)

    def _handle_list(self, bodies: list[object], context: BatchContext) -> None:
        for body, own in zip(bodies, context.contexts, strict=True):
            self._handle(body, own)

    def _ends(self, name: str, world: World) -> Outcomes:
        """Yield the ways in which the handler of *name* may end now."""
        given, handling = self._in, world.handling
        usual = ""
        if name == given.failing and (given.failures is None or handling.failures < given.failures):
            usual = FAILS
            handling = handling._replace(failures=handling.failures + (given.failures is not None))
            world = world._replace(handling=handling)
        yield f" {usual}".rstrip(), world, usual
        if handling.losses < given.bounds.losses:
            lost = handling._replace(losses=handling.losses + 1)
            end = f"{LOSES} {usual}".rstrip()
            yield f" {end}", world._replace(handling=lost), end
        if not usual and handling.pauses < given.bounds.pauses:
            paused = handling._replace(pauses=handling.pauses + 1)
            for end in (LONGER_THAN_BATCH, LONG):
                yield f" {end}", world._replace(handling=paused), end


def _read_crashes(world: World) -> Outcomes:
    yield "", world, f"new after {world.crashes} crashes"


_NEW_ID = Op("new id", _read_crashes, quick=True)
"""An id that differs after a crash: a handler that repeats under a new id must be seen."""


def _connection(context: HandlerContext) -> _Connection:
    return cast(_Connection, context.session.get_bind())


def _with_effect(name: str, world: World) -> World:
    effects = world.handling.effects
    effects = effects.having(name, effects.get(name, 0) + 1)
    return world._replace(handling=world.handling._replace(effects=effects))

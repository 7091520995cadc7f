"""Dead-letter queues as an endpoint feature: off unless it is enabled."""

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from timeoutmgr.contracts import Transport
from timeoutmgr.contracts.transports import ExpiresMessages
from timeoutmgr.database import as_database, one_connection_serves
from timeoutmgr.deadletter.acknowledgements import ACKNOWLEDGEMENTS, SettleStoredCopies
from timeoutmgr.deadletter.expiry import ExpirySweep
from timeoutmgr.deadletter.manager import NODE_BYTES, SWEEP, QueueManager, Quotas
from timeoutmgr.deadletter.native import CollectDead, ExpiringQueues
from timeoutmgr.deadletter.policies import (
    DeadLetterFailures,
    DeadLetterForwarding,
    DeadLetterHandling,
    DeadLetterSending,
)
from timeoutmgr.deadletter.service import AcceptedMessages, DeadLetterService, JournalingRules
from timeoutmgr.deadletter.store import DeadLetterStore, checked_node
from timeoutmgr.errors import (
    ConfigurationError,
    NodeFull,
    SchemaMissing,
    StorageConflict,
    StorageUnavailable,
    TransportUnavailable,
)
from timeoutmgr.features.feature import FIRST, FeatureContext, FeatureSettings, Prerequisite
from timeoutmgr.features.parts import FeatureParts, Satellite, Task
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.message.message import Expiry
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import names_of
from timeoutmgr.resilience.thread_task import ThreadTask
from timeoutmgr.telemetry import Telemetry
from timeoutmgr.transport.delivery_policy import DeliveryPolicies, Outage
from timeoutmgr.transport.pump import Consumption
from timeoutmgr.transport.work import ATOMIC

logger = logging.getLogger(__name__)

# --- the sweep: once a minute, overdue copies move to their dead-letter queue -----------------


class Sweeper(ThreadTask):
    """The sweep's loop, in a thread; ``sweep_kept`` and ``sweep_queues`` are its steps."""

    thread_name = "timeoutmgr-sweep"

    def __init__(
        self,
        manager: QueueManager,
        interval: timedelta,
        telemetry: Telemetry,
        expire: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__()
        self._manager = manager
        self._expire = expire
        self._interval = interval.total_seconds()
        self._telemetry = telemetry

    def sweep_kept(self) -> None:
        """Move all overdue copies, and delete old attempts. Raises StorageUnavailable."""
        moved, now = 0, self._manager.now()
        while not self._stop.is_set():
            count = self._manager.sweep(now)
            moved += count
            self._telemetry.count("kept_messages_expired", count)
            if count < SWEEP:
                break
        self._manager.forget_attempts(now)
        if moved:
            logger.warning(
                "sweeper moved %d messages without a final acknowledgement in time to the "
                "transactional dead-letter queue of node %s",
                moved,
                self._manager.node,
                extra={"event": "final_acknowledgements_overdue"},
            )

    def sweep_queues(self) -> None:
        """Remove all expired messages from their queues.

        Raises StorageUnavailable and TransportUnavailable.
        """
        expired = 0
        while self._expire is not None and not self._stop.is_set():
            now = self._expire(SWEEP)
            expired += now
            if not now:
                break
        if expired:
            logger.warning(
                "sweeper took %d messages out of their queues, their time to be received was over",
                expired,
                extra={"event": "messages_expired"},
            )

    def _run(self) -> None:
        while True:
            self._attempt(self.sweep_kept)
            self._attempt(self.sweep_queues)
            if self._stop.wait(self._interval):
                return

    def _attempt(self, sweep: Callable[[], None]) -> None:
        try:
            sweep()
        except (StorageUnavailable, TransportUnavailable) as error:
            logger.info(
                "sweeper skips a sweep, it cannot reach the dead-letter store or the queues: %s",
                on_one_line(error),
                extra={"event": "sweep_skipped"},
            )
        except Exception:
            logger.exception("sweeper failed and goes on", extra={"event": "sweep_failed"})
            self._telemetry.count("sweep_failures")


ANSWER: Final = 1.0
"""Seconds that a dispatch waits for an answer, once per outage."""
LONGEST_ANSWER: Final = 5.0
"""Seconds that an SQLite writer waits, or a dispatch for a store that has answered late."""
Result = TypeVar("Result")


class StoreCalls(ThreadTask):
    """Makes calls to a store that may hang, for callers that must not hang; ends its *outage*.

    A waiting dispatch delays good timeouts, and a pump in an SQLite transaction blocks all other
    writers: neither waits for the other's calls. A call waits *least* seconds or longer, including
    the wait for earlier calls.
    """

    thread_name = "timeoutmgr-dead-letters"

    def __init__(
        self, outage: Outage, least: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._outage = outage
        self._least = self._patience = least
        self._monotonic = monotonic

    def start(self) -> None:
        """Start."""
        self._given: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._given_up: Future[Any] | None = None
        self._is_away = False
        super().start()

    def make(self, call: Callable[[], Result]) -> Result:
        """Return the result of *call*, which may be repeated, or raise its error.

        Raises StorageUnavailable if there is no result in time (the call may still be carried out),
        and at once while an earlier call has no result or the outage lasts. Before ``start`` there
        is no time limit.
        """
        if self._thread is None:
            return call()
        if self._is_away or not (self._given_up is None or self._given_up.done()):
            raise StorageUnavailable("the dead-letter store does not answer")
        answer, patience = Future[Result](), self._patience
        self._given.put((call, answer))
        try:
            return answer.result(patience)
        except TimeoutError:
            if not answer.cancel():
                self._given_up = answer
            text = f"the dead-letter store does not answer within {patience:.0f} s"
            raise StorageUnavailable(text) from None

    def stop(self) -> None:
        """Stop; return when the thread has ended."""
        self._stop.set()
        if self._thread is not None:
            self._given.put(None)
        super().stop()

    def _run(self) -> None:
        while (given := self._given.get()) is not None:
            call, answer = given
            if not answer.set_running_or_notify_cancel():
                continue
            begun = self._monotonic()
            try:
                result = call()
            except Exception as error:
                no_outage = isinstance(error, NodeFull | StorageConflict)
                # Before the answer: the next call may follow at once.
                self._is_away = isinstance(error, StorageUnavailable) and not no_outage
                answer.set_exception(error)
                if self._is_away:
                    self._sit_out()
                    self._is_away = False
                continue
            late = 2 * (self._monotonic() - begun)
            self._patience = min(max(self._least, late), LONGEST_ANSWER)
            answer.set_result(result)

    def _sit_out(self) -> None:
        """Wait until the store answers, which ends its outage."""
        is_away = False
        while not self._stop.is_set():
            try:
                self._outage.probe()
            except Exception as error:  # other causes (rights, a newer schema) may be repaired, too
                is_away = True
                self._stop.wait(self._outage.breaker.failure(error))
                continue
            if is_away:  # the pump ends an outage that it has reported
                self._outage.breaker.success()
            return


SENTENCE: Final = (
    "Repeated failures when settling kept messages in the dead-letter store, endpoint will be "
    "terminated."
)


@dataclass(frozen=True, kw_only=True)
class DeadLetterQueues:
    """Keep undeliverable messages, each with its class, in the queues of *node*.

    *node* is a stable name of this installation (not a container's). *store* is a database URL,
    or a DeadLetterStore; None is the database of the queues. *dead_letter* and *journal* are the
    defaults of sent messages, *dead_letter_when_expiring* the default of messages with a time to
    be received; *all_transactional* is MSMQ 1.0's rule. *journaled* are queues of this endpoint
    that keep a copy of each received message. *takes* is the kind of messages that this endpoint's
    queue accepts: other messages become dead letters. *collect_from* is a queue
    (``<node>.deadletter``, say) to which RabbitMQ's policies send messages that the broker gives
    up: the endpoint creates it, and moves its messages to the dead-letter queue, with the broker's
    reason as the class. Quotas are bytes. *discard_expired* and *clock_allowance* are the rules for
    messages received too late. *sweep_interval* is the time between searches for kept messages
    without an acknowledgement.
    """

    priority: int = field(default=FIRST, init=False, repr=False)

    node: str
    store: str | DeadLetterStore | None = None
    dead_letter: bool = True
    dead_letter_when_expiring: bool = False
    journal: bool = False
    all_transactional: bool = False
    journaled: tuple[str, ...] = ()
    takes: AcceptedMessages | str = AcceptedMessages.BOTH
    collect_from: str | None = None
    dead_letter_quota: int | None = None
    journal_quota: int | None = None
    node_quota: int | None = NODE_BYTES
    discard_expired: bool = True
    clock_allowance: timedelta = timedelta(0)
    sweep_interval: timedelta = timedelta(minutes=1)
    time_to_wait_before_critical_error: timedelta = timedelta(minutes=2)
    name: str = field(default="dead-letter-queues", init=False)

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        checked_node(self.node)
        names_of(self.journaled)
        self.quotas  # noqa: B018 - it is checked where it is made
        self.expiry  # noqa: B018 - likewise
        if self.takes not in tuple(AcceptedMessages):
            known = ", ".join(AcceptedMessages)
            raise ConfigurationError(f"takes must be {known}, got {self.takes!r}")
        if not timedelta(0) < (given := self.sweep_interval) <= timedelta(days=365):
            raise ConfigurationError(f"sweep_interval is over 0, up to 365 days, got {given}")
        if self.time_to_wait_before_critical_error < timedelta(0):
            raise ConfigurationError(
                "time_to_wait_before_critical_error must not be negative, got "
                f"{self.time_to_wait_before_critical_error}"
            )

    @property
    def quotas(self) -> Quotas:
        """The quotas of the node."""
        return Quotas(
            dead_letters=self.dead_letter_quota, journal=self.journal_quota, node=self.node_quota
        )

    @property
    def rules(self) -> JournalingRules:
        """The defaults of sent messages."""
        return JournalingRules(
            dead_letter=self.dead_letter,
            dead_letter_when_expiring=self.dead_letter_when_expiring,
            journal=self.journal,
            all_transactional=self.all_transactional,
        )

    @property
    def expiry(self) -> Expiry:
        """The rule for messages that are received too late."""
        return Expiry(discard=self.discard_expired, allowance=self.clock_allowance)

    def prerequisites(self, settings: FeatureSettings) -> Iterable[Prerequisite]:
        """Return the conditions of the feature."""
        yield Prerequisite(
            self.store is not None or settings.transport.database is not None,
            "The queues are in no database, so the dead letters need one of their own. Say "
            "DeadLetterQueues(node=..., store='postgresql+psycopg://...').",
        )
        yield Prerequisite(
            self.collect_from is None or settings.transport.capabilities.name == "amqp",
            "collect_from is for RabbitMQ: no other transport gives up messages by itself. Leave "
            "it out.",
        )
        yield Prerequisite(
            set(self.journaled) <= {settings.name},
            f"journaled names queues of this endpoint only ({settings.name!r}), got "
            f"{', '.join(map(repr, self.journaled))}.",
        )

    def opened(self, settings: FeatureSettings) -> QueueManager:
        """Return the queue manager of the node, which connects when it is used."""
        store = self.store
        if not isinstance(store, DeadLetterStore):
            database = settings.transport.database
            if store is None and database is None:
                raise ConfigurationError(
                    "the dead letters need a store; the queues have no database"
                )
            where = store or (as_database(database) if database is not None else "")
            store = DeadLetterStore(where, clock=settings.clock)
        return QueueManager(store=store, node=self.node, quotas=self.quotas)

    def set_up(self, context: FeatureContext) -> FeatureParts:
        """Return the policies of dead letters, the satellites of control messages and the sweep."""
        settings = context.settings
        manager = replace(self.opened(settings), telemetry=context.telemetry)
        queue = settings.transport.database
        joins = queue is not None and one_connection_serves(
            as_database(queue).url, manager.store.database.url
        )
        dead_letters = DeadLetterService(
            manager=manager,
            endpoint=settings.name,
            rules=self.rules,
            clock=context.clock,
            telemetry=context.telemetry,
            limits=settings.limits,
            joins=joins,
            journaled=frozenset(self.journaled),
            takes=AcceptedMessages(self.takes),
            may_end=self._may_end(context.transport),
        )
        outage = self._outage(context, manager)
        dispatches, writers = StoreCalls(outage, ANSWER), StoreCalls(outage, LONGEST_ANSWER)
        forwarded, written = (
            replace(dead_letters, manager=replace(manager, calls=calls.make))
            for calls in (dispatches, writers)
        )
        blocks_writers = not joins and queue is not None and queue.is_sqlite
        received, probed = dead_letters, outage
        if blocks_writers and context.mode in ATOMIC:  # else a slow store is no outage
            received, probed = written, replace(outage, probe=partial(writers.make, outage.probe))
        tasks: list[Task] = [self._sweeper(context, manager, written)]
        tasks += [] if joins else [dispatches]
        tasks += [writers] if blocks_writers else []
        return FeatureParts(
            dead_letters=dead_letters,
            delivery=DeliveryPolicies(
                sending=DeadLetterSending(dead_letters),
                handling=DeadLetterHandling(received, probed),
                forwarding=DeadLetterForwarding(forwarded),
                failures=DeadLetterFailures(received, context.telemetry, probed),
            ),
            databases=(manager.store.database,),
            expiry=self.expiry,
            installed=(InstalledNode(manager),),
            tasks=tuple(tasks),
            dead_messages_to=self.collect_from,
            satellites=self._satellites(context, manager, outage, joins),
        )

    def _may_end(self, transport: Transport) -> Callable[[str, bool], bool]:
        """Return a function that says whether a message may expire in its queue on *transport*."""
        if self.collect_from is not None:
            return ExpiringQueues(transport, self.collect_from)
        sweeps = isinstance(transport, ExpiresMessages)
        return lambda _queue, _wants_dead_letter: sweeps

    def _sweeper(
        self, context: FeatureContext, manager: QueueManager, dead_letters: DeadLetterService
    ) -> Sweeper:
        expire: ExpirySweep | None = None
        if self.discard_expired and isinstance(context.transport, ExpiresMessages):
            expire = ExpirySweep(
                transport=context.transport,
                queues=context.transport,
                dead_letters=dead_letters,
                error_queue=context.settings.error_queue,
                clock=context.clock,
                telemetry=context.telemetry,
            )
        return Sweeper(manager, self.sweep_interval, context.telemetry, expire)

    def _outage(self, context: FeatureContext, manager: QueueManager) -> Outage:
        wait, database = self.time_to_wait_before_critical_error, manager.store.database
        breaker = context.breakers.over_outages(
            "DeadLetterStore", wait, SENTENCE, context.breakers.outage_in(database)
        )
        context.breakers.watch_silence(database, breaker, wait)
        return Outage(breaker=breaker, probe=database.ping)

    def _satellites(
        self, context: FeatureContext, manager: QueueManager, storage: Outage, joins: bool
    ) -> tuple[Satellite, ...]:
        if context.settings.send_only:
            return ()
        name, telemetry = context.settings.name, context.telemetry
        consumed = partial(Consumption, batch=50, storage=storage)
        acknowledgements = consumed(
            name="Acknowledgement Processor",
            queue=name + ACKNOWLEDGEMENTS,
            step=SettleStoredCopies(manager=manager, telemetry=telemetry, joins=joins),
        )
        if self.collect_from is None:
            return (Satellite(consumption=acknowledgements),)
        limits = context.settings.limits
        collected = consumed(
            name="Dead Letter Collector",
            queue=self.collect_from,
            step=CollectDead(manager=manager, limits=limits, telemetry=telemetry, joins=joins),
        )
        return Satellite(consumption=collected), Satellite(consumption=acknowledgements)


@dataclass(frozen=True, slots=True)
class InstalledNode:
    """The tables, and the node's queues in them."""

    manager: QueueManager

    def install(self) -> None:
        """Create missing tables and the node; idempotent, and safe to run concurrently."""
        self.manager.store.install()
        self.manager.store.add_node(self.manager.node, str(uuid.uuid4()))

    def ddl(self) -> str:
        """Return the statements that create the tables and add the node."""
        store = self.manager.store
        return f"{store.ddl()}\n{store.node_ddl(self.manager.node, str(uuid.uuid4()))};\n"

    def check(self) -> None:
        """Raise SchemaMissing if the tables or the node are missing."""
        self.manager.store.check()
        if self.manager.store.guid_of(self.manager.node) is None:
            raise SchemaMissing(
                f"node {self.manager.node!r} has no dead-letter queues in "
                f"{self.manager.store.database.describe()}; run `timeoutmgr install`"
            )

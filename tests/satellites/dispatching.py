"""The dispatcher's step on a harness of its own, with a store and a broker that a test can see."""

from __future__ import annotations

from tests.support.clock import FakeClock
from tests.support.makers import a_received, a_timeout
from tests.support.ports import FakeReceiver, FakeTransport
from tests.support.store import ScriptedStore
from timeoutmgr.contracts import Timeout, TimeoutState, TransactionMode
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import Limits
from timeoutmgr.satellites.control import chunk_message
from timeoutmgr.satellites.timeout_manager.dispatcher import DispatchTimeouts
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.work import Work

RECEIVE = TransactionMode.RECEIVE_ONLY
ATOMIC = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE
SCOPE = TransactionMode.TRANSACTION_SCOPE


class DispatchHarness:
    """The step over a real store and a simulated broker, in one mode."""

    def __init__(self, mode: TransactionMode = RECEIVE) -> None:
        self.mode = mode
        self.clock = FakeClock()
        self.store = ScriptedStore(self.clock)
        self.transport = FakeTransport("billing", "shipping")
        self.telemetry = Counters()
        self.step = DispatchTimeouts(
            store=self.store,
            error_queue="error",
            limits=Limits(),
            clock=self.clock,
            telemetry=self.telemetry,
        )

    def put(self, *timeouts: Timeout) -> None:
        self.store.store_many(timeouts)

    def order(self, *control: Message) -> None:
        session = self.transport.session()
        with Work(session, FakeReceiver(self.transport, "control"), self.mode) as work:
            self.step([a_received(message) for message in control], work)

    def order_due(self) -> None:
        chunk = self.store.claim(self.clock.now(), 100, "me")
        self.order(chunk_message(chunk.token, chunk.keys, "c1"))

    def state(self, message_id: str = "m1") -> TimeoutState | None:
        found = self.store.find(a_timeout(message_id).id)
        return None if found is None else found[0]

    def attempts(self) -> int:
        [stored] = [row.timeout for row in self.store._in.rows.values()]
        return stored.attempts

    def counted(self, event: str) -> float:
        return self.telemetry.snapshot().get(event, 0)

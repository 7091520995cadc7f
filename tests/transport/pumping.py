"""A pump over a simulated queue, whose step, storage and broker fail as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tests.support.clock import FakeClock
from tests.support.makers import Pauses, a_breaker, a_message
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.resilience.recovery import SATELLITE_POLICY, RecoverabilitySettings
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.delivery_policy import Outage
from timeoutmgr.transport.pump import Consumption, Pump, PumpSurroundings
from timeoutmgr.transport.work import Work, require_confirmed

NONE = TransactionMode.NONE
RECEIVE = TransactionMode.RECEIVE_ONLY
SCOPE = TransactionMode.TRANSACTION_SCOPE
SAFE = [RECEIVE, TransactionMode.SENDS_ATOMIC_WITH_RECEIVE, SCOPE]
AWAY = StorageUnavailable("storage is away")
BROKER_AWAY = TransportUnavailable("broker is gone")


def send_all(work: Work, outgoing: Sequence[Outgoing]) -> None:
    """Send *outgoing* with the receive, as a step does; raise if a message is not accepted."""
    require_confirmed(outgoing, work.try_send(outgoing))


class Mill:
    """A pump over a simulated queue, whose step fails as *failures* say, by message id."""

    def __init__(
        self,
        mode: TransactionMode = RECEIVE,
        batch: int = 1,
        policy: RecoverabilitySettings = SATELLITE_POLICY,
        retry_later: Callable[[Message], Outgoing] | None = None,
        storage: bool = True,
        wait: float = 120.0,
        is_paced: bool = False,
        split: Callable[[Sequence[Received]], Iterable[Sequence[Received]]] = lambda batch: [batch],
    ) -> None:
        self.clock = FakeClock()
        self.telemetry = Counters()
        self.transport = FakeTransport("billing", "sales.Timeouts")
        self.triggered: list[BaseException] = []
        self.storage = a_breaker(self.clock, wait, self.triggered.append, "storage")
        self.broker = a_breaker(self.clock, wait, self.triggered.append, "broker")
        self.stop = Pauses()
        self.before_probe: Callable[[], None] = lambda: None
        self.failures: dict[str, list[Exception]] = {}
        self.batches: list[list[str]] = []
        self.probed: list[Exception | None] = []
        self.probes = 0
        self.before_step: Callable[[Sequence[Received], Work], None] = lambda batch, work: None
        self.transport.on_idle = self.stop.set
        self.pump = Pump(
            Consumption(
                name="Mill",
                queue="sales",
                step=self.step,
                batch=batch,
                is_paced=is_paced,
                split=split,
                policy=policy,
                storage=Outage(breaker=self.storage, probe=self.probe) if storage else None,
                retry_later=retry_later,
            ),
            PumpSurroundings(
                endpoint="sales",
                transport=self.transport,
                mode=mode,
                error_queue="error",
                clock=self.clock,
                telemetry=self.telemetry,
                broker=self.broker,
                stop=self.stop,
            ),
        )
        self.session = self.transport.session()
        self.receiver = FakeReceiver(self.transport, "sales")

    def step(self, batch: Sequence[Received], work: Work) -> None:
        self.batches.append([received.message.id for received in batch])
        self.transport.journal.append("step")
        self.before_step(batch, work)
        for received in batch:
            failures = self.failures.get(received.message.id)
            if failures:
                raise failures.pop(0) if len(failures) > 1 else failures[0]

    def probe(self) -> None:
        self.probes += 1
        self.before_probe()
        if self.probed:
            error = self.probed.pop(0)
            if error is not None:
                raise error

    def put(self, *ids: str, **given: str) -> None:
        self.transport.put("sales", *(a_message(one, **given) for one in ids))

    def always_fails(self, message_id: str, error: Exception | None = None) -> None:
        self.failures[message_id] = [error or RuntimeError(f"{message_id} is poison")]

    def pump_once(self) -> int:
        return self.pump.pump_once(self.session, self.receiver, 0.0)

    @property
    def held(self) -> list[str]:
        return [received.message.id for received in self.receiver.held]

    @property
    def errors(self) -> list[str]:
        return self.transport.ids("error")

"""A transport in memory whose answers are scripted: the faults that no broker makes on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from timeoutmgr.contracts import (
    SendResult,
    Transaction,
    TransactionMode,
    TransportCapabilities,
)
from timeoutmgr.errors import LeaseLost, QueueMissing
from timeoutmgr.message.message import Message, Outgoing, Received


@dataclass(frozen=True)
class Sent:
    """A message that the simulated broker took."""

    destination: str
    message: Message


class FakeTransaction:
    """Sends and acknowledgements that wait for a commit."""

    def __init__(self) -> None:
        self.on_commit: list[Callable[[], None]] = []


class FakeTransport:
    """Queues in memory. *answers* are given, or raised, by the next sends to a destination.

    *starts* says that its sessions can send without waiting for the answers.
    """

    def __init__(self, *queues: str, durable: bool = True, starts: bool = False) -> None:
        self.queues: dict[str, deque[Received]] = {
            name: deque() for name in ("sales", "error", *queues)
        }
        self.answers: dict[str, deque[SendResult | Exception]] = {}
        self.journal: list[str] = []
        self.starts = starts
        self.open_sessions = 0
        self.opened_sessions = 0
        self.on_idle: Callable[[], None] = lambda: None
        self.faults: dict[str, deque[Exception]] = {}
        self.capabilities = TransportCapabilities(
            name="simulated", modes=frozenset(TransactionMode), durable=durable
        )
        self.database = None

    def script(self, destination: str, *answers: SendResult | Exception) -> None:
        self.answers.setdefault(destination, deque()).extend(answers)

    def fail(self, method: str, *errors: Exception) -> None:
        self.faults.setdefault(method, deque()).extend(errors)

    def put(self, queue: str, *messages: Message, defect: str | None = None) -> None:
        self.queues[queue].extend(
            Received(message=message, queue=queue, tag=object(), defect=defect)
            for message in messages
        )

    def ids(self, queue: str) -> list[str]:
        return [received.message.id for received in self.queues[queue]]

    def messages(self, queue: str) -> list[Message]:
        return [received.message for received in self.queues[queue]]

    def session(self) -> FakeSession:
        self.open_sessions += 1
        self.opened_sessions += 1
        return StartingSession(self) if self.starts else FakeSession(self)

    def describe(self) -> str:
        return "simulated://"

    def install(self) -> None:
        self.journal.append("install")

    def ddl(self) -> str:
        return ""

    def check(self) -> None:
        return

    def close(self) -> None:
        return

    def called(self, method: str) -> None:
        faults = self.faults.get(method)
        if faults:
            raise faults.popleft()

    def answer(self, outgoing: Outgoing) -> SendResult:
        scripted = self.answers.get(outgoing.destination)
        if scripted:
            answer = scripted.popleft()
            if isinstance(answer, Exception):
                raise answer
            return answer
        known = outgoing.destination in self.queues
        return SendResult.CONFIRMED if known else SendResult.UNROUTABLE


class FakeSession:
    """A session of the simulated transport."""

    def __init__(self, transport: FakeTransport) -> None:
        self._transport = transport
        self.closed = False

    def create_queues(self, names: Sequence[str], *, error_queue: str | None = None) -> None:
        for name in names:
            self._transport.queues.setdefault(name, deque())

    def missing_queues(self, names: Collection[str]) -> list[str]:
        self._transport.called("missing_queues")
        self._transport.journal.append(f"look {','.join(names)}")
        return [name for name in names if name not in self._transport.queues]

    def delete_queues(self, names: Collection[str]) -> None:
        for name in names:
            self._transport.queues.pop(name, None)

    def count(self, queue: str) -> int:
        return len(self._transport.queues[queue])

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        self._transport.called("send")
        results = []
        for each in outgoing:
            result = self._transport.answer(each)
            results.append(result)
            joined = "send" if transaction is None else "send in transaction"
            self._transport.journal.append(f"{joined} {each.destination} {result.value}")
            if result is SendResult.CONFIRMED:
                self._later(transaction, self._putting(each))
        return results

    def receiver(self, queue: str, *, prefetch: int) -> FakeReceiver:
        self._transport.called("receiver")
        if queue not in self._transport.queues:
            raise QueueMissing([queue], "create it")
        return FakeReceiver(self._transport, queue)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._transport.journal.append("begin")
        open_ = FakeTransaction()
        try:
            yield cast(Transaction, open_)
            self._transport.called("commit")
        except BaseException:
            self._transport.journal.append("rollback")
            raise
        for action in open_.on_commit:
            action()
        self._transport.journal.append("commit")

    def ping(self) -> None:
        self._transport.called("ping")

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._transport.open_sessions -= 1

    def _putting(self, each: Outgoing) -> Callable[[], None]:
        # UNROUTABLE is answered for missing queues; a script may confirm them all the same.
        return lambda: self._transport.put(each.destination, each.message)

    @staticmethod
    def _later(transaction: Transaction | None, action: Callable[[], None]) -> None:
        if transaction is None:
            action()
        else:
            cast(FakeTransaction, transaction).on_commit.append(action)


@dataclass(frozen=True)
class FakeSending:
    """Messages that are sent, and whose answers are to be asked for."""

    journal: list[str]
    answers: Sequence[SendResult]

    def results(self) -> list[SendResult]:
        self.journal.append(f"asked for {len(self.answers)}")
        return list(self.answers)


class StartingSession(FakeSession):
    """A session that sends without waiting for the answers."""

    def start_sending(self, outgoing: Sequence[Outgoing]) -> FakeSending:
        self._transport.called("start_sending")
        answers = self.send(outgoing)
        self._transport.journal.append(f"started {len(answers)}")
        return FakeSending(self._transport.journal, answers)


class FakeReceiver:
    """A consumer of the simulated transport; it leases messages until it settles them."""

    def __init__(self, transport: FakeTransport, queue: str) -> None:
        self._transport = transport
        self._queue = queue
        self.held: list[Received] = []
        self.lost: set[str] = set()

    def receive(self, limit: int, wait: float) -> list[Received]:
        self._transport.called("receive")
        waiting = self._transport.queues[self._queue]
        if not waiting:
            self._transport.on_idle()
        batch = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        self.held += batch
        return batch

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        self._transport.called("ack")
        for each in received:
            if each.message.id in self.lost or not any(each is one for one in self.held):
                raise LeaseLost(each.message.id)
            joined = "ack" if transaction is None else "ack in transaction"
            self._transport.journal.append(f"{joined} {each.message.id}")
            FakeSession._later(transaction, self._forgetting(each))

    def release(self, received: Sequence[Received]) -> None:
        # A lost message belongs to another receiver, a settled message is removed.
        back = [
            each
            for each in received
            if each.message.id not in self.lost and any(each is one for one in self.held)
        ]
        for each in received:
            self._forgetting(each)()
        self._transport.queues[self._queue].extendleft(reversed(back))

    def interrupt(self) -> None:
        self._transport.journal.append("interrupt")

    def close(self) -> None:
        self.release(list(self.held))

    def _forgetting(self, each: Received) -> Callable[[], None]:
        def forget() -> None:
            self.held = [one for one in self.held if one is not each]

        return forget

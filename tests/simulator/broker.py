"""The broker's disk: queues, unacknowledged deliveries, and messages still on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from timeoutmgr.message.message import Message, Outgoing, Received

from .ledger import LockedChunk
from .process import Process
from .timeline import SECOND, Actor

if TYPE_CHECKING:
    from .world import World

STORE: Final = "sales.Timeouts"
CONTROL: Final = "sales.TimeoutsDispatcher"
ERROR: Final = "error"
DESTINATIONS: Final = ("billing", "shipping", "letters")


class Unacknowledged(NamedTuple):
    """A delivery in the hands of a consumer."""

    received: Received
    process: Process
    channel: object


class Broker:
    """Queues of the endpoint; an arrival at a destination or the error queue is judged at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.away = False
        self.destinations = set(DESTINATIONS)
        self.queues: dict[str, deque[Received]] = {STORE: deque(), CONTROL: deque()}
        self.unacknowledged: dict[int, Unacknowledged] = {}
        self.on_its_way = 0
        self.consumers: dict[str, list[Actor]] = {STORE: [], CONTROL: []}
        self._tags = 0

    def has(self, queue: str) -> bool:
        return queue in self.queues or queue == ERROR or queue in self.destinations

    def accept(self, outgoing: Outgoing, chunk: LockedChunk | None) -> None:
        """Take responsibility for a message; it shows up at once, or in a while."""
        if outgoing.destination in self.queues and self._world.faults.fires("broker.delayed"):
            self.later(2 + 30 * self._world.random.random(), lambda: self._put(outgoing, chunk))
        else:
            self._put(outgoing, chunk)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Let a message arrive in *seconds*, even if its sender dies before."""
        self.on_its_way += 1

        def arrive() -> None:
            self.on_its_way -= 1
            action()

        self._world.timeline.happens(int(seconds * SECOND), arrive)

    def land(self, outgoing: Outgoing, chunk: LockedChunk | None) -> None:
        """Take a late message, if its queue is still there."""
        if self.has(outgoing.destination):
            self._put(outgoing, chunk)

    def _put(self, outgoing: Outgoing, chunk: LockedChunk | None) -> None:
        world, queue, message = self._world, outgoing.destination, outgoing.message
        if queue in self.destinations:
            world.note(queue, "takes", message.id)
            world.ledger.delivers(message, chunk, queue, world.timeline.now)
        elif queue == ERROR:
            world.note(queue, "takes", message.id)
            world.ledger.fails(message, chunk, world.timeline.now)
        else:
            self._enqueue(queue, message)

    def _enqueue(self, queue: str, message: Message) -> None:
        self._tags += 1
        received = Received(message=message, queue=queue, tag=self._tags)
        waiting = self.queues[queue]
        if waiting and self._world.faults.fires("broker.reordered"):
            waiting.insert(int(self._world.random.random() * len(waiting)), received)
        else:
            waiting.append(received)
        self._wake(queue)

    def deliver(self, queue: str, limit: int, process: Process, channel: object) -> list[Received]:
        waiting = self.queues[queue]
        batch = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        for received in batch:
            self.unacknowledged[_tag(received)] = Unacknowledged(received, process, channel)
        return batch

    def acknowledge(self, batch: list[Received], channel: object) -> bool:
        """Settle *batch* for good; false where the channel does not have all of it any more."""
        tags = [_tag(received) for received in batch]
        held = [self.unacknowledged.get(tag) for tag in tags]
        if any(one is None or one.channel is not channel for one in held):
            return False
        for tag in tags:
            del self.unacknowledged[tag]
        return True

    def give_back(self, channel: object) -> list[Received]:
        """Put the unacknowledged messages of *channel* back to the heads of their queues."""
        return self._back([one for one in self._held() if one.channel is channel])

    def give_back_all_of(self, process: Process) -> None:
        self._back([one for one in self._held() if one.process is process])

    def _held(self) -> list[Unacknowledged]:
        return list(self.unacknowledged.values())

    def _back(self, lost: list[Unacknowledged]) -> list[Received]:
        for received, _, _ in reversed(lost):
            del self.unacknowledged[_tag(received)]
            self.queues[received.queue].appendleft(received)
            self._wake(received.queue)
        return [one.received for one in lost]

    def _wake(self, queue: str) -> None:
        now = self._world.timeline.now
        for consumer in self.consumers[queue]:
            self._world.timeline.hurry(now + 1_000, consumer)


def _tag(received: Received) -> int:
    assert isinstance(received.tag, int)
    return received.tag

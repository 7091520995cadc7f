"""Clients, which send, send again, cancel, reschedule, clear sagas and order dispatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, from_micros, to_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import clear_timeouts, timeout_id, to_timeout_manager

from .broker import CONTROL, DESTINATIONS, STORE
from .ledger import MessageRecord
from .node import Node
from .process import Calls
from .timeline import SECOND, Actor, Killed
from .transport import SimSession
from .world import World

SPAN: Final = 200 * SECOND
"""How far ahead due times are."""
BURST: Final = 90


class Client:
    """A user's code on one node: it sends in bursts and changes its mind about some of them."""

    def __init__(self, world: World, node: Node, timeouts: int, rushes: Sequence[Micros]) -> None:
        self.actor = Actor(f"client of {node.name}", self._step)
        self.done = False
        self._world = world
        self._node = node
        self._left = timeouts
        self._sent: list[MessageRecord] = []
        self._again: list[tuple[MessageRecord, Outgoing]] = []
        self._rushes = rushes
        self._number = 0
        self._calls = Calls(world, node.process, "client")
        self._turns_after = 10

    def _step(self) -> Micros | None:
        random = self._world.random
        if not self._node.process.dead:
            self._calls = Calls(self._world, self._node.process, "client")
            try:
                self._act()
            except Killed:
                self._number += 1  # its earlier messages stay as they are; it goes on later
        if not self._left and not self._again:
            self._turns_after -= 1
            if not self._turns_after:
                self.done = True
                return None
        return int((0.5 + 12 * random.random() ** 2) * SECOND)

    def _act(self) -> None:
        random = self._world.random
        burst, self._again = self._again, []
        amount = min(self._left, 1 + random.randrange(BURST))
        self._left -= amount
        burst += [self._new() for _ in range(amount)]
        if self._world.faults.fires("sender.twice"):
            burst += burst[: 1 + random.randrange(5)]
        if burst:
            self._send(burst)
        for _ in range(random.randrange(8) if self._sent else 0):
            self._change(self._sent[int(len(self._sent) * random.random())])
        if self._sent and random.random() < 0.1:
            self._order(self._sent[int(len(self._sent) * random.random())])
        if self._sent and random.random() < 0.05:
            self._clear()

    def _new(self) -> tuple[MessageRecord, Outgoing]:
        random, now = self._world.random.random, self._node.clock.now()
        self._number += 1
        name = f"{self._node.name}-m{self._number}"
        due = self._due(random(), now)
        given = {headers.MESSAGE_ID: name, headers.TIME_SENT: to_wire(now)}
        if random() < 0.2:
            given[headers.SAGA_ID] = f"{self._node.name}-saga{self._number % 7}"
        destination = DESTINATIONS[int(random() * len(DESTINATIONS))]
        message = Message(id=name, headers=given, body=b'"' + name.encode() + b'"')
        record = MessageRecord(name, timeout_id("sales", name), destination, message.body, due)
        record.saga, record.created = given.get(headers.SAGA_ID, ""), now
        self._world.ledger.sends(record)
        return record, to_timeout_manager(Outgoing(destination, message), due, STORE)

    def _due(self, chance: float, now: Micros) -> Micros:
        if chance < 0.85:
            return self._rushes[int(chance * 100) % len(self._rushes)]
        if chance < 0.92:
            return now - int((chance - 0.85) * 100 * SECOND)
        return now + int((chance - 0.92) / 0.08 * SPAN)

    def _send(self, burst: Sequence[tuple[MessageRecord, Outgoing]]) -> None:
        results = self._sends([outgoing for _, outgoing in burst])
        self._sent += [record for record, _ in burst]
        for (record, outgoing), result in zip(burst, results, strict=True):
            if result is SendResult.CONFIRMED:
                record.accepted = True
            elif result is SendResult.UNKNOWN and self._world.random.random() < 0.7:
                self._again.append((record, outgoing))

    def _sends(self, outgoing: Sequence[Outgoing]) -> Sequence[SendResult]:
        self._calls.note("sends", *(one.message.id for one in outgoing))
        try:
            return SimSession(self._world, self._calls).send(outgoing)
        except TransportUnavailable:
            return [SendResult.UNKNOWN] * len(outgoing)

    def _change(self, record: MessageRecord) -> None:
        if self._world.random.random() < 0.6:
            self._cancel(record)
        else:
            self._reschedule(record)

    def _cancel(self, record: MessageRecord) -> None:
        ledger = self._world.ledger
        answer, asked = None, ledger.step
        try:
            answer = self._node.timeouts.cancel(record.timeout_id)
        except StorageUnavailable:
            pass
        finally:
            self._calls.note(f"cancel: {answer}", record.message_id)
            ledger.cancels(record, answer, asked)

    def _reschedule(self, record: MessageRecord) -> None:
        ledger, random = self._world.ledger, self._world.random.random
        answer, asked, before = None, ledger.step, record.due
        due = self._world.timeline.now + int(random() * SPAN / 2)
        record.due = min(due, before)
        try:
            answer = self._node.timeouts.reschedule(record.timeout_id, deliver_at=from_micros(due))
        except StorageUnavailable:
            pass
        finally:
            self._calls.note(f"reschedule to {due}: {answer}", record.message_id)
            ledger.changes(record, due, answer, asked, before)

    def _order(self, record: MessageRecord) -> None:
        """Order one dispatch in NServiceBus' form."""
        self._number += 1
        name = f"{self._node.name}-order{self._number}"
        self._sends([Outgoing(CONTROL, Message(id=name, headers=_order_of(record)))])

    def _clear(self) -> None:
        now = self._node.clock.now()
        self._number += 1
        saga = f"{self._node.name}-saga{self._number % 7}"
        for record in self._sent:
            record.may_vanish |= record.saga == saga and record.created <= now
        self._sends([clear_timeouts(saga, STORE, f"{self._node.name}-clear{self._number}", now)])


def _order_of(record: MessageRecord) -> dict[str, str]:
    return {headers.TIMEOUT_ID: record.timeout_id}

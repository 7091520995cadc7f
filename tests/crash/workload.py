"""The workload while a process dies: some of each kind of an endpoint's work."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from amqp import Message as Prepared

from tests.crash.cases import FENCED, RABBITMQ
from tests.crash.site import Site
from timeoutmgr.contracts import Timeout
from timeoutmgr.deadletter import delivery_headers as marks
from timeoutmgr.deadletter.acknowledgements import acknowledgement
from timeoutmgr.deadletter.delivery_headers import DeliveryHeaders
from timeoutmgr.deadletter.stored_copy import DeliveryEnd
from timeoutmgr.message import headers
from timeoutmgr.message.foreign import QueueDeclaration, Route
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.labels import label_headers
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import (
    DISPATCHER,
    clear_timeouts,
    timeout_id,
    to_delayed_store,
    to_timeout_manager,
)
from timeoutmgr.transport.foreign import foreign_from_kombu

_SOON: Final = 300_000
_HOUR: Final = 3_600_000_000
_LARGE: Final = b'"' + b"x" * 40_000 + b'"'
"""Three of these do not fit into one burst to the broker."""


@dataclass(frozen=True, slots=True)
class Due:
    """A message that must arrive, and from when on it may."""

    message: Message
    earliest: Micros
    failed_queue: str | None = None
    """The queue in which it fails, if it must arrive in the error queue."""
    steps: int = 1
    """How many steps on its way one crash can interrupt at once, and so have done twice."""


@dataclass(slots=True)
class Workload:
    """The messages that are sent while one process runs, and the expected results."""

    site: Site
    number: int
    point: str
    target: dict[str, Due] = field(default_factory=dict)
    errors: dict[str, Due] = field(default_factory=dict)
    beside: dict[str, Due] = field(default_factory=dict)
    """The messages that must arrive at the broker beside the database."""
    dead: set[str] = field(default_factory=set)
    """Ids of messages that must be in the dead-letter queue."""
    is_cancelled_early: bool = False
    """Whether a cancel went before the messages that are to be dropped when they arrive."""
    living: list[str] = field(default_factory=list)
    """Claims that the test itself holds; to be released at the end."""

    def seed(self) -> None:
        """Leave the state behind that a killed process leaves."""
        site = self.site
        if site.pair.delayed:
            return
        if site.pair is RABBITMQ:
            # First: a claim also ends the claims of dead owners.
            self._claim_for_single_orders()
        with closing(site.persistence()) as dead:
            store = site.store(dead)
            now = store.now()
            stored = [self._stored("dead", n, now) for n in range(2)]
            store.store_many(stored)
            for n in range(2):
                store.cancel(self._timeout_id("doomed", n))
            self.is_cancelled_early = True
            for owner in ("one", "two"):
                store.claim(now, 1, owner)
        if site.pair is RABBITMQ:
            return
        first = [self._timeout("leased", 0, site.clock.now()), self._own("Flaky", "leased", {})]
        site.send(first)
        dead_transport = site.transport()
        with closing(dead_transport.session()) as session:
            for outgoing in first:
                # Not closed: its owner's life ends below, with the leases in its hands.
                session.receiver(outgoing.destination, prefetch=1).receive(1, 1.0)
        dead_transport.close()

    def send(self) -> None:
        """Send all of it."""
        site, now = self.site, self.site.clock.now()
        soon = now + _SOON
        address = site.address
        if site.pair.delayed:
            self._send_delayed(now, soon)
            return
        far = [self._timeout("moved", n, now + _HOUR, arrives=soon) for n in range(2)]
        moves = [
            self._own("Move", f"move{n}", {"id": self._timeout_id("moved", n), "due": soon})
            for n in range(2)
        ]
        pending = [self._timeout("soon", n, soon, body=_LARGE) for n in range(6)]
        again = [one for n in range(4) for one in (pending[n], self._timeout("new", n, soon))]
        sagas = [
            one
            for n in range(2)
            for one in (
                self._timeout("saga", n, now + _HOUR, saga=self._id("saga", n), arrives=None),
                clear_timeouts(
                    self._id("saga", n), address, self._id("clear", n), self.site.clock.now() + 1
                ),
            )
        ]
        site.send(
            [
                *far,
                *(self._timeout("now", n, now, body=_LARGE) for n in range(6)),
                *pending,
                *(self._missing(n, soon) for n in range(2)),
                *sagas,
                *again,
                *(self._doomed(n, soon) for n in range(2)),
                *(one for n in range(2) for one in self._replaced(n, now, soon)),
                *(one for n in range(2) for one in self._conflict(n, soon)),
                *(self._malformed(n) for n in range(2)),
                *moves,
                *(self._foreign(n, soon) for n in range(4)),
                *self._labelled(now),
                *(self._own("Flaky", f"flaky{n}", {}) for n in range(2)),
                *self._of_dead_letters(soon),
                *self._scratch(),
                *self._single_orders(),
            ]
        )

    def _foreign(self, n: int, due: Micros) -> Outgoing:
        """Return a message of another program, with a label, that is due soon."""
        message_id, queue = self._id("foreign", n), self.site.tasks
        beside = self.site.pair.destinations
        kept = {"message_id": message_id, "priority": 3}
        own = {headers.MESSAGE_ID: message_id, "retries": n, "eta": None}
        prepared: Any = {"headers": own, "properties": kept, "body": "task"}
        if "rabbitmq" in (beside, self.site.pair.queue):
            prepared = Prepared("task", application_headers=own, **kept)
        route = Route("", queue, (QueueDeclaration(queue),))
        foreign = foreign_from_kombu(prepared, route)
        carried = {**foreign.as_headers(), **label_headers({"task": "crash"})}
        message = self._message("foreign", n, foreign.body, None)
        message = replace(message, headers={**message.headers, **carried})
        (self.beside if beside else self.target)[message_id] = Due(message, due)
        return self._routed(route.destination, message, due)

    def _labelled(self, now: Micros) -> list[Outgoing]:
        """Return timeouts that are far ahead, and orders to cancel them by their labels."""
        orders = []
        for n in range(2):
            far = self._timeout("labelled", n, now + _HOUR, arrives=None)
            label = {"cancelled": self._id("label", n)}
            carried = {**far.message.headers, **label_headers(label)}
            orders.append(replace(far, message=replace(far.message, headers=carried)))
            orders.append(self._own("CancelLabel", f"cancel{n}", label))
        return orders

    def _send_delayed(self, now: Micros, soon: Micros) -> None:
        """Send messages for a delayed message store.

        Each is sent once: the store does not remember a sent message, so it would also send a
        second copy.
        """
        pending = [self._timeout("soon", n, soon, body=_LARGE) for n in range(6)]
        self.site.send(
            [
                *(self._timeout("now", n, now, body=_LARGE) for n in range(6)),
                *pending,
                *(self._missing(n, soon) for n in range(2)),
                *(self._missing(n, soon, "poison") for n in range(2)),
                *(self._timeout("new", n, soon) for n in range(4)),
                *(self._malformed(n) for n in range(2)),
                *(self._own("Flaky", f"flaky{n}", {}) for n in range(2)),
                *self._of_dead_letters(soon),
            ]
        )

    def _of_dead_letters(self, soon: Micros) -> list[Outgoing]:
        """Return messages that are rejected, kept until their receipt, or journaled."""
        if not self.site.pair.dead_letters:
            return []
        return [
            *self._to_dead_letter(soon),
            *self._expired(),
            *(self._own("Keep", f"keep{n}", {}) for n in range(2)),
            *(self._own("Kept", "twice", {}) for _ in range(3)),
            *(self._acknowledgement(n) for n in range(2)),
        ]

    def _scratch(self) -> list[Outgoing]:
        if self.point == "leases.renewed":
            return [self._own("Slow", "slow", {})]
        if self.site.pair is RABBITMQ:
            return []
        return [self._own("Scratch", f"scratch{n}", self._id("scratch-queue", n)) for n in range(2)]

    def _claim_for_single_orders(self) -> None:
        """Have timeouts that are due, and that only an order for a single one dispatches."""
        store = self.site.store(self.site.own)
        now = store.now()
        store.store_many([self._stored("single", n, now) for n in range(2)])
        for _ in range(2):
            self.living.append(store.claim(now, 1, "the test").token)

    def _single_orders(self) -> list[Outgoing]:
        """Return orders in NServiceBus' form, which name no claim."""
        if self.site.pair is FENCED or not self.living:
            return []
        return [
            Outgoing(
                self.site.name + DISPATCHER,
                Message(
                    id=self._id("order", n),
                    headers={headers.TIMEOUT_ID: self._timeout_id("single", n)},
                ),
            )
            for n in range(2)
        ]

    def _timeout(
        self,
        kind: str,
        n: int,
        due: Micros,
        *,
        body: bytes = b"1",
        saga: str | None = None,
        arrives: Micros | None = 0,
    ) -> Outgoing:
        message = self._message(kind, n, body, saga)
        if arrives is not None:
            # Without tombstones a copy may come from the row and another from the queue.
            self.target[message.id] = Due(message, arrives or due, steps=1 + self.site.pair.delayed)
        return self._routed(self.site.target, message, due)

    def _routed(self, target: str, message: Message, due: Micros) -> Outgoing:
        route = to_delayed_store if self.site.pair.delayed else to_timeout_manager
        return route(Outgoing(target, message), due, self.site.address)

    def _stored(self, kind: str, n: int, due: Micros) -> Timeout:
        message = self._message(kind, n, b"1", None)
        self.target[message.id] = Due(message, due)
        return Timeout(
            id=self._timeout_id(kind, n), due=due, destination=self.site.target, message=message
        )

    def _doomed(self, n: int, soon: Micros) -> Outgoing:
        """Return a timeout that was cancelled, if there was a store to cancel it in."""
        return self._timeout("doomed", n, soon, arrives=None if self.is_cancelled_early else 0)

    def _replaced(self, n: int, now: Micros, soon: Micros) -> list[Outgoing]:
        """Return a timeout that is far ahead, and its replacement."""
        first = self._timeout("replaced", n, now + _HOUR, body=b"0", arrives=None)
        newer = self._timeout("replaced", n, soon, body=b"1")
        more = {headers.TIME_SENT: to_wire(now + _HOUR), headers.ON_CONFLICT: "replace"}
        message = replace(newer.message, headers={**newer.message.headers, **more})
        return [first, replace(newer, message=message)]

    def _conflict(self, n: int, soon: Micros) -> list[Outgoing]:
        """Return a timeout, and a message with other content under its id.

        That goes to the error queue; where there are dead-letter queues, it leaves a dead letter.
        """
        first = self._timeout("used", n, soon)
        other = self._timeout("used", n, soon, body=b"0", arrives=None)
        if self.site.pair.dead_letters:
            self.dead.add(other.message.id)
        else:
            self.errors[other.message.id] = Due(other.message, 0, self.site.address)
        return [first, other]

    def _missing(self, n: int, due: Micros, kind: str = "missing") -> Outgoing:
        message = self._message(kind, n, _LARGE, None)
        target = f"{self.site.name}-{kind}"
        self.errors[message.id] = Due(message, due, target, steps=1 + self.site.pair.delayed)
        return self._routed(target, message, due)

    def _to_dead_letter(self, due: Micros) -> list[Outgoing]:
        """Return messages that leave dead letters; the rejected messages come twice."""
        missing = [self._message("buried", n, b"1", None) for n in range(2)]
        rejected = [self._own("Reject", f"reject{n}", {}) for n in range(2)]
        asked = {marks.JOURNAL: "1"}
        routed = [
            self._routed(self.site.missing, replace(one, headers={**one.headers, **asked}), due)
            for one in missing
        ]
        marked = [
            Outgoing(
                one.destination, replace(one.message, headers={**one.message.headers, **asked})
            )
            for one in rejected
        ]
        self.dead |= {one.id for one in missing} | {one.message.id for one in rejected}
        return [*routed, *marked, *marked]

    def _expired(self) -> list[Outgoing]:
        """Return messages that end in a queue that nobody reads: two leave dead letters."""
        if self.site.pair.queue == "rabbitmq":
            return []
        queue = f"{self.site.name}-unread"
        self.site.session.create_queues([queue])
        messages = [self._message("expired", n, b"1", None) for n in range(4)]
        asked = [{marks.JOURNAL: "1"}] * 2 + [{}] * 2
        self.dead |= {one.id for one in messages[:2]}
        return [
            Outgoing(queue, replace(one, headers={**one.headers, **more}), time_to_live=n // 2)
            for n, (one, more) in enumerate(zip(messages, asked, strict=True))
        ]

    def _acknowledgement(self, n: int) -> Outgoing:
        """Return an acknowledgement that comes too late, when the message is not kept any more."""
        about = Message(id=self._id("gone", n))
        end = DeliveryEnd(about, DeliveryHeaders(), "elsewhere", 0x4000, 0)
        return acknowledgement(end, self.site.acknowledgements)

    def _malformed(self, n: int) -> Outgoing:
        message = self._message("malformed", n, b"no timeout", None)
        address = self.site.address
        self.errors[message.id] = Due(message, 0, address)
        return Outgoing(address, message)

    def _own(self, message_type: str, what: str, body: Any) -> Outgoing:
        message_id = self._id(what, 0)
        message = Message(
            id=message_id,
            headers={
                headers.MESSAGE_ID: message_id,
                headers.ENCLOSED_MESSAGE_TYPES: message_type,
                headers.TIME_SENT: to_wire(self.site.clock.now()),
            },
            body=json.dumps(body).encode(),
        )
        if message_type == "Flaky":
            # The retry may be on its way twice: it is handled while its dispatch is not closed yet.
            delayed = self.site.pair.delayed
            self.target[f"{message_id}-done"] = Due(message, 0, steps=2 + delayed)
            self.target[f"{message_id}-later"] = Due(message, 0, steps=1 + delayed)
        return Outgoing(self.site.name, message)

    def _message(self, kind: str, n: int, body: bytes, saga: str | None) -> Message:
        message_id = self._id(kind, n)
        own = {
            headers.MESSAGE_ID: message_id,
            headers.ENCLOSED_MESSAGE_TYPES: kind,
            headers.TIME_SENT: to_wire(self.site.clock.now()),
            "tenant": "crash test ✓",
        }
        return Message(
            id=message_id, headers=own | ({headers.SAGA_ID: saga} if saga else {}), body=body
        )

    def _id(self, kind: str, n: int) -> str:
        return f"{self.site.name}-{self.number}-{kind}-{n}"

    def _timeout_id(self, kind: str, n: int) -> str:
        return timeout_id(self.site.name, self._id(kind, n))

"""What becomes of messages from delay levels: rows of a store, or messages in other levels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from timeoutmgr import headers as names
from timeoutmgr.contracts import Clock, TopologySession
from timeoutmgr.errors import DelayTooLong, InvalidMessage
from timeoutmgr.instants import Micros, to_wire
from timeoutmgr.migration.into_levels import LevelsTarget, refuse_unconfirmed
from timeoutmgr.migration.ports import Target
from timeoutmgr.migration.reading_levels import Unreadable, Waiting, as_timeout, waiting
from timeoutmgr.migration.runs import Batch, Delivered, Item
from timeoutmgr.native.levels import binding_key
from timeoutmgr.native.routes import ThroughLevels
from timeoutmgr.redaction import on_one_line
from timeoutmgr.transport.dispatch import Publishing
from timeoutmgr.transport.relay import Relay, Relayed
from timeoutmgr.validation import Limits, check_destination

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InHand:
    """A message out of a level, and what it says of itself."""

    relayed: Relayed
    waiting: Waiting


def read(relayed: Relayed, renames: Mapping[str, str]) -> InHand:
    """Return what a message says of itself; raise Unreadable."""
    found = waiting(relayed.headers, relayed.received.routing_key)
    destination = renames.get(found.destination, found.destination)
    return InHand(relayed, replace(found, destination=destination))


class Sink(Protocol):
    """Takes what was read out of a level."""

    @property
    def target(self) -> Target:
        """Where it puts them."""
        ...

    def unfit(self, hands: Sequence[InHand]) -> dict[int, str]:
        """Return why some of *hands* cannot be taken, by their place."""
        ...

    def take(self, run_id: str, batch: Batch, relay: Relay, hands: Sequence[InHand]) -> Delivered:
        """Take all of *hands* durably; they are acknowledged after that."""
        ...

    def has(self, hands: Sequence[InHand]) -> list[InHand]:
        """Return those of *hands* that it has already, where it can tell."""
        ...


@dataclass(frozen=True, slots=True)
class StoreSink:
    """Into the store of one endpoint; *wake* tells its poller of what may be due any moment."""

    target: Target
    endpoint: str
    limits: Limits
    clock: Clock
    wake: Callable[[Micros], None] = lambda _due: None

    def unfit(self, hands: Sequence[InHand]) -> dict[int, str]:
        """Return which have a destination that is not allowed, or what a store cannot keep."""
        found = {place: self._unfit(one) for place, one in enumerate(hands)}
        return {place: defect for place, defect in found.items() if defect is not None}

    def take(self, run_id: str, batch: Batch, relay: Relay, hands: Sequence[InHand]) -> Delivered:
        """Store them in one transaction; what is there twice is one."""
        items = {item.timeout.id: item for item in map(self._item, hands)}
        delivered = self.target.deliver(run_id, batch, [*items.values()])
        # A level has what is due in a second as well, and a poller looks once a minute.
        self.wake(min(item.timeout.due for item in items.values()))
        return replace(delivered, known=delivered.known + len(hands) - len(items))

    def has(self, hands: Sequence[InHand]) -> list[InHand]:
        """Return those that are stored, or were."""
        ids = [self._item(one).timeout.id for one in hands]
        there = self.target.present(ids)
        return [one for one, timeout_id in zip(hands, ids, strict=True) if timeout_id in there]

    def _unfit(self, one: InHand) -> str | None:
        try:
            check_destination(one.waiting.destination, self.limits)
        except InvalidMessage as error:
            return str(error)
        return _defect(one)

    def _item(self, one: InHand) -> Item:
        message = one.relayed.received.message
        return Item(timeout=as_timeout(message, one.waiting, self.endpoint, self.clock.now()))


def _defect(one: InHand) -> str | None:
    received = one.relayed.received
    message = received.message
    texts = (message.id, message.content_type, message.content_encoding, one.waiting.destination)
    if any("\0" in text for text in texts):
        return "it has a NUL where no database takes one"
    return received.defect


@dataclass(frozen=True, slots=True)
class LevelsSink:
    """Into levels of other names on the same broker, each message whole."""

    target: LevelsTarget

    def unfit(self, hands: Sequence[InHand]) -> dict[int, str]:
        """Return which have a destination that does not exist, or lie beyond the levels."""
        found = {}
        for place, one in enumerate(hands):
            try:
                self.target.check(one.waiting.destination)
                self._way(one).address()
            except (InvalidMessage, DelayTooLong) as error:
                found[place] = str(error)
        destinations = {
            one.waiting.destination for place, one in enumerate(hands) if place not in found
        }
        with closing(self.target.transport.session()) as session:
            missing = cast(TopologySession, session).bind_queues(
                sorted(destinations), self.target.names.delivery, binding_key
            )
        for place, one in enumerate(hands):
            if one.waiting.destination in missing:
                found[place] = f"there is no queue {one.waiting.destination!r}"
        return found

    def take(self, run_id: str, batch: Batch, relay: Relay, hands: Sequence[InHand]) -> Delivered:
        """Publish them with the delay that is left now, and wait for all confirms."""
        refuse_unconfirmed(run_id, batch, relay.publish([self._publishing(one) for one in hands]))
        return Delivered(len(hands))

    def has(self, hands: Sequence[InHand]) -> list[InHand]:
        """Return none: no queue can tell."""
        return []

    def _publishing(self, one: InHand) -> Publishing:
        exchange, key = self._way(one).address()
        more: dict[str, Any] = {names.DELIVER_AT: to_wire(one.waiting.due)}
        return one.relayed.publishing(exchange, key, more)

    def _way(self, one: InHand) -> ThroughLevels:
        target = self.target
        return ThroughLevels(target.names, one.waiting.destination, one.waiting.due, target.clock)


def part(
    relayed: Sequence[Relayed], renames: Mapping[str, str], sink: Sink, sender: str | None
) -> tuple[list[InHand], int]:
    """Return what *sink* can take, and how many of *sender*'s it cannot; others' are neither."""
    hands, unfit = [], 0
    for one in relayed:
        if sender is not None and one.headers.get(names.ORIGINATING_ENDPOINT) != sender:
            continue
        try:
            hands.append(read(one, renames))
        except Unreadable as error:
            unfit += 1
            _tell(one, str(error))
    reasons = sink.unfit(hands)
    for place, reason in reasons.items():
        _tell(hands[place].relayed, reason)
    fit = [one for place, one in enumerate(hands) if place not in reasons]
    return fit, unfit + len(reasons)


def _tell(one: Relayed, reason: str) -> None:
    logger.warning(
        "message %.80r stays in %s: %s",
        one.received.message.id,
        one.received.queue,
        on_one_line(reason),
    )

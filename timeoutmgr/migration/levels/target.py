"""Native delay levels as a target: each timeout is published with its remaining delay."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Protocol

from timeoutmgr.contracts import Clock, SendResult
from timeoutmgr.errors import DelayTooLong, InvalidMessage, MigrationFailed
from timeoutmgr.message import headers as names
from timeoutmgr.message.instants import Micros, from_micros, to_wire
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.migration.levels.waiting_message import (
    Unreadable,
    Waiting,
    as_timeout,
    plain,
    waiting,
)
from timeoutmgr.migration.ports import Target
from timeoutmgr.migration.runs import Batch, Delivered, Item, Problem, Survey
from timeoutmgr.native.infrastructure import delay_topology, with_exchanges
from timeoutmgr.native.levels import binding_key, parts_until
from timeoutmgr.native.levels import check_destination as check_bindable
from timeoutmgr.native.names import NameSet, ThroughLevels, to_levels
from timeoutmgr.transport.amqp.dispatch import EncodedMessage
from timeoutmgr.transport.amqp.relay import Relay, Relayed
from timeoutmgr.transport.envelope import SHORT_STRING
from timeoutmgr.transport.kombu_transport import KombuTransport

logger = logging.getLogger(__name__)

_MOST_AT_ONCE: Final = 5_000
"""Maximum messages that are written before a wait for their confirms: the default batch size."""


@dataclass(frozen=True, slots=True)
class LevelsTarget(Target):
    """See :class:`timeoutmgr.migration.Target`; the delay levels *names* of a RabbitMQ broker.

    *clock* is the clock of the place that set the due times: see :class:`OriginClock`.

    A queue cannot list its messages. So a batch that a crash interrupted is sent again, each
    message under its old id: nothing is lost, but some messages of the batch may be there twice.
    Only the ledger excludes a second runner: a broker has no fencing token.
    """

    transport: KombuTransport
    names: NameSet
    limits: Limits
    clock: Clock
    accept_loss: bool = False
    """Whether the endpoint accepts levels that lose messages."""

    def describe(self) -> str:
        """Return the broker and the names, without secrets."""
        return f"{self.transport.describe()} {self.names.name}"

    def problems(self, survey: Survey) -> Sequence[Problem]:
        """Return the missing levels and destinations, and a due time beyond the longest level."""
        return list(self._problems(survey))

    def _problems(self, survey: Survey) -> Iterator[Problem]:
        if survey.latest is not None:
            try:
                parts_until(survey.latest, self.clock.now(), self.names.parts)
            except DelayTooLong as error:
                due = f"due {from_micros(survey.latest).isoformat()}"
                remedy = "it stays in the store if you leave it out with --until"
                yield Problem(due, str(error), remedy)
        if self.names.queue_types[0] == "classic" and not self.accept_loss:
            why = "these levels are classic queues: a broker that is killed loses messages"
            yield Problem(self.names.name, why, "say accept_loss = true, or use quorum queues")
        names = []
        for name in survey.destinations:
            try:
                self.check(name)
                names.append(name)
            except InvalidMessage as error:
                yield Problem(repr(name), str(error), "--rename it")
        with closing(with_exchanges(self.transport.session())) as session:
            levels = session.missing(delay_topology(self.names))
            if levels:
                missing = f"{len(levels)} exchanges and queues of the levels are missing"
                remedy = "enable native delays there, then run `timeoutmgr install`"
                yield Problem(self.names.name, missing, remedy)
            for name in session.missing_queues(names):
                why = f"there is no such queue for {survey.destinations[name]} timeouts"
                remedy = "install the endpoint that owns it, or --rename it"
                yield Problem(repr(name), why, remedy)

    def check(self, destination: str) -> None:
        """Raise InvalidMessage if no message may go to *destination*, or it cannot be bound."""
        check_destination(destination, self.limits)
        check_bindable(destination)

    def deliver(self, run_id: str, batch: Batch, items: Sequence[Item]) -> Delivered:
        """Publish *items* and wait until the broker has confirmed each."""
        for name in {item.timeout.destination for item in items}:
            try:
                self.check(name)
            except InvalidMessage as error:  # stored after the plan was made
                why = "; cancel its timeouts and run again, or abort"
                raise MigrationFailed(f"run {run_id}, batch {batch.no}: {error}{why}") from error
        outgoing = [
            to_levels(
                Outgoing(item.timeout.destination, item.timeout.message),
                item.timeout.due,
                self.names,
                self.clock,
            )
            for item in items
        ]
        with closing(with_exchanges(self.transport.session_of_batches(_MOST_AT_ONCE))) as session:
            # Bound at the delivery exchange before anything can arrive there.
            queues = sorted({one.destination for one in outgoing})
            missing = session.bind_queues(queues, self.names.delivery, binding_key)
            if missing:
                raise MigrationFailed(
                    f"run {run_id}, batch {batch.no}: the queues {', '.join(missing)} are gone; "
                    "create them and run again, or abort"
                )
            results = session.send(outgoing)
        refuse_unconfirmed(run_id, batch, results)
        return Delivered(len(results))


def refuse_unconfirmed(run_id: str, batch: Batch, results: Sequence[SendResult]) -> None:
    """Raise MigrationFailed unless the broker has confirmed each message."""
    others = [result.value for result in results if result is not SendResult.CONFIRMED]
    if others:
        raise MigrationFailed(
            f"run {run_id}, batch {batch.no}: {len(others)} of {len(results)} messages were not "
            f"confirmed ({', '.join(sorted(set(others)))}); run again to send the batch once more"
        )


# --- sinks for messages from delay levels: rows of a store, or messages in other levels -------


@dataclass(frozen=True, slots=True)
class LevelMessage:
    """A message from a level, with its destination and due time."""

    relayed: Relayed
    waiting: Waiting


def read(relayed: Relayed, renames: Mapping[str, str]) -> LevelMessage:
    """Return the message with its destination and due time; raise Unreadable."""
    found = waiting(relayed.headers, relayed.received.routing_key)
    destination = renames.get(found.destination, found.destination)
    return LevelMessage(relayed, replace(found, destination=destination))


class Sink(Protocol):
    """Accepts messages that were read from a level."""

    @property
    def target(self) -> Target:
        """The place that gets the messages."""
        ...

    def unfit(self, messages: Sequence[LevelMessage]) -> dict[int, str]:
        """Return why some of *messages* cannot be accepted, by their position."""
        ...

    def accept(
        self, run_id: str, batch: Batch, relay: Relay, messages: Sequence[LevelMessage]
    ) -> Delivered:
        """Accept all of *messages* durably; they are acknowledged after that."""
        ...

    def has(self, messages: Sequence[LevelMessage]) -> list[LevelMessage]:
        """Return the *messages* that the target already has, if it can list them."""
        return []


@dataclass(frozen=True, slots=True)
class StoreSink:
    """Stores messages for one endpoint; *wake* asks its poller to poll at a due time."""

    target: Target
    endpoint: str
    limits: Limits
    clock: Clock
    wake: Callable[[Micros], None] = lambda _due: None

    def unfit(self, messages: Sequence[LevelMessage]) -> dict[int, str]:
        """Return messages with a reason: not storable, not allowed, or with a used id."""
        defects = [(place, self._unfit(one)) for place, one in enumerate(messages)]
        found = {place: defect for place, defect in defects if defect is not None}
        fit = [place for place in range(len(messages)) if place not in found]
        # Levels deliver both messages of one id, and a store would drop the second.
        used = self.target.conflicts([self._item(messages[place]).timeout for place in fit])
        return found | {fit[at]: "its id was used for other content" for at in used}

    def accept(
        self, run_id: str, batch: Batch, relay: Relay, messages: Sequence[LevelMessage]
    ) -> Delivered:
        """Store them in one transaction; equal messages with one id are stored once."""
        items = {item.timeout.id: item for item in map(self._item, messages)}
        delivered = self.target.deliver(run_id, batch, [*items.values()])
        # A level also has messages due within a second, and a poller polls once a minute.
        self.wake(min(item.timeout.due for item in items.values()))
        return replace(delivered, known=delivered.known + len(messages) - len(items))

    def has(self, messages: Sequence[LevelMessage]) -> list[LevelMessage]:
        """Return the messages whose ids are or were stored."""
        ids = [self._item(one).timeout.id for one in messages]
        there = self.target.present(ids)
        return [one for one, timeout_id in zip(messages, ids, strict=True) if timeout_id in there]

    def _unfit(self, one: LevelMessage) -> str | None:
        received = one.relayed.received
        message = received.message
        try:
            check_destination(one.waiting.destination, self.limits)
            plain("message id", message.id, SHORT_STRING)
            plain("content type", message.content_type, SHORT_STRING)
            plain("content encoding", message.content_encoding, SHORT_STRING)
        except (InvalidMessage, ValueError) as error:
            return str(error)
        return received.defect

    def _item(self, one: LevelMessage) -> Item:
        message = one.relayed.received.message
        return Item(timeout=as_timeout(message, one.waiting, self.endpoint, self.clock.now()))


@dataclass(frozen=True, slots=True)
class LevelsSink(Sink):
    """Publishes whole messages into levels of other names on the same broker."""

    target: LevelsTarget

    def unfit(self, messages: Sequence[LevelMessage]) -> dict[int, str]:
        """Return messages with a missing destination, or a delay beyond the levels."""
        found = {}
        for place, one in enumerate(messages):
            try:
                self.target.check(one.waiting.destination)
                self._way(one).address()
            except (InvalidMessage, DelayTooLong) as error:
                found[place] = str(error)
        fit = (one for place, one in enumerate(messages) if place not in found)
        destinations = sorted({one.waiting.destination for one in fit})
        with closing(with_exchanges(self.target.transport.session())) as session:
            missing = session.bind_queues(destinations, self.target.names.delivery, binding_key)
        for place, one in enumerate(messages):
            if one.waiting.destination in missing:
                found[place] = f"there is no queue {one.waiting.destination!r}"
        return found

    def accept(
        self, run_id: str, batch: Batch, relay: Relay, messages: Sequence[LevelMessage]
    ) -> Delivered:
        """Publish them with their remaining delay, and wait for all confirms."""
        refuse_unconfirmed(
            run_id, batch, relay.publish([self._publishing(one) for one in messages])
        )
        return Delivered(len(messages))

    def _publishing(self, one: LevelMessage) -> EncodedMessage:
        way = self._way(one)
        exchange, key = way.address()
        more: dict[str, str | int] = {names.DELIVER_AT: to_wire(one.waiting.due)}
        more |= way.numbers(one.relayed.received.message)
        return one.relayed.publishing(exchange, key, more)

    def _way(self, one: LevelMessage) -> ThroughLevels:
        target = self.target
        return ThroughLevels(target.names, one.waiting.destination, one.waiting.due, target.clock)


def part(
    relayed: Sequence[Relayed], renames: Mapping[str, str], sink: Sink, sender: str | None
) -> tuple[list[LevelMessage], int]:
    """Return the messages that *sink* can accept, and the count of unfit messages of *sender*."""
    messages, unfit = [], 0
    for one in relayed:
        if sender is not None and one.headers.get(names.ORIGINATING_ENDPOINT) != sender:
            continue
        try:
            messages.append(read(one, renames))
        except Unreadable as error:
            unfit += 1
            _log_refusal(one, str(error))
    reasons = sink.unfit(messages)
    for place, reason in reasons.items():
        _log_refusal(messages[place].relayed, reason)
    fit = [one for place, one in enumerate(messages) if place not in reasons]
    return fit, unfit + len(reasons)


def _log_refusal(one: Relayed, reason: str) -> None:
    logger.warning(
        "message %.80r stays in %s: %s",
        one.received.message.id,
        one.received.queue,
        on_one_line(reason),
        extra={"event": "message_not_moved", "message_id": one.received.message.id},
    )

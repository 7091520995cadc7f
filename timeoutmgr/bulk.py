"""Many messages in one call: drawn window by window, and the fate of each is known.

What a caller gave is drawn only as far as it is sent, so a million messages take the memory of one
window. When something goes wrong, what was drawn and not taken comes back under fixed ids, and the
rest still lies in the caller's iterator: ``chain(error.unsent, iterator)`` goes on from there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from timeoutmgr.assembly import Parts
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import ConfigurationError, InvalidMessage, TimeoutManagerError
from timeoutmgr.inside import wake_or_wait
from timeoutmgr.instants import Micros
from timeoutmgr.message import Outgoing
from timeoutmgr.outgoing import Composed, SendOptions, Sent
from timeoutmgr.transport.work import require_confirmed

WINDOW: Final = 500
"""Messages that are sent before the confirms of all of them are awaited."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of bodies after which a window is full, however few they are."""

OnSent: TypeAlias = Callable[[Sequence[Sent]], None]


@dataclass(frozen=True, slots=True)
class ToSend:
    """One message of a bulk: what ``Endpoint.send`` takes."""

    destination: str
    message_type: str
    body: object
    options: SendOptions = field(default_factory=SendOptions)


class BulkInterrupted(TimeoutManagerError):
    """A bulk stopped half-way.

    *sent* messages were taken for sure. *unsent* were drawn and were not, or perhaps not, taken;
    they carry the ids they were sent under, so sending them again makes no second message. The
    cause (``__cause__``) says what went wrong; where that is an InvalidMessage, the last of
    *unsent* is the message that it is about.
    """

    def __init__(self, sent: int, unsent: Sequence[ToSend], cause: Exception) -> None:
        super().__init__(
            f"stopped after {sent} messages were taken: {cause} ({len(unsent)} more were drawn "
            "and are in .unsent; send them again, then go on with the rest)"
        )
        self.sent = sent
        self.unsent = tuple(unsent)


class _Refused(Exception):
    """A drawn message that cannot be sent as it is."""

    def __init__(self, message: ToSend, why: TimeoutManagerError) -> None:
        super().__init__(str(why))
        self.message = message
        self.why = why


@dataclass(slots=True)
class _Window:
    """What is sent together: what was drawn, and what was made of it."""

    items: list[ToSend] = field(default_factory=list)
    composed: list[Composed] = field(default_factory=list)
    size: int = 0

    def add(self, item: ToSend, composed: Composed) -> None:
        self.items.append(item)
        self.composed.append(composed)
        self.size += len(composed.outgoing.message.body)

    def is_full(self) -> bool:
        return len(self.items) >= WINDOW or self.size >= WINDOW_BYTES

    def outgoing(self) -> list[Outgoing]:
        return [one.outgoing for one in self.composed]

    def under_their_ids(self) -> list[ToSend]:
        """Return the items so that sending them again is sending the same messages."""
        return [
            replace(item, options=replace(item.options, message_id=one.sent.message_id))
            for item, one in zip(self.items, self.composed, strict=True)
        ]


@dataclass(slots=True)
class _Bulk:
    """One call: how its messages are made, and how many were taken so far."""

    parts: Parts
    on_sent: OnSent | None
    delayed_only: bool = False
    sent: int = 0

    def windows(self, messages: Iterable[ToSend]) -> Iterator[_Window]:
        """Yield full windows, and the rest.

        What precedes a message that is wrong, or an error of the iterable itself, goes first: it
        was drawn, and nobody else has it.
        """
        drawn = iter(messages)
        is_more = True
        while is_more:
            window, error = self._fill(drawn)
            if window.items:
                yield window
            if isinstance(error, _Refused):
                raise BulkInterrupted(self.sent, [error.message], error.why) from error.why
            if error is not None:
                raise error
            is_more = window.is_full()

    def _fill(self, drawn: Iterator[ToSend]) -> tuple[_Window, Exception | None]:
        """Return the next window, and the error that ended it early, if one did."""
        window = _Window()
        try:
            for message in drawn:
                window.add(message, self._compose(message))
                if window.is_full():
                    break
        except Exception as error:
            return window, error
        return window, None

    def _compose(self, message: ToSend) -> Composed:
        try:
            if not isinstance(message, ToSend):
                raise InvalidMessage(f"a bulk is made of ToSend, got {message!r:.60}")
            composed = self.parts.composer.compose(
                message.destination,
                message.message_type,
                message.body,
                message.options,
                stored=self.delayed_only,
            )
            if self.delayed_only and composed.due is None:
                raise InvalidMessage(
                    f"message {composed.sent.message_id!r} is not delayed; give it a delay or "
                    "deliver_at, or use send_many"
                )
        except TimeoutManagerError as error:
            raise _Refused(message, error) from error
        return composed

    def to_check(self, window: _Window) -> list[str]:
        """Return the destinations that must exist now, since they are used only later."""
        if not self.parts.settings.check_destinations:
            return []
        return sorted({one.sent.destination for one in window.composed if one.due is not None})

    def taken(self, window: _Window, results: Sequence[SendResult]) -> None:
        """Count and tell what was taken; raise BulkInterrupted for the rest."""
        confirmed = [result is SendResult.CONFIRMED for result in results]
        done = [one.sent for one, ok in zip(window.composed, confirmed, strict=True) if ok]
        self.sent += len(done)
        if done and self.on_sent is not None:
            self.on_sent(done)
        if len(done) < len(results):
            again = zip(window.under_their_ids(), confirmed, strict=True)
            left = [one for one, ok in again if not ok]
            try:
                require_confirmed(window.outgoing(), results)
            except TimeoutManagerError as error:
                raise BulkInterrupted(self.sent, left, error) from error


def send_many(parts: Parts, messages: Iterable[ToSend], on_sent: OnSent | None) -> int:
    """Send *messages* in confirm windows; return how many, which is all of them."""
    bulk = _Bulk(parts, on_sent)
    for window in bulk.windows(messages):
        try:
            results = parts.sender.send_each(window.outgoing(), finally_for=bulk.to_check(window))
        except TimeoutManagerError as error:
            raise BulkInterrupted(bulk.sent, window.under_their_ids(), error) from error
        bulk.taken(window, results)
    return bulk.sent


def store_many(parts: Parts, messages: Iterable[ToSend], on_sent: OnSent | None) -> int:
    """Store *messages*, all delayed, past their queue; return how many.

    Each window is one transaction. The manager is woken through its queue, since it may run in
    another process, after a window that holds something earlier than it was told of.
    """
    store = parts.context.store_directly
    if store is None:
        raise ConfigurationError(
            f"endpoint {parts.settings.name!r} keeps no timeouts itself, so it cannot store past "
            "the queue; enable TimeoutManager here, or use send_many"
        )
    bulk = _Bulk(parts, on_sent, delayed_only=True)
    told: Micros | None = None
    for window in bulk.windows(messages):
        try:
            parts.sender.require_queues(bulk.to_check(window))
            if parts.context.dead_letters is not None:
                parts.context.dead_letters.before_sending(window.outgoing(), None)
            store([one.outgoing.message for one in window.composed], None)
        except TimeoutManagerError as error:
            raise BulkInterrupted(bulk.sent, window.under_their_ids(), error) from error
        earliest = min(one.due for one in window.composed if one.due is not None)
        if told is None or earliest < told:
            wake_or_wait(parts, earliest)
            told = earliest
        bulk.taken(window, [SendResult.CONFIRMED] * len(window.items))
    return bulk.sent

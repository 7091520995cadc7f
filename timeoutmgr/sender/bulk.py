"""Bulk sends: many messages in one call, drawn window by window, each with a known result.

The caller's iterable is drawn only as far as messages are sent, so a million messages take the
memory of a window; the broker works on the first messages of a window while the rest is drawn.
After an error, messages that were drawn and not confirmed are returned under fixed ids, and the
rest is still in the caller's iterator: ``chain(error.unsent, iterator)`` goes on from there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from timeoutmgr.clock import CarriedClock
from timeoutmgr.contracts import RepeatKind, SendResult
from timeoutmgr.database import as_database
from timeoutmgr.errors import ConfigurationError, InvalidMessage, TimeoutManagerError
from timeoutmgr.message.instants import Micros
from timeoutmgr.sender.composer import Composed, DelayClock, Sent, ToSend
from timeoutmgr.sender.in_transaction import wake_or_wait
from timeoutmgr.sender.sender import Outlet
from timeoutmgr.sender.window import SendingWindow
from timeoutmgr.transport.work import require_confirmed

WINDOW: Final = 500
"""Maximum messages that are sent before their confirms are awaited."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of bodies after which a window is full, however few the messages."""
BURST: Final = 64
"""Maximum messages that are sent off together, while the next messages are drawn."""
BURST_BYTES: Final = 64 * 1024
"""Bytes of bodies after which messages are sent off, however few they are."""

OnSent: TypeAlias = Callable[[Sequence[Sent]], None]


class BulkInterrupted(TimeoutManagerError):
    """A bulk send stopped before its end.

    *sent* messages were confirmed. *unsent* messages were taken from the iterable, and were not
    sent or may not have been sent; they have the ids of the first send, so sending them again
    creates no second message. The cause (``__cause__``) may be InvalidMessage, for the last of
    *unsent*, or an error of ``on_sent`` or of the iterable itself, which may then be exhausted.
    """

    def __init__(self, sent: int, unsent: Sequence[ToSend], cause: Exception) -> None:
        super().__init__(
            f"stopped after {sent} messages were taken: {cause} ({len(unsent)} more were drawn "
            "and are in .unsent; send them again, but for one that this error refuses, then go on "
            "with the rest)"
        )
        self.sent = sent
        self.unsent = tuple(unsent)


@dataclass(slots=True)
class _Window:
    """Messages that are sent together, as drawn and as composed, and their results."""

    items: list[ToSend] = field(default_factory=list)
    composed: list[Composed] = field(default_factory=list)
    size: int = 0
    refused: list[ToSend] = field(default_factory=list)
    """The item that was drawn last, if no message could be made of it."""
    is_last: bool = False
    error: Exception | None = None
    """The error that ended it early."""
    results: list[SendResult] = field(default_factory=list)
    """Results of the sent messages, which are the first messages of the window."""

    def add(self, item: ToSend, composed: Composed) -> None:
        self.items.append(item)
        self.composed.append(composed)
        self.size += len(composed.outgoing.message.body)

    def answer(self, repeats: Sequence[RepeatKind | None]) -> None:
        """Record the answers of the store about the ids."""
        if any(repeats):
            both = zip(self.composed, repeats, strict=True)
            self.composed = [one.answered(repeat) for one, repeat in both]

    def is_open(self) -> bool:
        is_full = len(self.items) >= WINDOW or self.size >= WINDOW_BYTES
        return not (is_full or self.is_last or self.error is not None)

    def end(self, error: Exception) -> None:
        """Record the error that ends the window; the first error counts."""
        if self.error is None:
            self.error = error

    def confirmed(self) -> list[Composed]:
        """Return the messages that were confirmed."""
        both = zip(self.composed, self.results, strict=False)
        return [one for one, result in both if result is SendResult.CONFIRMED]

    def left(self) -> list[ToSend]:
        """Return the other items, so that sending them again is sending the same messages."""
        is_confirmed = [result is SendResult.CONFIRMED for result in self.results]
        is_confirmed += [False] * (len(self.items) - len(is_confirmed))
        again = [self._under_its_id(place) for place, sure in enumerate(is_confirmed) if not sure]
        return again + self.refused

    def _under_its_id(self, place: int) -> ToSend:
        item, message_id = self.items[place], self.composed[place].outgoing.message.id
        return replace(item, options=replace(item.options, message_id=message_id))

    def check(self) -> None:
        """Raise the error that ended the window, or the error of the first unconfirmed message."""
        if self.error is not None:
            raise self.error
        sent = [one.outgoing for one in self.composed[: len(self.results)]]
        require_confirmed(sent, self.results)


@dataclass(slots=True)
class _Bulk:
    """A bulk call: its source, its outlet, and the number of messages confirmed so far."""

    outlet: Outlet
    drawn: Iterator[ToSend]
    on_sent: OnSent | None
    delayed_only: bool = False
    sent: int = 0
    clock: DelayClock = field(init=False)
    """The clock from which relative delays count."""

    def __post_init__(self) -> None:
        ask = self._stored_now if self.delayed_only else self.outlet.sender.now
        self.clock = CarriedClock(ask, self.outlet.clock)

    def draw(self, window: _Window, most: int, most_bytes: int) -> list[Composed]:
        """Draw messages into *window* up to a limit, and return them; *window* keeps an error."""
        before, full = len(window.items), window.size + most_bytes
        try:
            for message in self.drawn:
                try:
                    window.add(message, self._compose(message))
                except Exception as error:
                    window.refused = [message]  # it was drawn, and the caller no longer has it
                    window.end(error)
                if (
                    len(window.items) - before >= most
                    or window.size >= full
                    or not window.is_open()
                ):
                    break
            else:
                window.is_last = True
        except Exception as error:
            window.end(error)
        return window.composed[before:]

    def _stored_now(self) -> Micros | None:
        shared = None if self.outlet.direct is None else self.outlet.direct.database
        if shared is None or as_database(shared).dialect.now is None:
            return None
        return shared.now(self.outlet.clock)

    def _compose(self, message: ToSend) -> Composed:
        if not isinstance(message, ToSend):
            raise InvalidMessage(f"a bulk is made of ToSend, got {message!r:.60}")
        composed = self.outlet.composer.compose(
            message.destination,
            message.message_type,
            message.body,
            message.options,
            stored=self.delayed_only,
            delay_clock=self.clock,
        )
        if self.delayed_only and composed.due is None:
            raise InvalidMessage(
                f"message {composed.outgoing.message.id!r:.80} is not delayed; give it a delay or "
                "deliver_at, or use send_many"
            )
        return composed

    def to_check(self, composed: Sequence[Composed]) -> list[str]:
        """Return the destinations that must exist already, although they are used later."""
        if not self.outlet.check_destinations:
            return []
        return sorted({name for one in composed if (name := one.final_queue) is not None})

    def settle(self, window: _Window) -> None:
        """Count and report confirmed messages; raise for the rest, and for the end of *window*.

        Messages before an invalid message, or before an error of the iterable, are sent: they were
        drawn, and the caller no longer has them.
        """
        done, left = window.confirmed(), window.left()
        self.sent += len(done)
        if done and self.on_sent is not None:
            try:
                self.on_sent([one.sent for one in done])
            except Exception as error:
                window.end(error)
        try:
            window.check()
        except Exception as error:
            if not left:
                raise
            cause = self.outlet.missing_schema(error) or error
            raise BulkInterrupted(self.sent, left, cause) from cause


def send_many(outlet: Outlet, messages: Iterable[ToSend], on_sent: OnSent | None) -> int:
    """Send all *messages* in confirm windows; return how many."""
    bulk = _Bulk(outlet, iter(messages), on_sent)
    is_more = True
    while is_more:
        window = _Window()
        try:
            with outlet.sender.window() as sending:
                while window.is_open():
                    _send_off(bulk, window, sending)
                window.results = sending.results()
        except TimeoutManagerError as error:
            window.end(error)
        bulk.settle(window)
        is_more = not window.is_last
    return bulk.sent


def _send_off(bulk: _Bulk, window: _Window, sending: SendingWindow) -> None:
    """Draw a burst, and send it; an error ends *window*, and nothing of the burst is sent."""
    burst = bulk.draw(window, BURST, BURST_BYTES)
    if burst:
        try:
            sending.add([one.outgoing for one in burst], finally_for=bulk.to_check(burst))
        except TimeoutManagerError as error:
            window.end(error)


def store_many(outlet: Outlet, messages: Iterable[ToSend], on_sent: OnSent | None) -> int:
    """Store *messages*, all delayed, bypassing their queue; return how many.

    Each window is one transaction. The manager may run in another process, so it is woken through
    its queue, after each window with a message due earlier than the last wake.
    """
    if outlet.direct is None:
        raise ConfigurationError(
            f"endpoint {outlet.endpoint!r} keeps no timeouts itself, so it cannot store past "
            "the queue; enable TimeoutManager here, or use send_many"
        )
    bulk = _Bulk(outlet, iter(messages), on_sent, delayed_only=True)
    woken_for: Micros | None = None
    is_more = True
    while is_more:
        window = _Window()
        composed = bulk.draw(window, WINDOW, WINDOW_BYTES)
        if composed:
            try:
                outlet.sender.require_queues(bulk.to_check(composed))
                outgoing = [one.outgoing for one in composed]
                outlet.policy.before_storing(outgoing, None)
                repeats = outlet.direct.store([one.message for one in outgoing], None)
                window.answer(repeats)
                window.results = [SendResult.CONFIRMED] * len(composed)
            except TimeoutManagerError as error:
                window.end(error)
        if window.results:
            earliest = min(one.due for one in composed if one.due is not None)
            if woken_for is None or earliest < woken_for:
                wake_or_wait(outlet, earliest)
                woken_for = earliest
        bulk.settle(window)
        is_more = not window.is_last
    return bulk.sent

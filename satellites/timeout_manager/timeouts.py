"""The ``<endpoint>.Timeouts`` satellite: stores timeouts and wakes the poller."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from timeoutmgr.contracts import (
    ClearsInOrder,
    Clock,
    ExaminesIds,
    KeepsHistory,
    Key,
    OnConflict,
    Place,
    Repeat,
    RepeatKind,
    SagaClear,
    Timeout,
    TimeoutStore,
    Transaction,
)
from timeoutmgr.contracts.stores import refuse
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import ContentConflict, InvalidMessage, MessageRejected, MessageTooLarge
from timeoutmgr.message import headers, routes
from timeoutmgr.message.headers import remembers_short
from timeoutmgr.message.instants import Micros, from_wire, instant_of
from timeoutmgr.message.labels import check_labels
from timeoutmgr.message.message import Message, Received, with_headers
from timeoutmgr.message.routes import id_of_timeout, is_delayed_retry
from timeoutmgr.message.validation import (
    CLOCK_ALLOWANCE,
    ID_CHARACTERS,
    Limits,
    check_ahead,
    check_body,
    check_destination,
    check_due,
    check_headers,
)
from timeoutmgr.resilience.channel_log import ChannelLog
from timeoutmgr.satellites.delivery.dispatch import addressed
from timeoutmgr.telemetry import CountEach, During, Operation, Telemetry, count_each_of, during_of
from timeoutmgr.transport.envelope import SHORT_STRING
from timeoutmgr.transport.work import Work

from .sender_clocks import SenderClocks
from .wakeups import WakeLimit

logger = logging.getLogger(__name__)

_ROUTING = (*headers.ROUTING, headers.ON_CONFLICT, headers.DELIVER_AT_GIVEN)
_REPORTS: Final = {
    RepeatKind.DUPLICATE: ("duplicates", logging.INFO, "drops a duplicate"),
    RepeatKind.CANCELLED: ("cancelled_on_arrival", logging.INFO, "drops a cancelled message"),
    RepeatKind.REPLACED: ("timeouts_replaced", logging.INFO, "replaced a pending timeout"),
    RepeatKind.SUPERSEDED: ("superseded", logging.INFO, "drops a replaced message"),
    RepeatKind.CONFLICT: ("id_conflicts", logging.WARNING, "refused a used id"),
}
"""For each kind of repeat: the counted event, and the level and verb of the log line."""
_ON_THE_WAY: Final[Micros] = 1_000_000
"""Maximum microseconds of a delivery from the broker to its consumer."""
Stored: TypeAlias = tuple[Received, Timeout]


@dataclass(frozen=True, slots=True)
class ClearTimeouts:
    """The order to cancel the timeouts of a saga, except *kept* ids; *sent* at an instant."""

    saga_id: str
    sent: Micros
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wake:
    """The order to poll at *due*: a timeout was stored directly, or moved."""

    due: Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringStep:
    """A step that stores the timeouts of a queue, and wakes the poller that sends them."""

    limits: Limits
    clock: Clock
    telemetry: Telemetry
    wake: Callable[[Micros], None]
    senders: SenderClocks | None = None
    wake_limit: WakeLimit = field(default_factory=WakeLimit)
    wake_log: ChannelLog = field(default_factory=lambda: ChannelLog("wakes"))

    def _wake_after_commit(
        self,
        timeouts: Iterable[Timeout],
        batch: Sequence[Received],
        orders: Sequence[object],
        work: Work,
    ) -> None:
        """Wake the poller for *timeouts*, and for the orders to poll in *batch*."""
        dues = [timeout.due for timeout in timeouts]
        wakes = [
            (received, order.due)
            for received, order in zip(batch, orders, strict=True)
            if isinstance(order, Wake)
        ]
        if wakes:
            self.telemetry.count("wakes_received", len(wakes))
            newest, _ = wakes[-1]
            self.wake_log.note(newest, self.clock.monotonic(), len(wakes))
            dues.append(self.wake_limit.poll_time(min(due for _, due in wakes), self.clock.now()))
        if dues:
            earliest = min(dues)
            # Not before the commit: a woken poller would not see the row, and would sleep too long.
            work.after_commit(lambda: self.wake(earliest))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTimeouts(StoringStep):
    """The step: stores a batch in one transaction, before it is acknowledged.

    In ``transaction_scope`` *dispatch_now* dispatches due timeouts within the same transaction. In
    the other modes a due timeout is stored like the rest, and the poller is woken at once, so that
    it gets a claim and a tombstone too.
    """

    store: TimeoutStore
    dispatch_now: Callable[[Sequence[Key], Work], None]
    on_cancelled: Callable[[Timeout], None] | None = None
    _during: During = field(init=False)
    _count_each: CountEach = field(init=False)

    def __post_init__(self) -> None:
        """Ask the telemetry once what it observes."""
        object.__setattr__(self, "_during", during_of(self.telemetry))
        object.__setattr__(self, "_count_each", count_each_of(self.telemetry))

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Store *batch*; raise MessageRejected for a message that is not a timeout."""
        orders: list[Timeout | ClearTimeouts | Wake] = []
        stored: list[Stored] = []
        has_clears = has_sagas = False
        for received in batch:
            order = self._read_queued(received.message)
            orders.append(order)
            if isinstance(order, Timeout):
                stored.append((received, order))
                has_sagas = has_sagas or _can_be_cleared(order)
            else:
                has_clears = has_clears or isinstance(order, ClearTimeouts)
        timeouts = [timeout for _, timeout in stored]
        if has_clears:
            self._store_and_clear(batch, orders, work)
        elif stored:
            self._store(self._placed(stored, work) if has_sagas else stored, work)
        if timeouts and self.senders is not None:
            self.senders.compare(timeouts)
        if work.scope is not None:
            timeouts = self._dispatch_due(timeouts, work)
        self._wake_after_commit(timeouts, batch, orders, work)

    def store_directly(
        self, messages: Sequence[Message], transaction: Transaction | None
    ) -> Sequence[RepeatKind | None]:
        """Store routed messages, bypassing the queue, by the same rules; no poller is woken.

        Use the caller's *transaction*, or a new transaction. Return the kind of repeat for each
        message whose id was used before. Raises IdInUse.
        """
        timeouts = [self._timeout_of(message) for message in messages]
        repeats = self.store.store_many(timeouts, transaction=transaction)
        if transaction is None:  # a caller may still roll back
            self._count_stored(timeouts, repeats)
            self._report(repeats, is_answered=True)
        kinds = {id(repeat.timeout): repeat.kind for repeat in repeats}
        return [kinds.get(id(timeout)) for timeout in timeouts]

    def examine(self, message: Message, transaction: Transaction) -> RepeatKind | None:
        """Return the kind of repeat that *transaction* sees in *message*. Raises IdInUse."""
        assert isinstance(self.store, ExaminesIds), "the feature asks for it"
        repeats = self.store.examine([self._timeout_of(message)], transaction=transaction)
        refuse(repeats)
        return repeats[0].kind if repeats else None

    def _placed(self, stored: Sequence[Stored], work: Work) -> list[Stored]:
        """Return *stored*, the timeouts of sagas or with labels with their places."""
        place = self._place(work)
        return [
            (received, replace(timeout, place=_place_of(received, place)))
            if _can_be_cleared(timeout)
            else (received, timeout)
            for received, timeout in stored
        ]

    def _place(self, work: Work) -> Place | None:
        """Return the place of the batch of *work*; None where nobody knows since when it came."""
        if work.consumer is None or not isinstance(self.store, ClearsInOrder):
            return None
        waited = self.clock.monotonic() - work.consumer.since
        now = self.store.now(transaction=work.scope)
        return Place(work.consumer.number, now - int(waited * 1_000_000) - _ON_THE_WAY, now)

    def _store(self, stored: Sequence[Stored], work: Work) -> None:
        timeouts = [one for _, one in stored]
        with self._during(Operation.STORE, addressed(timeouts)):
            repeats = self.store.store_many(timeouts, transaction=work.scope)
        reach("timeouts.stored")
        self._count_stored(timeouts, repeats)
        if repeats:
            self._settle(stored, repeats, work)

    def _store_and_clear(
        self, batch: Sequence[Received], orders: Sequence[object], work: Work
    ) -> None:
        """Store timeouts and clear sagas, for each saga in the order of the batch.

        Timeouts are stored together if they come after the same number of clears of their sagas.
        """
        if work.scope is not None and isinstance(self.store, ClearsInOrder):
            self.store.await_clears(work.scope)
        rounds = clear_rounds(batch, orders, self._place(work))
        for stored, clears in rounds:
            if stored:
                self._store(stored, work)
            for received, clear in clears:
                cleared = self._clear(replace(clear, channel=routes.of_message(received)), work)
                reach("timeouts.cleared")
                self.telemetry.count("timeouts_cleared", len(cleared))

    def _clear(self, order: SagaClear, work: Work) -> Sequence[str]:
        """Cancel the timeouts that *order* reaches; return their ids."""
        if isinstance(self.store, ClearsInOrder):
            return self.store.clear_saga(order, transaction=work.scope)
        cancel_saga = self.store.cancel_saga
        if isinstance(self.store, KeepsHistory):
            cancel_saga = partial(self.store.cancel_saga, channel=order.channel)
        return cancel_saga(
            order.saga_id, sent_until=order.sent, keeping=order.kept, transaction=work.scope
        )

    def _count_stored(self, timeouts: Sequence[Timeout], repeats: Sequence[Repeat]) -> None:
        unstored = {id(one.timeout) for one in repeats if one.kind is not RepeatKind.REPLACED}
        if number := len(timeouts) - len(unstored):
            self.telemetry.count("timeouts_stored", number)
            stored = (one.destination for one in timeouts if id(one) not in unstored)
            self._count_each("timeouts_stored", stored)

    def _settle(self, stored: Sequence[Stored], repeats: Sequence[Repeat], work: Work) -> None:
        """Reject conflicts to the error queue, and report every repeat after the commit."""
        sources = {id(timeout): received for received, timeout in stored}
        for repeat in repeats:
            if repeat.kind is RepeatKind.CONFLICT:
                timeout = repeat.timeout
                error = ContentConflict(timeout.message.id, timeout.id)
                work.fail(sources[id(timeout)], error)
            elif repeat.kind is RepeatKind.CANCELLED and self.on_cancelled is not None:
                self.on_cancelled(repeat.timeout)
        work.after_commit(lambda: self._report(repeats))

    def _report(self, repeats: Sequence[Repeat], *, is_answered: bool = False) -> None:
        for repeat in repeats:
            event, level, did = _REPORTS[repeat.kind]
            self.telemetry.count(event)
            timeout = repeat.timeout
            is_conflict = repeat.kind is RepeatKind.CONFLICT
            if is_answered and is_conflict and timeout.on_conflict is OnConflict.REPLACE:
                # The sender gets the answer, and may give the message another id.
                level, did = logging.INFO, "found no timeout to replace"
            logger.log(
                level,
                "timeout manager of %s %s: message %.80r, timeout %.80r",
                *(self.store.endpoint, did, timeout.message.id, timeout.id),
                extra={
                    "event": event,
                    "endpoint": self.store.endpoint,
                    "message_id": timeout.message.id,
                    "timeout_id": timeout.id,
                    "destination": timeout.destination,
                },
            )

    def _timeout_of(self, message: Message) -> Timeout:
        order = self._read(message)
        if not isinstance(order, Timeout):
            raise InvalidMessage(
                f"message {message.id!r:.80} is not a timeout; it cannot be stored"
            )
        return order

    def _dispatch_due(self, timeouts: Sequence[Timeout], work: Work) -> list[Timeout]:
        now = self.store.now(transaction=work.scope) if timeouts else 0
        due = [timeout.key for timeout in timeouts if timeout.due <= now]
        if due:
            self.dispatch_now(due, work)
        return [timeout for timeout in timeouts if timeout.due > now]

    def _read(self, message: Message) -> Timeout | ClearTimeouts | Wake:
        if headers.CLEAR_TIMEOUTS in message.headers:
            saga = _saga(message)
            if saga is None:
                raise MessageRejected(
                    "Invalid saga id specified, clear timeouts is only supported for saga instances"
                )
            sent = instant_of(message.headers, headers.TIME_SENT, self.clock.now())
            return ClearTimeouts(saga, sent, _kept(message))
        if headers.WAKE in message.headers:
            return read_wake(message)
        return read_timeout(message, self.store.endpoint, self.limits, self.clock.now())

    def _read_queued(self, message: Message) -> Timeout | ClearTimeouts | Wake:
        order = self._read(message)
        if isinstance(order, Timeout) and order.on_conflict is OnConflict.ERROR:
            # The sender does not wait for an answer: the error queue gets the message instead.
            return replace(order, on_conflict=OnConflict.KEEP)
        return order


def clear_rounds(
    batch: Sequence[Received], orders: Sequence[object], place: Place | None
) -> list[tuple[list[Stored], list[tuple[Received, SagaClear]]]]:
    """Return the timeouts to store, and then the sagas to clear, for each round of *batch*.

    A consumer gets the messages of a batch in the order of the queue; only the order between a
    redelivery and a first delivery is unknown.
    """
    rounds: list[tuple[list[Stored], list[tuple[Received, SagaClear]]]] = [([], [])]
    seen: dict[str, list[tuple[bool, str | None]]] = {}
    for received, order in zip(batch, orders, strict=True):
        if not isinstance(order, Timeout | ClearTimeouts):
            continue
        again = received.delivery_count > 0
        before = seen.setdefault(order.saga_id or "", [])
        clears = [was_again for was_again, timeout_id in before if timeout_id is None]
        while len(rounds) <= len(clears):
            rounds.append(([], []))
        if isinstance(order, ClearTimeouts):
            ahead = (one for was_again, one in before if one and (was_again or not again))
            clear = SagaClear(
                saga_id=order.saga_id,
                order_id=received.message.id,
                sent=order.sent,
                place=_place_of(received, place),
                ahead=frozenset(ahead),
                kept=frozenset(order.kept),
            )
            rounds[len(clears)][1].append((received, clear))
            before.append((again, None))
            continue
        stands = _place_of(received, place)
        if stands is not None and again and any(clears):
            stands = stands._replace(since=stands.at)  # behind an order that was redelivered too
        saga = order.saga_id
        rounds[len(clears) if saga else 0][0].append(
            (received, replace(order, place=stands) if _can_be_cleared(order) else order)
        )
        if saga:
            before.append((again, order.id))
    return rounds


def _can_be_cleared(timeout: Timeout) -> bool:
    """Return whether a bulk cancel, of its saga or of a label, may reach *timeout*."""
    return timeout.saga_id is not None or headers.LABELS in timeout.message.headers


def _place_of(received: Received, place: Place | None) -> Place | None:
    if place is None or not received.delivery_count:
        return place
    return place._replace(since=None)


def read_wake(message: Message) -> Wake:
    """Read *message* as an order to poll; raise MessageRejected for a malformed instant."""
    return Wake(_instant(message, headers.WAKE))


def read_timeout(message: Message, endpoint: str, limits: Limits, now: Micros) -> Timeout:
    """Read *message* as a timeout.

    Raises MessageRejected for a defect that a retry cannot repair: a missing or malformed due time,
    a missing or forbidden destination, a malformed saga id, a size over its limit.
    """
    if headers.EXPIRE not in message.headers:
        raise MessageRejected(
            f"Non timeout message arrived at the timeout manager, id:{message.id:.80}"
        )
    # A header for a timeout manager, or for a delayed message store: either may drain the queue.
    destination = (
        message.headers.get(headers.DESTINATION)
        or message.headers.get(headers.DELAYED_DESTINATION)
        or message.headers.get(headers.REPLY_TO)
    )
    if not destination:
        raise MessageRejected(
            f"timeout {message.id!r:.80} names no destination; expected header "
            f"{headers.DESTINATION!r} or {headers.REPLY_TO!r}"
        )
    if len(message.id) > ID_CHARACTERS:
        raise MessageRejected(f"the message id has more than {ID_CHARACTERS} characters")
    _check_short(message)
    try:
        check_destination(destination, limits, message=message)
        _check_headers(message, limits)
        check_body(message.body, limits)
        due = check_due(_instant(message, headers.EXPIRE))
        check_ahead(due, now + CLOCK_ALLOWANCE, limits)
        if headers.LABELS in message.headers:
            check_labels(message)
    except InvalidMessage as error:
        raise MessageRejected(str(error)) from error
    return Timeout(
        id=id_of_timeout(endpoint, message),
        due=due,
        destination=destination,
        message=_without_routing(message),
        # Its header stays on the message in any case.
        saga_id=None if is_delayed_retry(message.headers) else _saga(message),
        created=instant_of(message.headers, headers.TIME_SENT, now),
        due_given=headers.DELIVER_AT_GIVEN in message.headers,
        on_conflict=_on_conflict(message),
    )


def _on_conflict(message: Message) -> OnConflict:
    given = message.headers.get(headers.ON_CONFLICT)
    if given is None:
        return OnConflict.KEEP
    try:
        asked = OnConflict(given)
    except ValueError as error:
        known = ", ".join(OnConflict)
        raise MessageRejected(
            f"header {headers.ON_CONFLICT!r}: expected {known}; got {given!r:.60}"
        ) from error
    if asked is OnConflict.REPLACE:
        # Only this instant shows the order of two replacements.
        _instant(message, headers.TIME_SENT)
    return asked


def _check_short(message: Message) -> None:
    """Raise MessageRejected if a text of *message* is too long for its column or property."""
    retry = message.headers.get(headers.RETRIES_TIMESTAMP, "")
    texts = (message.id, message.content_type, message.content_encoding, retry)
    together = "".join(texts)
    if len(together) <= SHORT_STRING and together.isascii():
        return  # then each of them is short
    names = (
        "message id",
        "content type",
        "content encoding",
        f"header {headers.RETRIES_TIMESTAMP!r}",
    )
    for what, text in zip(names, texts, strict=True):
        if _bytes_of(text, what) > SHORT_STRING:
            raise MessageRejected(f"the {what} has more than {SHORT_STRING} bytes")


def _bytes_of(text: str, what: str) -> int:
    """Return the bytes of *text* in UTF-8; raise MessageRejected for a lone surrogate."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise MessageRejected(
            f"the {what} {text!r:.80} has half a surrogate pair; no store can keep it"
        ) from error


def _check_headers(message: Message, limits: Limits) -> None:
    """Check the headers that the sender wrote: headers added by routing do not count."""
    try:
        check_headers(message.headers, limits)
    except MessageTooLarge:
        check_headers(_as_sent(message), limits)


def _as_sent(message: Message) -> dict[str, str]:
    sent = dict(message.headers)
    for name in (*_ROUTING, headers.DELIVER_AT):
        sent.pop(name, None)
    return sent


def _without_routing(message: Message) -> Message:
    kept = dict(message.headers)
    for name in _of_routing(tuple(kept)):
        del kept[name]
    kept[headers.DELIVER_AT] = message.headers[headers.EXPIRE]
    return with_headers(message, kept)


@remembers_short(1024)
def _of_routing(names: tuple[str, ...]) -> tuple[str, ...]:
    # Programs use a few sets of headers again and again.
    prefix = headers.PROPERTY_PREFIX
    return tuple(name for name in names if name in _ROUTING or name.startswith(prefix))


def _saga(message: Message) -> str | None:
    saga = message.headers.get(headers.SAGA_ID)
    if saga is None or saga == headers.NO_SAGA:
        return None
    if not 0 < len(saga) <= 200 or not saga.isprintable():
        raise MessageRejected(f"malformed saga id {saga!r:.60}; expected 1 to 200 printable signs")
    return saga


def _kept(message: Message) -> tuple[str, ...]:
    if headers.KEEPS_TIMEOUTS not in message.headers:
        return ()
    try:
        found = json.loads(message.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise MessageRejected(
            f"the order {message.id!r:.80} to clear timeouts has a body that is not a list of "
            "the ids to keep; expected a JSON list of texts"
        )
    return tuple(found)


def _instant(message: Message, name: str) -> Micros:
    try:
        return from_wire(message.headers.get(name, ""))
    except ValueError as error:
        raise MessageRejected(f"header {name!r}: {error}") from error

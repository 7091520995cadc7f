"""Cancels of many timeouts: orders to clear a saga, and cancels by a label.

An order acts by its place in the manager's queue. A cancel by a label comes by no queue: the time
of sending decides whether it reaches a message that is stored later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from timeoutmgr.contracts.stores import CancelResult
from timeoutmgr.contracts.timeouts import Place, Timeout, TimeoutFilter
from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.labels import labels_of

REMEMBERED: Final[Micros] = 24 * 3_600_000_000
"""Microseconds for which a store remembers a clear, for messages that a consumer has in hand."""
LONG_REMEMBERED: Final[Micros] = 7 * REMEMBERED
"""Microseconds for which a store remembers a cancel of many, for messages that wait in a queue."""
_BY_SENDING: Final = "\n"
"""Begins the name of a cancel that goes by the time of sending: no saga id has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaClear:
    """An order to cancel the timeouts of a saga that stand ahead of it in the manager's queue.

    *order_id* is the id of its message, *sent* the time at which that message was sent. *ahead* are
    ids of timeouts that certainly stand ahead, *kept* ids of timeouts that stay in any case.
    *channel* names the origin of the order in the history.
    """

    saga_id: str
    order_id: str
    sent: Micros
    place: Place | None = None
    ahead: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    channel: str | None = None

    def reaches(self, timeout_id: str, created: Micros, place: Place | None) -> bool:
        """Return whether a stored timeout of the saga stood ahead of the order.

        The time of sending decides if another consumer may have stored the timeout while this order
        was in hand, if the order was delivered before, and for timeouts that came by no queue.
        """
        if timeout_id in self.kept:
            return False
        if timeout_id in self.ahead or created <= self.sent:
            return True
        if place is None or self.place is None or self.place.since is None:
            return False
        return place.receiver == self.place.receiver or place.at < self.place.since


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """The memory of a saga's clears: the last order, and the instant *at* which it was handled.

    *order_id* is None until the order is carried out in full. *receiver* handled it.
    """

    order_id: str | None
    at: Micros
    sent: Micros
    receiver: int | None = None
    kept: frozenset[str] = frozenset()
    channel: str | None = None

    def reaches(self, timeout: Timeout) -> bool:
        """Return whether *timeout*, which arrives now, stood ahead of the order.

        A first delivery by the consumer of the order, or since the order was handled, stood behind
        it. Otherwise a consumer had the timeout in hand then: the time of sending decides.
        """
        place = timeout.place
        if place is None or timeout.id in self.kept:
            return False
        is_first = place.since is not None
        if is_first and (place.receiver == self.receiver or place.since > self.at):  # type: ignore[operator]  # is_first
            return False
        return timeout.created <= self.sent


def remembered(
    before: Cleared | None, order: SagaClear, at: Micros, *, is_complete: bool
) -> Cleared:
    """Return the memory of a saga whose memory was *before*, once *order* is handled at *at*."""
    sent, kept = order.sent, order.kept
    if before is not None and before.sent > sent:  # an older order: its clock, or a redelivery
        sent, kept = before.sent, kept | before.kept
    return Cleared(
        order_id=order.order_id if is_complete else None,
        at=at,
        sent=sent,
        receiver=None if order.place is None else order.place.receiver,
        kept=kept,
        channel=order.channel,
    )


@runtime_checkable
class ClearsInOrder(Protocol):
    """A store that clears sagas by the order of the manager's queue; no store needs to.

    ``store_many`` of such a store cancels a timeout on arrival, as a Repeat of the kind CANCELLED,
    if a remembered clear reaches it (``Cleared.reaches``). Of a clear and a concurrent
    ``store_many`` one sees the other's outcome. Without this ability the step that stores timeouts
    calls ``cancel_saga``, and only the time of sending decides.
    """

    def await_clears(self, transaction: Transaction) -> None:
        """Wait until *transaction* may clear sagas, before it stores timeouts of sagas."""
        ...

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        """Cancel the timeouts that *order* reaches and no dispatcher has locked; return their ids.

        Remember the order for REMEMBERED. An order that is remembered as complete does nothing.
        """
        ...


# --- cancels that come by no queue ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A stored timeout that a cancel met, and its effect: CANCELLED, MAYBE_SENT or TOO_LATE.

    The *timeout* comes without the body of its message: hundreds would fill the memory.
    """

    timeout: Timeout
    result: CancelResult


@runtime_checkable
class FindsByLabels(Protocol):
    """A store that finds timeouts by the labels of their messages; no store needs to.

    Each of its queries obeys ``TimeoutFilter.labels``. A message without labels costs no row and no
    query. ``store_many`` cancels a timeout with a *place* on arrival, as a Repeat of the kind
    CANCELLED, if a remembered cancel reaches it (``reaching``): so a cancel holds for messages
    that wait in the manager's queue. Of a cancel and a concurrent ``store_many`` one sees the
    other's outcome.
    """

    def cancel_where(
        self, which: TimeoutFilter, *, sent_until: Micros, channel: str | None = None
    ) -> Sequence[Cancelled]:
        """Cancel the stored timeouts of one label, or of one saga; return those that were met.

        Timeouts that are TOO_LATE stay with their dispatcher. For LONG_REMEMBERED the cancel
        reaches messages that are stored later and were sent until *sent_until*. Five hundred
        timeouts share a commit: after a crash the same call does the rest. Raises ValueError for
        any other filter, see ``memory_of``.
        """
        ...


def memory_of(which: TimeoutFilter) -> str:
    """Return the name under which a store remembers the cancel of *which*.

    Raises ValueError unless *which* names one label, or one saga, and nothing else.
    """
    if which == TimeoutFilter(labels=which.labels) and len(which.labels) == 1:
        return _BY_SENDING + which.labels[0]
    if which == TimeoutFilter(saga_id=which.saga_id) and which.saga_id:
        return _memory_of_saga(which.saga_id)
    raise ValueError(f"a cancel of many names one label or one saga, got {which!r:.200}")


def remembered_from(now: Micros) -> Micros:
    """Return the instant from which a cancel of *now* is remembered as long as an order."""
    return now + LONG_REMEMBERED - REMEMBERED


def memories_of(timeout: Timeout) -> list[str]:
    """Return the names under which a store remembers cancels of many that may reach *timeout*."""
    names = [_BY_SENDING + label for label in labels_of(timeout.message)]
    if timeout.saga_id is not None:
        names += [timeout.saga_id, _memory_of_saga(timeout.saga_id)]
    return names


def _memory_of_saga(saga_id: str) -> str:
    # Stores keep 255 characters; sagas with messages that arrive by a queue have 200 at most.
    return f"{_BY_SENDING}{_BY_SENDING}{saga_id}"[:255]


def reaching(timeout: Timeout, memory: Mapping[str, Cleared]) -> Cleared | None:
    """Return the cancel in *memory*, by the names of ``memories_of``, that reaches *timeout*.

    It arrives now. A timeout without a place came by no queue, in which it could have waited.
    """
    if timeout.place is None:
        return None
    found = ((name, memory.get(name)) for name in memories_of(timeout))
    for name, cleared in found:
        if cleared is None:
            continue
        is_sent_before = timeout.created <= cleared.sent
        if is_sent_before if name.startswith(_BY_SENDING) else cleared.reaches(timeout):
            return cleared
    return None

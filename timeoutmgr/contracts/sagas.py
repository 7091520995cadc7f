"""Bulk cancels: orders to clear a saga, and cancels by a label.

The place of an order in the manager's queue decides which timeouts it cancels. A cancel by a label
comes by no queue: the time of sending decides whether it reaches a message stored later.
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
"""Microseconds for which a store remembers a clear, for messages that a consumer has received."""
LONG_REMEMBERED: Final[Micros] = 7 * REMEMBERED
"""Microseconds for which a store remembers a bulk cancel, for messages that wait in a queue."""
_BY_SENDING: Final = "\n"
"""Prefix of the name of a cancel by the time of sending; no saga id has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaClear:
    """An order to cancel the timeouts of a saga that are ahead of it in the manager's queue.

    *order_id* is the id of its message, and *sent* the time at which that message was sent. *ahead*
    are ids of timeouts that are certainly ahead; *kept* are ids of timeouts that stay in any case.
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
        """Return whether a stored timeout of the saga was ahead of the order.

        The time of sending decides if another consumer may have stored the timeout during the
        handling of the order, if the order was delivered before, or if the timeout came by no
        queue.
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
    """Record of a saga's clears: the last order, and the instant *at* which it was handled.

    *order_id* is None until the order is carried out in full. *receiver* handled it.
    """

    order_id: str | None
    at: Micros
    sent: Micros
    receiver: int | None = None
    kept: frozenset[str] = frozenset()
    channel: str | None = None

    def reaches(self, timeout: Timeout) -> bool:
        """Return whether *timeout*, which arrives now, was ahead of the order.

        A first delivery was behind the order if the same consumer received it, or if it came after
        the order was handled. Otherwise a consumer may already have had the timeout at that time,
        so the time of sending decides.
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
    """Return the record that replaces *before* once *order* is handled at *at*."""
    sent, kept = order.sent, order.kept
    if before is not None and before.sent > sent:  # an older order: a clock, or a redelivery
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
    """A store that clears sagas in the order of the manager's queue; no store needs to.

    If a remembered clear reaches a timeout (``Cleared.reaches``), ``store_many`` cancels the
    timeout on arrival and returns a Repeat of the kind CANCELLED. If a clear and a ``store_many``
    run concurrently, the second sees the outcome of the first. With any other store the step that
    stores timeouts calls ``cancel_saga``, and only the time of sending decides.
    """

    def await_clears(self, transaction: Transaction) -> None:
        """Wait until *transaction* may clear sagas; call it before storing timeouts of sagas."""
        ...

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        """Cancel the timeouts that *order* reaches and no dispatcher has locked; return their ids.

        Remember the order for REMEMBERED. If it is remembered as complete, do nothing.
        """
        ...


# --- cancels that do not come through a queue -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A stored timeout that a cancel found, and the effect: CANCELLED, MAYBE_SENT or TOO_LATE.

    The *timeout* has no message body: hundreds of bodies could fill the memory.
    """

    timeout: Timeout
    result: CancelResult


@runtime_checkable
class FindsByLabels(Protocol):
    """A store that finds timeouts by the labels of their messages; no store needs to.

    All its queries support ``TimeoutFilter.labels``. A message without labels costs no row and no
    query. If a remembered cancel reaches a timeout with a *place* (``reaching``), ``store_many``
    cancels the timeout on arrival and returns a Repeat of the kind CANCELLED. So a cancel also
    applies to messages that wait in the manager's queue. If a cancel and a ``store_many`` run
    concurrently, the second sees the outcome of the first.
    """

    def cancel_where(
        self, which: TimeoutFilter, *, sent_until: Micros, channel: str | None = None
    ) -> Sequence[Cancelled]:
        """Cancel the stored timeouts of a label or of a saga; return all timeouts that were found.

        Timeouts that are TOO_LATE stay with their dispatcher. For LONG_REMEMBERED the cancel
        reaches messages that are stored later and were sent until *sent_until*. Each commit covers
        up to five hundred timeouts; after a crash, the same call does the rest. Raises ValueError
        for any other filter, see ``memory_of``.
        """
        ...


def memory_of(which: TimeoutFilter) -> str:
    """Return the name under which a store remembers a cancel by the filter *which*.

    Raises ValueError unless *which* names exactly one label or one saga.
    """
    if which == TimeoutFilter(labels=which.labels) and len(which.labels) == 1:
        return _BY_SENDING + which.labels[0]
    if which == TimeoutFilter(saga_id=which.saga_id) and which.saga_id:
        return _memory_of_saga(which.saga_id)
    raise ValueError(f"a cancel of many names one label or one saga, got {which!r:.200}")


def remembered_from(now: Micros) -> Micros:
    """Return an instant from which REMEMBERED lasts as long as LONG_REMEMBERED from *now*."""
    return now + LONG_REMEMBERED - REMEMBERED


def memories_of(timeout: Timeout) -> list[str]:
    """Return the names under which a store remembers bulk cancels that may reach *timeout*."""
    names = [_BY_SENDING + label for label in labels_of(timeout.message)]
    if timeout.saga_id is not None:
        names += [timeout.saga_id, _memory_of_saga(timeout.saga_id)]
    return names


def _memory_of_saga(saga_id: str) -> str:
    # Stores keep 255 characters; saga ids of messages that arrive by a queue have at most 200.
    return f"{_BY_SENDING}{_BY_SENDING}{saga_id}"[:255]


def reaching(timeout: Timeout, memory: Mapping[str, Cleared]) -> Cleared | None:
    """Return the cancel in *memory*, by the names of ``memories_of``, that reaches *timeout*.

    The timeout arrives now. Without a place it did not wait in a queue, so no cancel reaches it.
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

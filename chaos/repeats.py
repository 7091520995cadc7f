"""Repeats among the deliveries, and the faults that explain them. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chaos.consumer_ledger import Delivery
from chaos.incidents import Incident
from chaos.producer_ledger import Promise
from timeoutmgr.message.instants import Micros

SLACK: Final[Micros] = 250_000
"""Tolerance between two records of the same moment: a process that was asked to stop runs on
for a moment, and the store's clock is compared with this host's only at the begin."""


def again_of(
    deliveries: Sequence[Delivery], exactly_once: bool = False
) -> list[tuple[Delivery, Delivery]]:
    """Return each delivery of a message except the first, with its predecessor.

    Redeliveries by the consumer's broker are left out: the same dispatch, marked as redelivered.
    With *exactly_once* a ledger row is in the message's transaction: no redelivery leaves a row.
    """
    ordered = sorted(deliveries, key=lambda one: (one.dispatched_at, one.received_at))
    return [
        (first, second)
        for first, second in pairwise(ordered)
        if exactly_once or not (_dispatch(first) == _dispatch(second) and _redelivered(second))
    ]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Explanations of repeats; *by_name* has all deliveries of each message."""

    promises: Mapping[str, Promise]
    by_name: Mapping[str, Sequence[Delivery]]
    incidents: Sequence[Incident]
    clock_offset: Micros

    def is_explained(self, first: Delivery, again: Delivery) -> bool:
        """Return whether a fault concerned either sender between the two dispatches.

        The second sender counts too: it may have paused with the locked row while the first sent.
        """
        begin, end = self._sent(first) - SLACK, self._sent(again) + SLACK
        hands = {first.sent_by, again.sent_by}
        if _dispatch(first) == _dispatch(again):
            end = again.received_at
            if first.received_by == again.received_by:
                # The receiver failed to send the message on, and tried again.
                hands.add(first.received_by)
        if self._befell(hands, begin, end):
            return True
        promise = self.promises.get(first.name)
        return promise is not None and promise.natively and self._was_sent_twice(promise, end)

    def _was_sent_twice(self, promise: Promise, end: Micros) -> bool:
        """Return whether its sender had to send it twice: delay levels recognise no id.

        A message that arrived twice is sent on twice; the judge tests its first repeat separately.
        """
        if promise.after is None:
            return bool(promise.unclear) and self._befell([promise.by], promise.since, end)
        came = self.by_name.get(promise.after, ())
        if again_of(came):
            return True
        begin = min((one.received_at for one in came), default=end) - SLACK
        return len(came) > 1 and self._befell([one.received_by for one in came], begin, end)

    def _befell(self, processes: Iterable[str], begin: Micros, end: Micros) -> bool:
        concerned = tuple(processes)
        return any(
            incident.concerns(*concerned) and incident.overlaps(begin, end)
            for incident in self.incidents
        )

    def _sent(self, delivery: Delivery) -> Micros:
        """Return the time of its send by this host's clock."""
        if delivery.through_levels:
            return delivery.dispatched_at
        return delivery.dispatched_at - self.clock_offset


def _dispatch(delivery: Delivery) -> tuple[str, Micros]:
    return delivery.sent_by, delivery.dispatched_at


def _redelivered(delivery: Delivery) -> bool:
    return delivery.redelivered > 0

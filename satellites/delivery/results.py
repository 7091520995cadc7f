"""The results of a sent batch: confirmed, undeliverable, or to be tried again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from timeoutmgr.contracts import SendResult, Timeout
from timeoutmgr.errors import DeliveryFailed, InvalidMessage, Unroutable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.delivery_policy import Undeliverable
from timeoutmgr.transport.error_queue import SendAnswer


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """A batch by the results of its sends, in its order.

    *settled* messages are undeliverable and need nothing more; *postponed* messages are
    undeliverable too, and stay stored until there is a place for them.
    """

    confirmed: list[Timeout] = field(default_factory=list)
    failed: list[Undeliverable] = field(default_factory=list)
    again: list[tuple[Timeout, SendAnswer]] = field(default_factory=list)
    settled: list[Undeliverable] = field(default_factory=list)
    postponed: list[Undeliverable] = field(default_factory=list)


def classify_results(
    timeouts: Sequence[Timeout],
    outgoing: Sequence[Outgoing],
    results: Sequence[SendAnswer],
    attempts: int,
) -> SendOutcome:
    """Sort *timeouts*, sent as *outgoing*, by their *results*.

    A message without a destination, or that no transport can carry, is undeliverable at once; a
    refused message is at the last of *attempts*. A message without an answer may have arrived: it
    is tried again, however often.
    """
    found = SendOutcome()
    for timeout, sent, result in zip(timeouts, outgoing, results, strict=True):
        if result is SendResult.CONFIRMED:
            found.confirmed.append(timeout)
        elif isinstance(result, InvalidMessage):
            found.failed.append(Undeliverable(timeout, sent.message, result))
        elif result is SendResult.UNROUTABLE:
            error = Unroutable(timeout.destination)
            found.failed.append(Undeliverable(timeout, sent.message, error))
        elif result is SendResult.REFUSED and timeout.attempts + 1 >= attempts:
            refused = DeliveryFailed(
                f"queue {timeout.destination!r:.80} did not take the message in {attempts} "
                "attempts, and refused the last; is it full?"
            )
            found.failed.append(Undeliverable(timeout, sent.message, refused))
        else:
            found.again.append((timeout, result))
    return found

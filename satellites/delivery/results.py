"""What became of a batch that was sent: taken, undeliverable for good, or to be tried again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from timeoutmgr.contracts import SendResult, Timeout
from timeoutmgr.errors import DeliveryFailed, InvalidMessage, Unroutable
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.error_queue import SendAnswer

from .undeliverable import Undeliverable


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """A batch by what became of each, in its order.

    *dead* has left a dead letter; *later* is to leave one, for which there is no place now.
    """

    taken: list[Timeout] = field(default_factory=list)
    failed: list[Undeliverable] = field(default_factory=list)
    again: list[tuple[Timeout, SendAnswer]] = field(default_factory=list)
    dead: list[Undeliverable] = field(default_factory=list)
    later: list[Undeliverable] = field(default_factory=list)


def classify_results(
    timeouts: Sequence[Timeout],
    outgoing: Sequence[Outgoing],
    results: Sequence[SendAnswer],
    attempts: int,
) -> SendOutcome:
    """Sort *timeouts*, sent as *outgoing*, by their *results*.

    What no transport can carry and what has no destination is undeliverable at once; what was
    refused, at the last of *attempts*. Where no answer came nothing is known, and it is to be
    tried again however often.
    """
    found = SendOutcome()
    for timeout, sent, result in zip(timeouts, outgoing, results, strict=True):
        if result is SendResult.CONFIRMED:
            found.taken.append(timeout)
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

"""Messages whose handler failed: promises about the error queue, and about effects. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.consumer_ledger import Delivery
from chaos.producer_ledger import Fate, Promise
from chaos.repeats import Repeats, again_of

ABSENT: Final = "in no error queue although the handler always fails"
CAUSELESS: Final = "in the error queue without a cause"
EFFECTS: Final = "with an effect of a handler that always fails"
TWICE_IN_ERRORS: Final = "twice in the error queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledCounts:
    """How the consumer handled its messages.

    *batches* counts transactions, or acknowledgements, of at least two messages;
    *with_a_failure* are the batches in which a message failed and a neighbour did not. *awaited*
    messages were handled by coroutines, *at_once* is the most coroutines that ran at a time.
    """

    batches: int = 0
    largest: int = 0
    with_a_failure: int = 0
    awaited: int = 0
    at_once: int = 0
    failures: int = 0
    in_errors: int = 0

    def __str__(self) -> str:
        return (
            f"{self.batches} batches of up to {self.largest} messages, {self.with_a_failure} of "
            f"them with a failure; {self.awaited} handled by coroutines, up to {self.at_once} at "
            f"once; {self.failures} failed attempts, {self.in_errors} in the error queue"
        )


def handled_counts(
    deliveries: Sequence[Delivery], failures: Sequence[Delivery], errors: Sequence[Delivery]
) -> HandledCounts:
    """Count batches and coroutines."""
    done = Counter(one.batch for one in deliveries if one.batch)
    failed = Counter(one.batch for one in failures if one.batch)
    sizes = {batch: count + failed[batch] for batch, count in done.items()}
    return HandledCounts(
        batches=sum(size > 1 for size in sizes.values()),
        largest=max(sizes.values(), default=0),
        with_a_failure=len(done.keys() & failed.keys()),
        awaited=sum(one.at_once > 0 for one in deliveries),
        at_once=max((one.at_once for one in deliveries), default=0),
        failures=len(failures),
        in_errors=len(errors),
    )


def broken_by_failures(
    promises: Mapping[str, Promise],
    delivered: Collection[str],
    errors: Sequence[Delivery],
    repeats: Repeats | None,
) -> dict[str, set[str]]:
    """Return the messages of each broken promise; without *repeats* no repeat is allowed.

    A message whose handler always fails has to be in the error queue once, without an effect.
    """
    copies: dict[str, list[Delivery]] = defaultdict(list)
    for one in errors:
        copies[one.name].append(one)
    always = {name for name, promise in promises.items() if promise.fails}
    due_there = {name for name in always if promises[name].fate is Fate.FAILED}
    return {
        ABSENT: due_there - copies.keys(),
        CAUSELESS: copies.keys() - always,
        EFFECTS: always.intersection(delivered),
        TWICE_IN_ERRORS: {
            name
            for name, found in copies.items()
            for pair in again_of(found, exactly_once=repeats is None)
            if repeats is None or not repeats.is_explained(*pair)
        },
    }

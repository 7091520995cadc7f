"""Runs of our worker that several programs measure."""

import time

from . import pending
from .destination import Destination
from .figures import Sample, say
from .messages import SECOND, delayed, fill, micros
from .workers import Spec, Worker

SETTLE, SETTLE_FEW = 3.0, 1.0
"""Seconds between the last store and the due instant, for many and for few messages."""


def dispatched(spec: Spec, count: int) -> Sample:
    """Load *count* due timeouts; measure a new worker from its first chunk to its last."""
    pending.clear(spec.persistence)
    load_due(spec, count)
    with Worker(spec) as worker:
        return worker.measure("timeouts_dispatched", count)


def load_due(spec: Spec, count: int) -> None:
    """Insert *count* timeouts into PostgreSQL, due within half a second that began a second ago."""
    due = pending.Pending(
        endpoint=spec.name,
        destination=spec.destination,
        count=count,
        due=micros() - SECOND,
        over=SECOND // 2,
    )
    pending.load(spec.persistence, due)


def drained(spec: Spec, count: int, *, pace: float = 3000) -> Sample:
    """Send *count* messages due at one instant; measure from then until the last has arrived."""
    with (
        Worker(spec) as worker,
        Destination(spec.transport, spec.destination, count) as destination,
    ):
        began = time.monotonic()
        settle = SETTLE if count > 5_000 else SETTLE_FEW
        due = micros() + round((count / pace + settle) * SECOND)
        fill(spec.transport, [delayed(spec.name, spec.destination, due) for _ in range(count)])
        worker.measure("timeouts_stored", count)
        late = micros() > due
        took = time.monotonic() - began
        arrivals = destination.arrivals()
        ours = worker.measure("timeouts_dispatched", count)
    if late:
        say(f"accepting {count} took {took:.1f} s: too slow, once more with more time")
        return drained(spec, count, pace=pace / 2)
    assert arrivals.lateness()[0] >= 0, "some were early"
    assert not arrivals.repeats, f"{arrivals.repeats} repeats"
    return Sample(count, (arrivals.last - due) / SECOND, ours.cpu / ours.count * count)

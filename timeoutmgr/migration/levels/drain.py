"""The steps and the loop of a migration out of delay levels.

Nothing is hidden: a message in hand is out of everybody's sight, and goes back by itself when the
hand is gone. Order of each chunk: take it durably, then acknowledge. A crash in between brings it
back; a store knows it then, levels get it once more under the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration.levels import MOST_HELD, LevelsOrigin
from timeoutmgr.migration.ports import Ledger, Target
from timeoutmgr.migration.report import Report, report
from timeoutmgr.migration.runs import Batch, Delivered, Run
from timeoutmgr.migration.sinks import InHand, Sink, part
from timeoutmgr.migration.states import BatchState, RunState
from timeoutmgr.transport.relay import Relay, Relayed

CHUNK: Final = 1_000
_WAIT: Final = 0.2
"""Seconds without a message after which it is looked whether a level is empty."""
_LAST_WAIT: Final = 0.5
"""Seconds that are waited once more where none is left; others' messages in hand wait with us."""
_LOOKS: Final = 50
"""How often that is done before a run gives up."""

OnBatch = Callable[[Batch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainParts:
    """Levels, what takes their messages, and a ledger; *runner* names the process that works.

    *clock* is this host's.
    """

    source: LevelsOrigin
    sink: Sink
    ledger: Ledger
    runner: str
    chunk: int = CHUNK
    clock: Clock = field(default_factory=SystemClock)

    @property
    def target(self) -> Target:
        """Where the sink puts them."""
        return self.sink.target

    def close(self) -> None:
        """Say that this process works no more, and let go of all."""
        self.ledger.give_up(self.runner)
        self.source.close()
        self.target.close()


def drain(parts: DrainParts, run: Run, on_batch: OnBatch = lambda _batch: None) -> Report:
    """Empty every level, the longest first; verify, and save the report."""
    for batch in parts.ledger.batches(run.id):
        if batch.state is not BatchState.DONE:
            on_batch(drain_level(parts, run, batch))
    made = report(parts.ledger, run, RunState.COMPLETED)
    if not made.verified:
        raise MigrationFailed(f"run {run.id}: the counts do not agree: {made.document()}")
    parts.target.shut(run.id)
    reach("draining.shut")
    parts.ledger.move_run(run.id, RunState.COMPLETED, report=made.document())
    reach("draining.completed")
    return made


def drain_level(parts: DrainParts, run: Run, batch: Batch) -> Batch:
    """Take all messages of one level that can be taken; return what became of them."""
    resumed = batch.state is BatchState.SENDING
    batch = _begin(parts, run, batch)
    waiting = parts.source.waiting(batch)
    if waiting:
        with parts.source.opened(batch) as relay:
            batch = _empty(parts, run, batch, relay, waiting, resumed=resumed)
    done = replace(batch, state=BatchState.DONE)
    parts.ledger.move_batch(run.id, done)
    reach("draining.drained")
    return done


def abort_drain(parts: DrainParts, run: Run) -> Report:
    """Leave in the levels what is there, but for what the target has as well."""
    parts.ledger.move_run(run.id, RunState.ABORTING)
    reach("draining.aborting")
    parts.target.shut(run.id)
    reach("draining.shut_for_good")
    for batch in parts.ledger.batches(run.id):
        if batch.state is not BatchState.DONE and parts.target.knows_what_it_has:
            sweep(parts, batch)
        if batch.state.is_open:
            parts.ledger.move_batch(run.id, replace(batch, state=BatchState.RETURNED))
            reach("draining.returned")
    made = report(parts.ledger, run, RunState.ABORTED)
    parts.ledger.move_run(run.id, RunState.ABORTED, report=made.document())
    reach("draining.aborted")
    return made


def sweep(parts: DrainParts, batch: Batch) -> None:
    """Take out of a level what the target has: a chunk that a crash has left in both.

    All of the level is looked at: what falls into it from a longer one stands behind.
    """
    left = min(parts.source.waiting(batch), MOST_HELD)
    if not left:
        return
    with parts.source.opened(batch) as relay:
        while left > 0 and (chunk := _received(parts, batch, relay, left)):
            left -= len(chunk)
            hands, _unfit = part(chunk, parts.source.renames, parts.sink, parts.source.sender)
            relay.ack([one.relayed for one in parts.sink.has(hands)])
            reach("draining.swept")


def _received(parts: DrainParts, batch: Batch, relay: Relay, left: int) -> list[Relayed]:
    """Return the next chunk; none only where the level holds no more that others may take.

    That nothing came does not say that nothing is there: a broker may be slow, and so may the way
    to here for what it has handed out already.
    """
    limit, wait = min(parts.chunk, left), _WAIT
    for _look in range(_LOOKS):
        chunk = relay.receive(limit, wait)
        if chunk or wait == _LAST_WAIT:
            return chunk
        if not parts.source.waiting(batch):
            wait = _LAST_WAIT
    raise MigrationFailed(
        f"the broker hands out nothing of {batch.range.first.id}, where messages wait; run again"
    )


def _empty(
    parts: DrainParts, run: Run, batch: Batch, relay: Relay, left: int, *, resumed: bool
) -> Batch:
    """Take the *left* messages of a level, chunk by chunk; return the batch with its counts."""
    held = 0
    while left > 0:
        chunk = _received(parts, batch, relay, left)
        if not chunk:
            break
        left -= len(chunk)
        hands, unfit = part(chunk, parts.source.renames, parts.sink, parts.source.sender)
        held += len(chunk) - len(hands)
        if held + parts.chunk > MOST_HELD:
            raise MigrationFailed(
                f"run {run.id}: {held} messages of {batch.range.first.id} are others' or "
                "unreadable, and no more can be passed over; take all senders' messages"
            )
        delivered = _take(parts, run, batch, relay, hands)
        reach("draining.delivered")
        relay.ack([one.relayed for one in hands])
        reach("draining.acked")
        repeats = len(hands) if resumed and not parts.target.knows_what_it_has else 0
        resumed = False  # a crash leaves one chunk in doubt, and it comes first
        batch = replace(
            batch,
            taken=batch.taken + len(hands) + unfit,
            new=batch.new + delivered.new,
            known=batch.known + delivered.known,
            returned=batch.returned + unfit,
            repeated=batch.repeated + repeats,
        )
        parts.ledger.move_batch(run.id, batch)
        reach("draining.counted")
    return batch


def _take(
    parts: DrainParts, run: Run, batch: Batch, relay: Relay, hands: Sequence[InHand]
) -> Delivered:
    if not hands:
        return Delivered(0)
    delivered = parts.sink.take(run.id, batch, relay, hands)
    if delivered.total != len(hands):
        raise MigrationFailed(
            f"run {run.id}: of {len(hands)} messages of {batch.range.first.id} the target has "
            f"{delivered.total}; nothing was acknowledged. Run again"
        )
    return delivered


def _begin(parts: DrainParts, run: Run, batch: Batch) -> Batch:
    for state in (BatchState.HIDDEN, BatchState.SENDING):
        if batch.state is not BatchState.SENDING:
            batch = replace(batch, state=state)
            parts.ledger.move_batch(run.id, batch)
            reach("draining.begun")
    return batch

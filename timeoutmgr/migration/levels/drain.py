"""The steps and the loop of a migration out of delay levels.

Nothing is hidden: an unacknowledged message is invisible to other consumers, and returns to the
level when its connection ends. Order of each chunk: store or publish it, then acknowledge. After a
crash in between the messages return; a store knows their ids, levels get them once more under the
same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration.levels.origin import MOST_HELD, LevelsOrigin
from timeoutmgr.migration.levels.sinks import LevelMessage, Sink, part
from timeoutmgr.migration.ports import MigrationLedger, Target
from timeoutmgr.migration.report import Report, report
from timeoutmgr.migration.runs import Batch, Delivered, MigrationRun
from timeoutmgr.migration.states import BatchState, MigrationRunState
from timeoutmgr.transport.amqp.relay import Relay, Relayed

CHUNK: Final = 1_000
_WAIT: Final = 0.2
"""Seconds without a message after which the count of a level is read."""
_LAST_WAIT: Final = 0.5
"""Seconds of a last wait if no message is left; unacknowledged messages of others may return."""
_MOST_TRIES: Final = 50
"""Receive attempts before a run fails."""

OnBatch = Callable[[Batch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainParticipants:
    """Levels, the sink of their messages, and a ledger, with the loops of a run between them.

    *runner* names the process that works; *clock* is the clock of this host.
    """

    source: LevelsOrigin
    sink: Sink
    ledger: MigrationLedger
    runner: str
    chunk: int = CHUNK
    clock: Clock = field(default_factory=SystemClock)

    @property
    def target(self) -> Target:
        """Where the sink puts them."""
        return self.sink.target

    def close(self) -> None:
        """Release the run, then close source and target."""
        self.ledger.release(self.runner)
        self.source.close()
        self.target.close()

    def migrate(self, run: MigrationRun, on_batch: OnBatch = lambda _batch: None) -> Report:
        """Empty every level, the longest first; verify, and save the report."""
        for batch in self.ledger.batches(run.id):
            if batch.state is not BatchState.DONE:
                on_batch(drain_level(self, run, batch))
        made = report(self.ledger, run, MigrationRunState.COMPLETED)
        if not made.verified:
            raise MigrationFailed(f"run {run.id}: the counts do not agree: {made.document()}")
        self.target.shut(run.id)
        reach("draining.shut")
        self.ledger.move_run(run.id, MigrationRunState.COMPLETED, report=made.document())
        reach("draining.completed")
        return made

    def abort(self, run: MigrationRun) -> Report:
        """Leave the messages in the levels, except for messages that the target has as well."""
        self.ledger.move_run(run.id, MigrationRunState.ABORTING)
        reach("draining.aborting")
        self.target.shut(run.id)
        reach("draining.shut_for_good")
        for batch in self.ledger.batches(run.id):
            if batch.state is not BatchState.DONE and self.target.knows_what_it_has:
                sweep(self, batch)
            if batch.state.is_open:
                self.ledger.move_batch(run.id, replace(batch, state=BatchState.RETURNED))
                reach("draining.returned")
        made = report(self.ledger, run, MigrationRunState.ABORTED)
        self.ledger.move_run(run.id, MigrationRunState.ABORTED, report=made.document())
        reach("draining.aborted")
        return made


def drain_level(parts: DrainParticipants, run: MigrationRun, batch: Batch) -> Batch:
    """Move all fit messages of one level; return the batch with its counts."""
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


def sweep(parts: DrainParticipants, batch: Batch) -> None:
    """Remove from a level the messages that the target has: a chunk that a crash left in both.

    The whole level is read: messages that fall into it from a longer level stand behind.
    """
    left = min(parts.source.waiting(batch), MOST_HELD)
    if not left:
        return
    with parts.source.opened(batch) as relay:
        while left > 0 and (chunk := _received(parts, batch, relay, left)):
            left -= len(chunk)
            messages, _unfit = part(chunk, parts.source.renames, parts.sink, parts.source.sender)
            relay.ack([one.relayed for one in parts.sink.has(messages)])
            reach("draining.swept")


def _received(parts: DrainParticipants, batch: Batch, relay: Relay, left: int) -> list[Relayed]:
    """Return the next chunk; an empty chunk only if no deliverable message is left in the level.

    A receive without a message does not prove an empty level: the broker or the network may be
    slow.
    """
    limit, wait = min(parts.chunk, left), _WAIT
    for _attempt in range(_MOST_TRIES):
        chunk = relay.receive(limit, wait)
        if chunk or wait == _LAST_WAIT:
            return chunk
        if not parts.source.waiting(batch):
            wait = _LAST_WAIT
    raise MigrationFailed(
        f"the broker hands out nothing of {batch.range.first.id}, where messages wait; run again"
    )


def _empty(
    parts: DrainParticipants,
    run: MigrationRun,
    batch: Batch,
    relay: Relay,
    left: int,
    *,
    resumed: bool,
) -> Batch:
    """Take the *left* messages of a level, chunk by chunk; return the batch with its counts."""
    held = 0
    while left > 0:
        chunk = _received(parts, batch, relay, left)
        if not chunk:
            break
        left -= len(chunk)
        messages, unfit = part(chunk, parts.source.renames, parts.sink, parts.source.sender)
        held += len(chunk) - len(messages)
        if held + parts.chunk > MOST_HELD:
            raise MigrationFailed(
                f"run {run.id}: {held} messages of {batch.range.first.id} belong to "
                "other senders or are unreadable, and the limit is reached; use --all-senders"
            )
        delivered = _accept(parts, run, batch, relay, messages)
        reach("draining.delivered")
        relay.ack([one.relayed for one in messages])
        reach("draining.acked")
        repeats = len(messages) if resumed and not parts.target.knows_what_it_has else 0
        resumed = False  # a crash leaves one chunk in doubt, and it comes first
        batch = replace(
            batch,
            collected=batch.collected + len(messages) + unfit,
            new=batch.new + delivered.new,
            known=batch.known + delivered.known,
            returned=batch.returned + unfit,
            repeated=batch.repeated + repeats,
        )
        parts.ledger.move_batch(run.id, batch)
        reach("draining.counted")
    return batch


def _accept(
    parts: DrainParticipants,
    run: MigrationRun,
    batch: Batch,
    relay: Relay,
    messages: Sequence[LevelMessage],
) -> Delivered:
    if not messages:
        return Delivered(0)
    delivered = parts.sink.accept(run.id, batch, relay, messages)
    if delivered.total != len(messages):
        raise MigrationFailed(
            f"run {run.id}: of {len(messages)} messages of {batch.range.first.id} the target has "
            f"{delivered.total}; nothing was acknowledged. Run again"
        )
    return delivered


def _begin(parts: DrainParticipants, run: MigrationRun, batch: Batch) -> Batch:
    for state in (BatchState.HIDDEN, BatchState.SENDING):
        if batch.state is not BatchState.SENDING:
            batch = replace(batch, state=state)
            parts.ledger.move_batch(run.id, batch)
            reach("draining.begun")
    return batch

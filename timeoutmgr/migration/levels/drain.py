"""The steps and the loop of a migration out of delay levels.

No batch is hidden: an unacknowledged message is invisible to other consumers, and returns to the
level when its connection ends. For each chunk: first store or publish it, then acknowledge. After a
crash in between the messages return; a store knows their ids, levels get them again under the same
ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from typing import Final

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock, Key
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import ConfigurationError, MigrationFailed
from timeoutmgr.message.instants import Micros
from timeoutmgr.migration.levels.target import LevelMessage, Sink, part
from timeoutmgr.migration.ports import MigrationLedger, Origin, Target
from timeoutmgr.migration.run import Report, report
from timeoutmgr.migration.runs import (
    Batch,
    BatchState,
    Delivered,
    KeyRange,
    MigrationRun,
    MigrationRunState,
    Problem,
    Survey,
    Window,
)
from timeoutmgr.native.names import NameSet
from timeoutmgr.transport.amqp.relay import Relay, Relayed
from timeoutmgr.transport.kombu_transport import KombuTransport

# --- delay levels as the origin: sub-second queues, then 28 levels, the longest first -------------
# A message first waits for its part of a second, then falls from its level into shorter levels. A
# drain in that order meets each message once, or never if it was delivered meanwhile.

MOST_SKIPPED: Final = 60_000
"""Messages of other senders that a drain skips in a level; AMQP counts them in 16 bits."""


@dataclass(frozen=True, slots=True)
class LevelsOrigin(Origin):
    """The levels with the names *names* on the broker of *transport*.

    A broker does not tell its time, so *clock* is the clock of the store with the ledger.

    Levels belong to all programs on a broker. If *sender* is None, all messages are moved,
    otherwise only messages that this endpoint sent. *renames* maps old destinations to new names.
    """

    transport: KombuTransport
    names: NameSet
    clock: Clock
    sender: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Return the broker and the names, without secrets."""
        of = "" if self.sender is None else f" sent by {self.sender}"
        return f"{self.transport.describe()} {self.names.name}{of}"

    def now(self) -> Micros:
        """Return the time of *clock*."""
        return self.clock.now()

    def survey(self, window: Window) -> Survey:
        """Count the messages in the levels; their senders and due times are still unknown."""
        if window.cutoff is not None or window.until is not None:
            raise ConfigurationError(
                "delay levels are moved whole: a queue cannot be searched by due time; leave "
                "--cutoff and --until out"
            )
        counts = self._counts()
        missing = [name for name, count in counts.items() if count is None]
        problems = (
            Problem(self.names.name, f"{len(missing)} of its queues are missing", "check --from"),
        )
        return Survey(
            count=sum(count or 0 for count in counts.values()), problems=problems if missing else ()
        )

    def ranges(self, window: Window, size: int) -> Iterator[KeyRange]:
        """Yield a range for each queue, with the queue's position in place of due times."""
        counts = self._counts()
        last = len(counts) - 1
        for place, (name, count) in enumerate(counts.items()):
            yield KeyRange(Key(last - place, name), Key(last - place, name), count or 0)

    def waiting(self, batch: Batch) -> int:
        """Return how many messages are in a batch's level now."""
        with closing(self.transport.session()) as session:
            return session.count(batch.range.first.id)

    def opened(self, batch: Batch) -> AbstractContextManager[Relay]:
        """Open the queue of a batch's level; unacknowledged messages return to their positions."""
        return closing(self.transport.relay(batch.range.first.id, prefetch=MOST_SKIPPED))

    def _counts(self) -> dict[str, int | None]:
        """Return the number of messages in each queue, in the order in which messages pass them."""
        names = self.names
        parts = [names.fraction_name(part) for part in range(1, names.parts)]
        queues = [*parts, *reversed(names.level_names)]
        with closing(self.transport.session()) as session:
            missing = session.missing_queues(queues)
            return {name: None if name in missing else session.count(name) for name in queues}


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
    """Levels, a sink for their messages, and a ledger, with the loops of a run between them.

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
        """The place that gets the messages."""
        return self.sink.target

    @property
    def is_one_store(self) -> bool:
        """Return false: the source is no store."""
        return False

    def close(self) -> None:
        """Release the run, then close source and target."""
        with closing(self.target), closing(self.source):
            self.ledger.release(self.runner)

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
        """Leave the messages in the levels, except for messages that the target also has."""
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
    """Move all suitable messages of one level; return the batch with its counts."""
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

    The whole level is read: messages that fall into it from a longer level are at the end.
    """
    left = min(parts.source.waiting(batch), MOST_SKIPPED)
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
    """Move the *left* messages of a level, chunk by chunk; return the batch with its counts."""
    held = 0
    while left > 0:
        chunk = _received(parts, batch, relay, left)
        if not chunk:
            break
        left -= len(chunk)
        messages, unfit = part(chunk, parts.source.renames, parts.sink, parts.source.sender)
        held += len(chunk) - len(messages)
        if held + parts.chunk > MOST_SKIPPED:
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

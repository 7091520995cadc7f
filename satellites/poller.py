"""The poller: claims expired timeouts and sends their ids to the dispatcher's queue.

``PollTimeouts`` is the step. ``Poller`` is its loop: an APScheduler interval job, whose next run is
moved forward for due times. APScheduler skips a run while the job still runs, and tries again one
interval later. So a wake during a poll does not move the next run; the end of the poll does.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_SUBMITTED
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from timeoutmgr.contracts import (
    Chunk,
    Clock,
    SendResult,
    TimeoutStore,
    Transaction,
    TransactionMode,
    TransportSession,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    StorageConflict,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.message.instants import MICROSECOND, Micros
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import begin_anew_after_fork, own_name
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.resilience.recovery import Conflicts
from timeoutmgr.sender.sender import SessionPool
from timeoutmgr.telemetry import During, Operation, Telemetry, during_of

from .control import chunk_message
from .schedule import PollSchedule

logger = logging.getLogger(__name__)

_SCHEDULER_LOGGER: Final = logging.getLogger(f"{__name__}.scheduler")
# APScheduler warns of each run that it skips because a poll runs. That is not an error: see above.
_SCHEDULER_LOGGER.setLevel(logging.ERROR)
_EXECUTOR: Final = "timeoutmgr"
# At INFO it logs the begin and end of each poll, in every program with that level.
logging.getLogger(f"apscheduler.executors.{_EXECUTOR}").setLevel(logging.WARNING)

_OFFSET_WARNING: Final = 1_000_000
_OFFSET_CRITICAL: Final = 30_000_000
_OFFSET_MOVED: Final = 10_000
"""Change of the offset in microseconds after which the poller polls, to plan its next wake-up."""
_CLOCK_SET: Final = 200_000
"""Difference in microseconds between wall and monotonic clock that means a set wall clock."""
_AFTER_DUE: Final = 300
"""Microseconds between a due time and its poll, because clocks are read at different moments."""
LEAD: Final = 10_000
"""Microseconds by which a poll runs before its instant: the scheduler's two threads take long to
wake, and a claim and its order to the dispatcher are each written to disk. No later step could make
up for that time. The dispatcher waits for the rest."""
_DENSE: Final = 3_000
_DENSEST: Final = 15_000
"""Bounds in microseconds of a delay. If two due times are closer than the delay, the next poll
comes later by the delay: otherwise each poll would claim only a few timeouts."""
_PART: Final = 3.0
"""The same, as a multiple of the time that a claim and its order take. On a busy machine they take
long because there are many of them: at 100 timeouts a second, each due alone, polls that followed
each other at once took 10 ms each and the median timeout was 24 ms late; with this pause 12 ms."""
_RECENT: Final = 0.2
"""Weight of the last claim in the average time."""
_PUT_OFF: Final = 50_000
"""Microseconds between a claim of all due timeouts and the next poll: the dispatch may postpone
timeouts without a wake. Until the claim is closed the store returns the next poll time."""
AT_ONCE: Final = 5
"""Chunks that are claimed and sent together while more than one chunk is due."""
_JOB: Final = "poll"
_FAILED_POLL: Final = {"event": "poll_failed"}


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class PollTimeouts:
    """The step: claim due timeouts, chunk by chunk, and send the ids of each chunk."""

    store: TimeoutStore
    queue: str
    owner: str
    mode: TransactionMode
    chunk: int
    clock: Clock
    new_id: Callable[[], str]
    telemetry: Telemetry
    ahead: Micros = 0
    """How much before its due time a timeout may be claimed; the dispatcher waits for the rest."""
    stopping: Callable[[], bool] = field(default=lambda: False)
    _during: During = field(init=False)
    _took: float = field(default=0.0, init=False)
    """Average seconds of the last claims with their orders."""

    def __post_init__(self) -> None:
        """Ask the telemetry once what it observes."""
        self._during = during_of(self.telemetry)
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Claim as an owner of this child's own."""
        self.owner = own_name(self.owner)

    def __call__(self, session: TransportSession) -> Micros | None:
        """Claim and send all due timeouts; return the next poll time by the store's clock, or None.

        Raises StorageUnavailable or TransportUnavailable. A claim that was not sent is released; if
        the release fails too, the claim expires.
        """
        chunks = 1
        while not self.stopping():
            began = self.clock.monotonic()
            chunk = self._claim_and_send(session, chunks)
            self._took += _RECENT * (self.clock.monotonic() - began - self._took)
            claimed = chunk.all
            if not claimed:
                return chunk.next_due
            chunks = AT_ONCE if len(claimed[-1].keys) == self.chunk else 1
            reach("poller.handed_on")
            self.telemetry.count("timeouts_claimed", sum(len(one.keys) for one in claimed))
            if chunk.next_due is None or chunk.next_due > self.clock.now():
                # Not at once: another claim would compete with the dispatch of this chunk.
                return _next_poll_time(claimed[-1].keys[-1].due, chunk.next_due, self._took)
        return None

    def _claim_and_send(self, session: TransportSession, chunks: int) -> Chunk:
        if self.mode is TransactionMode.TRANSACTION_SCOPE:
            if chunks == 1:
                # Without the single writer's lock: an idle poll must not delay another process.
                due = self.store.next_due()
                if due is None or due > self.store.now():
                    return Chunk("", (), due)
            with session.transaction() as transaction:
                chunk = self._claim(chunks, transaction)
                self._send(chunk.all, session, transaction)
                return chunk
        chunk = self._claim(chunks, None)
        try:
            self._send(chunk.all, session, None)
        except Exception as error:
            reach("poller.not_sent")
            all_maybe = {one.token: True for one in chunk.all}
            missed = error.maybe if isinstance(error, _ChunksRefused) else all_maybe
            for token, maybe in missed.items():
                self.store.release(token, maybe_sent=maybe)
                reach("poller.released")
            raise
        return chunk

    def _claim(self, chunks: int, transaction: Transaction | None) -> Chunk:
        with self._during(Operation.CLAIM, ()):
            return self.store.claim(
                self.clock.now(),
                self.chunk,
                self.owner,
                chunks=chunks,
                ahead=self.lead,
                transaction=transaction,
            )

    def _send(
        self, chunks: Sequence[Chunk], session: TransportSession, transaction: Transaction | None
    ) -> None:
        if not chunks:
            return
        controls = [chunk_message(one.token, one.keys, self.new_id()) for one in chunks]
        reach("poller.claimed")
        outgoing = [Outgoing(self.queue, control) for control in controls]
        results = session.send(outgoing, transaction=transaction)
        reach("poller.sent")
        missed = {
            one.token: result
            for one, result in zip(chunks, results, strict=True)
            if result is not SendResult.CONFIRMED
        }
        if missed:
            raise _ChunksRefused(self.queue, missed)

    @property
    def lead(self) -> Micros:
        """How much before its instant a poll may begin.

        Zero in ``transaction_scope``: the commit of the claim sends its order, and a dispatcher
        that waited would keep its transaction open.
        """
        return 0 if self.mode is TransactionMode.TRANSACTION_SCOPE else self.ahead

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Return early from now on if *stopping* returns true."""
        self.stopping = stopping

    def now(self) -> Micros:
        """Return the time of the store's clock."""
        return self.store.now()

    def notify_stored(self, due: Micros) -> None:
        """Pass on that a timeout of *due* is stored and committed."""
        self.store.notify_stored(due)


def _next_poll_time(sent: Micros, next_due: Micros | None, took: float) -> Micros:
    """Return the next poll time after all timeouts up to the instant *sent* were sent.

    *took* is the average time of a claim, in seconds.
    """
    again = sent + _PUT_OFF
    if next_due is None:
        return again
    dense = min(max(round(_PART * took * 1_000_000), _DENSE), _DENSEST)
    return min(again, next_due + dense if next_due - sent < dense else next_due)


class Poll(Protocol):
    """A step that a Poller repeats; its instants are of the store's clock.

    A poll may begin up to *lead* microseconds before its instant.
    """

    @property
    def lead(self) -> Micros:
        """How much before its instant a poll may begin."""
        ...

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Return early from now on if *stopping* returns true."""
        ...

    def __call__(self, session: TransportSession) -> Micros | None:
        """Process all due timeouts; return the next poll time, None for one interval from now."""
        ...

    def now(self) -> Micros:
        """Return the time of the store's clock."""
        ...

    def notify_stored(self, due: Micros) -> None:
        """Pass on that a timeout of *due* is stored and committed."""
        ...


class _ChunksRefused(TransportUnavailable):
    """The dispatcher's queue did not confirm all chunks.

    *maybe* tells by claim token whether the queue may have the chunk, because its answer was lost.
    """

    def __init__(self, queue: str, missed: Mapping[str, SendResult]) -> None:
        answers = ", ".join(sorted({result.value for result in missed.values()}))
        super().__init__(f"queue {queue!r} did not take the ids of due timeouts ({answers})")
        self.maybe = {token: result is SendResult.UNKNOWN for token, result in missed.items()}


class Poller:
    """The loop around the step. ``wake`` may be called from any thread."""

    def __init__(
        self,
        step: Poll,
        *,
        interval: timedelta,
        sessions: SessionPool,
        fetch: OutageBreaker,
        ready: Callable[[], None],
        clock: Clock,
        telemetry: Telemetry,
        on_clock_offset: Callable[[float], None],
    ) -> None:
        self._step = step
        self._interval = interval
        self._sessions = sessions
        self._fetch = fetch
        self._conflicts = Conflicts()
        self._ready = ready
        self._clock = clock
        self._telemetry = telemetry
        self._on_clock_offset = on_clock_offset
        self._offset: Micros = 0
        self._reported: Micros = 0  # the offset of the last critical error, 0 without one
        self._is_measured = False
        self._seen = self._measured = self._wall_ahead()
        self._polled = clock.monotonic()
        self._submitted = self._ended = 0
        step.stop_when(lambda: self._stop.is_set())
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Create all locks: in a child, a poll of the parent may keep them locked."""
        self._schedule = PollSchedule(self._interval)
        self._stop, self._polling = threading.Event(), threading.RLock()
        self._scheduler: BackgroundScheduler | None = None

    def start(self) -> None:
        """Start polling, at once."""
        self._stop.clear()
        self._reported = 0
        self._polled = self._clock.monotonic()
        scheduler = BackgroundScheduler(
            logger=_SCHEDULER_LOGGER,
            executors={_EXECUTOR: ThreadPoolExecutor(1)},
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
            timezone=UTC,
        )
        # Not for skipped runs: the end of the running poll moves the next run forward.
        scheduler.add_listener(self._pull_forward, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        self._submitted = self._ended = 0
        scheduler.add_listener(self._on_submitted, EVENT_JOB_SUBMITTED)
        scheduler.add_job(
            self._poll,
            IntervalTrigger(seconds=self._interval.total_seconds(), timezone=UTC),
            id=_JOB,
            executor=_EXECUTOR,
            next_run_time=self._on_scheduler(self._clock.now()),
        )
        self._scheduler = scheduler
        try:
            scheduler.start()
        except RuntimeError:  # the system has no more threads; a shutdown would join the missing
            self._scheduler = None
            raise

    def stop(self) -> None:
        """Stop; a chunk that was claimed is sent first."""
        self._stop.set()
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            # A shutdown that waits would keep the lock that the end of the poll may need.
            scheduler.shutdown(wait=False)
        with self._polling:
            self._sessions.close()

    def wake(self, due: Micros) -> None:
        """Poll at *due* by the store's clock, unless a sooner poll is planned."""
        self._step.notify_stored(due)
        at = self._schedule.wake(due - self._offset + _AFTER_DUE)
        if at is not None:
            self._run_at(at)

    def poll_now(self, due: Micros | None = None) -> None:
        """Poll now, or at *due* of the store's clock, unless a poll comes sooner.

        Another process may have stored a timeout that this poller has not seen.
        """
        now = self._clock.now()
        at = self._schedule.wake(now if due is None else due - self._offset + _AFTER_DUE)
        if at is not None:
            self._run_at(at)

    def watch(self) -> None:
        """Poll now if the wall clock was set, since the next run is planned by its old time."""
        since = self._clock.monotonic() - self._polled
        overdue = since > self._interval.total_seconds() + 1.0
        was_set = self._was_set_since(self._seen)
        self._seen = self._wall_ahead()
        if (was_set or overdue) and not self._stop.is_set():
            self._telemetry.count("polls_forced")
            self._run_at(self._clock.now())

    @property
    def offset(self) -> Micros | None:
        """The lead of the store's clock over this host's clock; None before it is measured."""
        return self._offset if self._is_measured else None

    def measure_offset(self, ask: Callable[[], Micros | None] = lambda: None) -> None:
        """Measure the lead of the store's clock over this host's clock; about once a minute.

        Due times are by the store's clock, wake-ups by this host's clock. *ask* runs another
        statement in the same moment, and may return the offset. Raises StorageUnavailable.
        """
        if self._measure(ask) > _OFFSET_MOVED:
            self._run_at(self._clock.now())

    def _measure(self, ask: Callable[[], Micros | None] = lambda: None) -> Micros:
        """Measure the offset; return the difference from the offset before."""
        wall_ahead = self._wall_ahead()
        offset = ask()
        if offset is None:
            before = self._clock.now()
            theirs = self._step.now()
            offset = theirs - (before + self._clock.now()) // 2
        moved, self._offset = abs(offset - self._offset), offset
        self._measured, self._is_measured = wall_ahead, True
        seconds = offset / 1_000_000
        self._telemetry.value("clock_offset_seconds", seconds)
        if abs(offset) <= _OFFSET_CRITICAL:
            self._reported = 0
        if abs(offset - self._reported) > _OFFSET_CRITICAL:
            self._reported = offset
            self._on_clock_offset(seconds)
        elif abs(offset) > _OFFSET_WARNING:
            logger.warning(
                "the database's clock differs from this host's by %.1f s; due times are compared "
                "with the database's",
                seconds,
                extra={"event": "clock_offset"},
            )
        return moved

    def _wall_ahead(self) -> Micros:
        return self._clock.now() - round(self._clock.monotonic() * 1_000_000)

    def _was_set_since(self, wall_ahead: Micros) -> bool:
        return abs(self._wall_ahead() - wall_ahead) > _CLOCK_SET

    def _poll(self) -> None:
        with self._polling:
            if not self._stop.is_set():
                self._poll_and_schedule()
            self._ended += 1

    def _poll_and_schedule(self) -> None:
        begin = self._schedule.begin()
        if begin is not None:
            self._wait_for(begin - self._step.lead)
        self._polled = self._clock.monotonic()
        next_due: Micros | None = None
        not_before: Micros = 0
        try:
            next_due = self._poll_once()
        except Exception as error:
            not_before = self._clock.now() + round(self._failed(error) * 1_000_000)
            next_due = not_before
        finally:
            self._polled = self._clock.monotonic()
            self._schedule.end(self._clock.now(), next_due, not_before)

    def _wait_for(self, instant: Micros) -> None:
        """Wait until *instant* of this host's clock, unless the poll was forced long before it."""
        early = instant - self._clock.now()
        if 0 < early <= LEAD + _AFTER_DUE:
            self._stop.wait(early / 1_000_000)

    def _poll_once(self) -> Micros | None:
        self._ready()
        if self._was_set_since(self._measured):
            self._measure()  # otherwise the poller would poll without a pause, or an interval late
            self._seen = self._measured  # a clock that is set back at once must be noticed again
        with self._sessions.session() as session:
            next_due = self._step(session)
        if next_due is not None and next_due - self._offset < self._clock.now() - _CLOCK_SET:
            self._measure()  # the store's clock was set back, or the poll was long
        self._fetch.success()
        self._conflicts.won()
        self._telemetry.count("polls")
        self._telemetry.value("last_poll_timestamp_seconds", self._clock.now() / 1_000_000)
        return None if next_due is None else next_due - self._offset + _AFTER_DUE

    def _failed(self, error: Exception) -> float:
        """Report a failed poll; return the seconds to pause. The loop survives every error."""
        shown = on_one_line(error)
        if isinstance(error, TransportUnavailable):
            logger.warning("poller could not send ids of timeouts: %s", shown, extra=_FAILED_POLL)
        elif isinstance(error, TimeoutManagerError):
            logger.warning(
                "poller could not fetch timeouts from the storage: %s", shown, extra=_FAILED_POLL
            )
        else:
            logger.exception("poller could not fetch timeouts from the storage", extra=_FAILED_POLL)
        self._telemetry.count("polls_failed")
        if isinstance(error, StorageConflict):
            again = self._conflicts.lost()
            if again is not None:
                return again
        pause = self._fetch.failure(error)
        return max(pause, 0.05) if isinstance(error, StorageUnavailable) else max(pause, 0.2)

    def _pull_forward(self, _event: Any) -> None:
        """Set the next run; APScheduler calls it after the end of the job, so no run is skipped."""
        while (at := self._schedule.next) is not None:
            self._run_at(at)
            # A wake in between has set its own time, which this call may have replaced.
            now_next = self._schedule.next
            if now_next is None or now_next >= at:
                return

    def _on_submitted(self, event: Any) -> None:
        """Set the next run again if the poll ended before APScheduler had recorded its start.

        A short poll may end while the scheduler still submits it. Its end then sets the next run,
        and the scheduler overwrites that time with one interval from now.
        """
        self._submitted += 1
        if self._ended >= self._submitted:
            self._pull_forward(event)

    def _on_scheduler(self, at: Micros) -> datetime:
        """Convert *at* from our clock to the clock of this host, which APScheduler reads.

        The clocks differ if a test sets its own clock. Never in the past: APScheduler would count
        through every interval since then.
        """
        wait = max(at - self._clock.now(), 0)
        return datetime.now(UTC) + wait * MICROSECOND

    def _run_at(self, at: Micros) -> None:
        # Without our lock: the scheduler calls this while it holds its own lock.
        scheduler = self._scheduler
        if scheduler is None:
            return
        try:
            scheduler.modify_job(_JOB, next_run_time=self._on_scheduler(at - LEAD))
        except JobLookupError:
            if scheduler is self._scheduler:
                raise
            # The poller and its job were stopped in between.

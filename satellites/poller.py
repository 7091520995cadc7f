"""The poller: hands the ids of expired timeouts to the dispatcher's queue.

``PollTimeouts`` is the step. ``Poller`` is its loop: an APScheduler interval job, whose next run
is pulled forward by due times. APScheduler must not be told to run a running job: it would skip
that run and come back one interval later, so the job's end, not the wake, pulls forward then.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import Any, Final

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_SUBMITTED,
)
from apscheduler.executors.pool import ThreadPoolExecutor
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
from timeoutmgr.errors import StorageUnavailable, TimeoutManagerError, TransportUnavailable
from timeoutmgr.instants import Micros, from_micros
from timeoutmgr.message import Outgoing
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.sending import SessionPool
from timeoutmgr.telemetry import Telemetry

from .control import chunk_message
from .schedule import PollSchedule

logger = logging.getLogger(__name__)

_OFFSET_WARNING: Final = 1_000_000
_OFFSET_CRITICAL: Final = 30_000_000
_OFFSET_MOVED: Final = 10_000
"""Microseconds by which the offset may move before the next wake-up is worked out anew."""
_AFTER_DUE: Final = 300
"""Microseconds past a due time at which to look, since clocks are read at different moments."""
_JOB: Final = "poll"


@dataclass(slots=True, kw_only=True)
class PollTimeouts:
    """The step: claim what is due, chunk by chunk, and send each chunk's ids on."""

    store: TimeoutStore
    queue: str
    owner: str
    mode: TransactionMode
    chunk: int
    clock: Clock
    new_id: Callable[[], str]
    telemetry: Telemetry
    stopping: Callable[[], bool] = field(default=lambda: False)

    def __call__(self, session: TransportSession) -> Micros | None:
        """Hand on all that is due; return the store's instant of the next, None for nothing.

        Raises StorageUnavailable or TransportUnavailable; what was claimed and not handed on is
        released, and a claim whose release fails too lapses by itself.
        """
        while not self.stopping():
            chunk = self._claim_and_send(session)
            if not chunk.keys:
                return chunk.next_due
            reach("poller.handed_on")
            self.telemetry.count("timeouts_claimed", len(chunk.keys))
        return None

    def _claim_and_send(self, session: TransportSession) -> Chunk:
        if self.mode is TransactionMode.TRANSACTION_SCOPE:
            # A look without the writer's turn: an idle poll must not hold up anybody.
            due = self.store.next_due()
            if due is None or due > self.store.now():
                return Chunk("", (), due)
            with session.transaction() as transaction:
                chunk = self._claim(transaction)
                self._send(chunk, session, transaction)
                return chunk
        chunk = self._claim(None)
        try:
            self._send(chunk, session, None)
        except Exception as error:
            reach("poller.not_sent")
            refused = isinstance(error, _NotTaken) and not error.maybe
            self.store.release(chunk.token, maybe_handed_on=not refused)
            raise
        return chunk

    def _claim(self, transaction: Transaction | None) -> Chunk:
        return self.store.claim(self.clock.now(), self.chunk, self.owner, transaction=transaction)

    def _send(
        self, chunk: Chunk, session: TransportSession, transaction: Transaction | None
    ) -> None:
        if not chunk.keys:
            return
        control = chunk_message(chunk.token, chunk.keys, self.new_id())
        reach("poller.claimed")
        [result] = session.send([Outgoing(self.queue, control)], transaction=transaction)
        reach("poller.sent")
        if result is not SendResult.CONFIRMED:
            raise _NotTaken(
                f"queue {self.queue!r} did not take the ids of {len(chunk.keys)} timeouts "
                f"({result.value})",
                maybe=result is SendResult.UNKNOWN,
            )


class _NotTaken(TransportUnavailable):
    """The dispatcher's queue did not take a chunk; *maybe* it did, and only its answer is lost."""

    def __init__(self, sentence: str, *, maybe: bool) -> None:
        super().__init__(sentence)
        self.maybe = maybe


class Poller:
    """The loop around the step. ``wake`` may be called from any thread."""

    def __init__(
        self,
        step: PollTimeouts,
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
        self._ready = ready
        self._clock = clock
        self._telemetry = telemetry
        self._on_clock_offset = on_clock_offset
        self._schedule = PollSchedule(interval)
        self._stop = threading.Event()
        self._offset: Micros = 0
        self._polled = clock.monotonic()
        self._submitted = self._ended = 0
        self._scheduler: BackgroundScheduler | None = None
        step.stopping = self._stop.is_set

    def start(self) -> None:
        """Start polling, at once."""
        self._stop.clear()
        self._polled = self._clock.monotonic()
        scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
            timezone=UTC,
        )
        # Not at skipped runs: the poll that runs will end, and pull forward then.
        scheduler.add_listener(self._pull_forward, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        self._submitted = self._ended = 0
        scheduler.add_listener(self._submitted_one, EVENT_JOB_SUBMITTED)
        scheduler.add_job(
            self._poll,
            IntervalTrigger(seconds=self._interval.total_seconds(), timezone=UTC),
            id=_JOB,
            next_run_time=from_micros(self._clock.now()),
        )
        self._scheduler = scheduler
        scheduler.start()

    def stop(self) -> None:
        """Stop; a chunk that is being handed on is finished."""
        self._stop.set()
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.shutdown(wait=True)
        self._sessions.close()

    def wake(self, due: Micros) -> None:
        """Have a poll at *due* (of the store's clock), unless one comes sooner anyway."""
        at = self._schedule.wake(due - self._offset + _AFTER_DUE)
        if at is not None:
            self._run_at(at)

    def watch(self) -> None:
        """Poll now if the wall clock was set back and the next run moved far away with it."""
        since = self._clock.monotonic() - self._polled
        if since > self._interval.total_seconds() + 1.0 and not self._stop.is_set():
            self._telemetry.count("polls_forced")
            self._run_at(self._clock.now())

    def measure_offset(self) -> None:
        """Measure by how much the store's clock is ahead of this host's; about once a minute.

        Due times are the store's, wake-ups this host's. Raises StorageUnavailable.
        """
        before = self._clock.now()
        theirs = self._step.store.now()
        offset = theirs - (before + self._clock.now()) // 2
        moved, self._offset = abs(offset - self._offset), offset
        seconds = offset / 1_000_000
        self._telemetry.value("clock_offset_seconds", seconds)
        if abs(offset) > _OFFSET_CRITICAL:
            self._on_clock_offset(seconds)
        elif abs(offset) > _OFFSET_WARNING:
            logger.warning(
                "the database's clock differs from this host's by %.1f s; due times are compared "
                "with the database's",
                seconds,
            )
        if moved > _OFFSET_MOVED:
            self._run_at(self._clock.now())

    def _poll(self) -> None:
        self._schedule.begin()
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
            self._ended += 1

    def _poll_once(self) -> Micros | None:
        self._ready()
        with self._sessions.session() as session:
            next_due = self._step(session)
        self._fetch.success()
        self._telemetry.count("polls")
        return None if next_due is None else next_due - self._offset + _AFTER_DUE

    def _failed(self, error: Exception) -> float:
        """Report a failed poll; return the seconds to pause. The loop outlives every error."""
        if isinstance(error, TimeoutManagerError):
            logger.warning("Failed to fetch timeouts from the timeout storage: %s", error)
        else:
            logger.exception("Failed to fetch timeouts from the timeout storage")
        self._telemetry.count("polls_failed")
        pause = self._fetch.failure(error)
        return max(pause, 0.05) if isinstance(error, StorageUnavailable) else max(pause, 0.2)

    def _pull_forward(self, _event: Any) -> None:
        """Set the next run; APScheduler calls this once the job has ended, so it is not skipped."""
        while (at := self._schedule.next) is not None:
            self._run_at(at)
            # A wake in between has set its own time, and this one may just have replaced it.
            now_next = self._schedule.next
            if now_next is None or now_next >= at:
                return

    def _submitted_one(self, event: Any) -> None:
        """Pull forward again where the poll was over before APScheduler had written it down.

        A short poll may end while the scheduler still submits it. Its end is then told from
        within, and what that pulled forward is overwritten with one interval from now.
        """
        self._submitted += 1
        if self._ended >= self._submitted:
            self._pull_forward(event)

    def _run_at(self, at: Micros) -> None:
        scheduler = self._scheduler
        if scheduler is not None and not self._stop.is_set():
            # Never in the past: APScheduler would count through every interval since then.
            soon = max(at, self._clock.now())
            scheduler.modify_job(_JOB, next_run_time=from_micros(soon))

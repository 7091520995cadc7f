"""The real poller's loop, with turns in place of APScheduler's thread."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

from apscheduler.schedulers.background import BackgroundScheduler

from timeoutmgr.message.instants import Micros, duration_micros, from_micros, to_micros
from timeoutmgr.satellites.poller import Poller

from .process import Calls
from .timeline import Actor, Timeline


class SteppedPoller(Poller):
    """A poller whose job is run by ``turn``, at the times that it sets itself."""

    def play_in(self, timeline: Timeline, calls: Calls) -> Actor:
        """Return the actor that polls."""
        self._timeline = timeline
        job = _Job(timeline, calls, self._interval, self._poll, lambda: self._pull_forward(None))
        self._scheduler = cast(BackgroundScheduler, cast(Any, job))
        return job.actor

    def _rest(self, micros: Micros) -> None:
        self._timeline.pass_time(micros)

    def _on_scheduler(self, at: Micros) -> datetime:
        # The job reads the process' clock, which stands in for the host's.
        return from_micros(max(at, self._clock.now()))


class _Job:
    """The scheduler as the poller uses it: a single job, whose next run can be set."""

    def __init__(
        self,
        timeline: Timeline,
        calls: Calls,
        interval: timedelta,
        poll: Callable[[], None],
        pull_forward: Callable[[], None],
    ) -> None:
        self.actor = Actor(calls.name, self._step)
        self._timeline = timeline
        self._calls = calls
        self._interval = duration_micros(interval)
        self._poll = poll
        self._pull_forward = pull_forward
        self._next: Micros = 0

    def modify_job(self, job: str, *, next_run_time: datetime) -> None:
        self._next = to_micros(next_run_time)
        if not self.actor.busy:
            self._timeline.at(self._timeline.now + self._wait(), self.actor)

    def _step(self) -> Micros:
        # A running job's next run is one interval after its start, until its end pulls it forward.
        self._next = self._calls.process.clock.now() + self._interval
        self._poll()
        self._pull_forward()
        return self._wait()

    def _wait(self) -> Micros:
        """Return the wait: computed by the wall clock now, waited by the monotonic clock."""
        return max(0, self._next - self._calls.process.clock.now())

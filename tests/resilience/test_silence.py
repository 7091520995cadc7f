"""A server that hangs: the breaker counts from the call's begin, and an answer ends the outage."""

from __future__ import annotations

import pytest

from tests.support.clock import FakeClock
from tests.support.makers import a_breaker
from timeoutmgr.contracts import answers as module
from timeoutmgr.contracts.answers import Answers
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.resilience.silence import SilenceWatch

WAIT = 20.0


class Server:
    """A server that is asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.unanswered = Answers()

    def describe(self) -> str:
        return "server"


class Watched:
    """A server, its watch, and the breaker of WAIT seconds over it."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.server = Server()
        self.triggered: list[BaseException] = []
        self.breaker = a_breaker(clock, WAIT, self.triggered.append)
        self.watch = SilenceWatch(self.server, self.breaker, WAIT)
        self.watch.start()

    def pass_by(self, seconds: int) -> None:
        """Let time pass, with a look each second."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.watch.check()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    clock = FakeClock()
    monkeypatch.setattr(module, "time", clock)
    return Watched(clock)


def test_an_overdue_call_arms_the_breaker_and_triggers_it_after_its_wait(watched: Watched) -> None:
    states = []
    with watched.server.unanswered.waiting(None):
        for seconds in (4, 1, 14, 1):
            watched.pass_by(seconds)
            states.append(watched.breaker.state)

    armed = [BreakerState.DISARMED, BreakerState.ARMED, BreakerState.ARMED]
    assert states == [*armed, BreakerState.TRIGGERED]
    assert [str(error) for error in watched.triggered] == ["server has not answered for 20.0 s"]


def test_an_answer_takes_the_outage_back(watched: Watched) -> None:
    with watched.server.unanswered.waiting(None):
        watched.pass_by(15)
        watched.server.unanswered.sign()
        watched.pass_by(1)

    assert watched.breaker.state is BreakerState.DISARMED
    assert watched.triggered == []


def test_a_call_that_fails_takes_nothing_back(watched: Watched) -> None:
    with watched.server.unanswered.waiting(None):
        watched.pass_by(10)
    watched.pass_by(1)
    watched.breaker.failure(StorageUnavailable("no answer within 10 s"))
    with watched.server.unanswered.waiting(None):
        watched.pass_by(9)

    assert watched.breaker.state is BreakerState.TRIGGERED


def test_an_answer_takes_no_failure_back(watched: Watched) -> None:
    watched.breaker.failure(StorageUnavailable("disk full"))
    with watched.server.unanswered.waiting(None):
        watched.pass_by(10)
        watched.server.unanswered.sign()
        watched.pass_by(1)

    assert watched.breaker.state is BreakerState.ARMED


def test_answers_within_the_patience_are_no_outage(watched: Watched) -> None:
    for _ in range(20):
        with watched.server.unanswered.waiting(None):
            watched.pass_by(4)
        watched.server.unanswered.sign()

    assert watched.breaker.state is BreakerState.DISARMED


def test_the_watch_bounds_calls_while_it_runs(watched: Watched) -> None:
    bounds = [watched.server.unanswered.bound]
    watched.watch.stop()
    bounds.append(watched.server.unanswered.bound)

    assert bounds == [WAIT, module.LONGEST]

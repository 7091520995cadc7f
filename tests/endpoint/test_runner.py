from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from queue import SimpleQueue

import pytest

from tests.support.limits import no_thread
from tests.support.makers import a_message
from tests.support.ports import FakeTransport
from timeoutmgr import AsyncHandlerContext, CriticalErrorContext, Endpoint, EndpointConfiguration
from timeoutmgr.endpoint.runner import Runner
from timeoutmgr.features.feature import USUAL, FeatureContext, FeatureSettings, Prerequisite
from timeoutmgr.features.parts import FeatureParts, Satellite
from timeoutmgr.message.message import Received
from timeoutmgr.transport.pump import Consumption
from timeoutmgr.transport.work import Work

SOON = 10.0
"""Seconds that a thread may take on a machine that is busy; nothing waits this long."""


class Leaving:
    """A feature whose satellite ends its thread at the first message."""

    name = "leaving"
    priority = USUAL

    def prerequisites(self, settings: FeatureSettings) -> Sequence[Prerequisite]:
        return ()

    def set_up(self, context: FeatureContext) -> FeatureParts:
        consumption = Consumption(name="Leaving", queue="sales.Leaving", step=self.leave)
        return FeatureParts(satellites=(Satellite(consumption=consumption),))

    @staticmethod
    def leave(batch: Sequence[Received], work: Work) -> None:
        raise SystemExit("enough")


class Stage:
    """An endpoint with that feature, and the errors of its critical error hook."""

    def __init__(self) -> None:
        self.transport = FakeTransport("sales.Leaving")
        self.transport.on_idle = self._idle
        self.errors: list[CriticalErrorContext] = []
        self._cycles = threading.Semaphore(0)
        config = EndpointConfiguration("sales")
        config.use_transport(self.transport, accept_loss=True)
        config.enable_feature(Leaving())
        config.define_critical_error_action(self.errors.append)
        self.endpoint = Endpoint(config)
        self.endpoint.on_watch(self._cycles.release)

    @staticmethod
    def _idle() -> None:
        threading.Event().wait(0.01)  # as a receiver waits

    def wait_for_cycles(self, count: int) -> None:
        """Return once the watchdog has come by *count* times."""
        for _ in range(count):
            assert self._cycles.acquire(timeout=SOON)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr("timeoutmgr.endpoint.runner._WATCH_EVERY", 0.01)
    stage = Stage()
    with closing(stage.endpoint):
        yield stage


def test_a_pump_that_ends_before_it_is_stopped_is_a_critical_error_once(stage: Stage) -> None:
    stage.transport.put("sales.Leaving", a_message())

    stage.endpoint.start()
    while not stage.errors:
        stage.wait_for_cycles(1)
    stage.wait_for_cycles(5)

    [errors] = stage.errors
    assert (
        errors.error == "The pump of 'sales.Leaving' ended by itself, endpoint will be terminated."
    )
    assert isinstance(errors.exception, SystemExit)
    assert stage.endpoint.ended_pumps == ("sales.Leaving",)


@pytest.mark.behaviour(78)
def test_a_critical_error_without_a_thread_reaches_the_hooks(stage: Stage) -> None:
    stage.endpoint.start()
    stage.wait_for_cycles(1)

    with no_thread():
        stage.transport.put("sales.Leaving", a_message())
        while not stage.endpoint.ended_pumps:
            stage.wait_for_cycles(1)
        stage.wait_for_cycles(5)

    [error] = stage.errors
    assert isinstance(error.exception, SystemExit)


@pytest.mark.behaviour(81)
def test_a_critical_error_without_a_thread_stops_the_endpoint(sqlite_url: str) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    endpoint = Endpoint(config)
    with closing(endpoint):
        endpoint.install()
        endpoint.start()

        with no_thread():
            endpoint.parts.critical.raise_error("The printer is away", RuntimeError("ink"))

            assert endpoint.wait(SOON)


def test_a_pump_that_runs_or_was_stopped_is_no_error(stage: Stage) -> None:
    stage.endpoint.start()
    stage.wait_for_cycles(5)
    stage.endpoint.stop()

    assert stage.endpoint.critical_error is None


def test_an_error_that_ends_a_thread_does_not_end_the_watch(stage: Stage) -> None:
    left = threading.Event()

    def leave() -> None:
        if not left.is_set():
            left.set()
            raise SystemExit("enough")

    stage.endpoint.on_watch(leave)
    stage.endpoint.start()

    assert left.wait(SOON)
    stage.wait_for_cycles(5)


@pytest.mark.behaviour(78)
def test_a_critical_error_of_a_coroutine_handler_reaches_the_hooks() -> None:
    reported: SimpleQueue[CriticalErrorContext] = SimpleQueue()
    config = EndpointConfiguration("sales")
    config.use_transport("memory://", accept_loss=True)
    config.install = True
    config.define_critical_error_action(reported.put)

    @config.handler("Print")
    async def handle(_body: object, context: AsyncHandlerContext) -> None:
        context.raise_critical_error("Printing is impossible")

    with closing(Endpoint(config)) as endpoint:
        endpoint.start()
        endpoint.send_local("Print", 1)

        error = reported.get(timeout=6 * SOON)
        assert error.error == "Printing is impossible"
        assert endpoint.critical_error == (error.error, error.exception)


class Lingering(threading.Thread):
    """A thread that does not end; to wait for it moves the clock *now*."""

    def __init__(self, now: list[float]) -> None:
        super().__init__(name="lingering")
        self._now = now

    def join(self, timeout: float | None = None) -> None:
        assert timeout is not None
        self._now[0] += timeout

    def is_alive(self) -> bool:
        return True


def test_a_stop_waits_once_for_all_threads_that_do_not_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("timeoutmgr.endpoint.runner.time.monotonic", lambda: now[0])
    runner = Runner(stage.endpoint._parts, lambda: None)
    runner._threads.extend(Lingering(now) for _ in range(4))

    runner.stop()

    assert now[0] == 60.0


def test_handlers_that_stop_their_endpoint_at_once_do_not_wait_for_each_other(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutmgr.endpoint.runner._JOIN", SOON)
    both = threading.Barrier(2)
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.concurrency, config.handler_batch = 2, 1

    @config.handler()
    def stop(_message: object, _context: object) -> None:
        both.wait()
        endpoint.stop()

    endpoint = Endpoint(config)
    with closing(endpoint):
        endpoint.install()
        for _ in range(2):
            endpoint.send_local("Stop", {})

        endpoint.start()

        assert endpoint.wait(2 * SOON)
    assert "did not end within" not in caplog.text

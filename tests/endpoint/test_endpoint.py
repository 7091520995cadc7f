"""An endpoint's life: how it ends, and that a start which fails half-way leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from tests.support.ports import FakeTransport
from timeoutmgr import Endpoint, EndpointConfiguration, ToSend
from timeoutmgr.endpoint.runner import Runner
from timeoutmgr.errors import ConfigurationError, EndpointClosed, TransportUnavailable
from timeoutmgr.features.feature import USUAL, FeatureContext, FeatureSettings, Prerequisite
from timeoutmgr.features.parts import FeatureParts, Satellite
from timeoutmgr.message.message import Received
from timeoutmgr.transport.pump import Consumption
from timeoutmgr.transport.work import Work


class JournalTask:
    """A task that notes its starts and stops, and calls *next* at its next start."""

    def __init__(self, journal: list[str], name: str) -> None:
        self.next: Callable[[], None] | None = None
        self._journal = journal
        self._name = name

    def start(self) -> None:
        next_, self.next = self.next, None
        if next_ is not None:
            next_()
        self._journal.append(f"start {self._name}")

    def stop(self) -> None:
        self._journal.append(f"stop {self._name}")

    def watch(self) -> None:
        return


class Tasks:
    """A feature of two tasks, and a satellite that drains found queues."""

    name = "tasks"
    priority = USUAL

    def __init__(self, *tasks: JournalTask) -> None:
        self._tasks = tasks

    def prerequisites(self, settings: FeatureSettings) -> Sequence[Prerequisite]:
        return ()

    def set_up(self, context: FeatureContext) -> FeatureParts:
        left = Consumption(name="Left", queue="sales.Left", step=self.nothing)
        satellite = Satellite(consumption=left, optional_queue=True)
        return FeatureParts(tasks=self._tasks, satellites=(satellite,))

    @staticmethod
    def nothing(batch: Sequence[Received], work: Work) -> None:
        """Handle nothing: there is no such queue."""


class Stage:
    """An endpoint with these tasks, the second of which can be made to fail."""

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.transport = FakeTransport()
        self.second = JournalTask(self.journal, "second")
        config = EndpointConfiguration("sales")
        config.use_transport(self.transport, accept_loss=True)
        config.enable_feature(Tasks(JournalTask(self.journal, "first"), self.second))
        self.endpoint = Endpoint(config)


def a_task_fails(stage: Stage) -> None:
    def fail() -> None:
        raise TransportUnavailable("gone")

    stage.second.next = fail


def the_broker_goes_away(stage: Stage) -> None:
    # After the checks, before the start lists the queues to drain.
    unavailable = TransportUnavailable("gone")
    stage.second.next = lambda: stage.transport.fail("missing_queues", unavailable)


@pytest.mark.parametrize("trouble", [a_task_fails, the_broker_goes_away])
def test_a_start_that_fails_half_way_stops_the_started_parts(
    trouble: Callable[[Stage], None],
) -> None:
    stage = Stage()
    trouble(stage)

    with closing(stage.endpoint):
        with pytest.raises(TransportUnavailable, match="gone"):
            stage.endpoint.start()

        assert stage.journal[0] == "start first"
        assert stage.journal[-2:] == ["stop first", "stop second"]
        assert stage.endpoint.wait(0)


@pytest.mark.parametrize("trouble", [a_task_fails, the_broker_goes_away])
def test_an_endpoint_starts_after_a_failed_start(trouble: Callable[[Stage], None]) -> None:
    stage = Stage()
    trouble(stage)

    with closing(stage.endpoint):
        with pytest.raises(TransportUnavailable):
            stage.endpoint.start()
        stage.journal.clear()
        stage.endpoint.start()

        assert stage.journal == ["start first", "start second"]
        assert not stage.endpoint.wait(0)


def test_a_start_raises_the_error_of_a_thread_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    stage = Stage()
    monkeypatch.setattr("timeoutmgr.endpoint.runner.threading.Thread.start", full)

    with closing(stage.endpoint):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            stage.endpoint.start()

        assert stage.journal[-2:] == ["stop first", "stop second"]


@pytest.mark.parametrize("interrupted", [Runner, JournalTask])
def test_a_start_after_an_interrupted_stop_ends_the_threads_of_the_first_start(
    monkeypatch: pytest.MonkeyPatch, interrupted: type
) -> None:
    def interrupt(*_self: object) -> None:
        raise KeyboardInterrupt

    stage, before = Stage(), threading.active_count()
    with closing(stage.endpoint):
        stage.endpoint.start()
        running = threading.active_count() - before
        with monkeypatch.context() as signals:
            signals.setattr(interrupted, "stop", interrupt)
            with pytest.raises(KeyboardInterrupt):
                stage.endpoint.stop()

        stage.endpoint.start()

        assert threading.active_count() - before == running
        assert not stage.endpoint.wait(0)
    assert threading.active_count() == before


def test_waiting_for_an_endpoint_whose_start_was_refused_ends() -> None:
    stage = Stage()
    stage.transport.fail("missing_queues", TransportUnavailable("gone"))

    with closing(stage.endpoint):
        with pytest.raises(TransportUnavailable):
            stage.endpoint.start()

        assert stage.endpoint.wait(0)
        assert stage.journal == []


class Patience(threading.Event):
    """An event that counts vain waits, and calls *then* after *looks* waits."""

    def __init__(self, looks: int, then: Callable[[], object]) -> None:
        super().__init__()
        self.in_vain = 0
        self._looks = looks
        self._then = then

    def wait(self, timeout: float | None = None) -> bool:
        if self.in_vain == self._looks:
            self._then()
        assert self.in_vain <= self._looks, "the endpoint did not end"
        self.in_vain += not self.is_set()
        return self.is_set()


def a_signal(_stage: Stage) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def another_thread(stage: Stage) -> None:
    other = threading.Thread(target=stage.endpoint.stop)
    other.start()
    other.join()


@pytest.mark.parametrize("ended_by", [a_signal, another_thread])
def test_an_endpoint_runs_until_a_signal_or_a_stop(
    ended_by: Callable[[Stage], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    stopped = Patience(3, lambda: ended_by(stage))
    monkeypatch.setattr(stage.endpoint._run, "stopped", stopped)
    before = signal.getsignal(signal.SIGTERM)

    stage.endpoint.run()

    assert stopped.in_vain >= 3
    assert stage.journal == ["start first", "start second", "stop first", "stop second"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_running_endpoint_spares_the_garbage_collector_the_objects_of_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, seen = Stage(), list[int]()

    def end() -> None:
        seen.append(gc.get_freeze_count())
        stage.endpoint.stop()

    monkeypatch.setattr(stage.endpoint._run, "stopped", Patience(3, end))

    stage.endpoint.run()

    assert seen[0] > 10_000
    assert gc.get_freeze_count() == 0


def closed() -> Endpoint:
    config = EndpointConfiguration("sales")
    config.use_transport(FakeTransport("billing", "clock.Timeouts"))
    config.use_external_timeout_manager("clock.Timeouts")
    endpoint = Endpoint(config)
    endpoint.send("billing", "Bill", {})
    endpoint.close()
    return endpoint


@pytest.mark.parametrize(
    "use",
    [
        lambda endpoint: endpoint.send("billing", "Bill", {}),
        lambda endpoint: endpoint.send_local("Bill", {}),
        lambda endpoint: endpoint.send_many([ToSend("billing", "Bill", {})]),
        lambda endpoint: endpoint.store_many([ToSend("billing", "Bill", {})]),
        lambda endpoint: endpoint.clear_timeouts("order-7"),
    ],
)
def test_a_send_after_close_is_refused(use: Callable[[Endpoint], object]) -> None:
    with pytest.raises(EndpointClosed, match="endpoint 'sales' is closed and sends nothing"):
        use(closed())


def test_a_start_after_close_opens_the_endpoint_again() -> None:
    endpoint = closed()
    endpoint.start()

    assert endpoint.send("billing", "Bill", {}).message_id
    endpoint.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.add_handler("Bill", lambda _message, _context: None),
        lambda config: config.handler("Bill")(lambda _message, _context: None),
        lambda config: config.define_critical_error_action(lambda _context: None),
        lambda config: config.enable_feature(Tasks()),
        lambda config: config.disable_feature("tasks"),
        lambda config: config.use_transport(FakeTransport()),
        lambda config: config.use_persistence("memory", accept_loss=True),
        lambda config: config.send_only(),
        lambda config: setattr(config, "concurrency", 8),
    ],
)
def test_a_change_after_the_endpoint_was_made_is_refused(
    change: Callable[[EndpointConfiguration], object],
) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(FakeTransport())
    Endpoint(config)

    with pytest.raises(ConfigurationError, match=r"before Endpoint\(config\)"):
        change(config)


def test_a_second_endpoint_of_one_configuration_is_fine() -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(FakeTransport())

    assert Endpoint(config).name == Endpoint(config).name

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, cast

import pytest

from tests.satellites.polling import SOON
from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND
from tests.support.ports import FakeTransport
from tests.support.store import ScriptedStore
from timeoutmgr import CriticalErrorContext, EndpointConfiguration, SendOptions, TransactionMode
from timeoutmgr.contracts import Clock, Persistence, RaiseCriticalError, TimeoutStore
from timeoutmgr.deadletter import DeadLetterQueues
from timeoutmgr.endpoint.assembly import AssembledEndpoint, assemble
from timeoutmgr.errors import ConfigurationError, FeatureRefused, SchemaMissing, StorageUnavailable
from timeoutmgr.persistence import MemoryPersistence
from timeoutmgr.resilience.breakers import OutageBreaker
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.satellites.poller import Poller
from timeoutmgr.satellites.timeout_manager.feature import Readiness
from timeoutmgr.satellites.timeout_manager.timeouts import StoreTimeouts
from timeoutmgr.satellites.timeout_manager.wakeups import OtherPollers


class WithoutTimeouts:
    """A persistence that stores other things."""

    capabilities = MemoryPersistence(accept_loss=True).capabilities
    database = None

    def install(self) -> None: ...

    def ddl(self) -> str:
        return ""

    def check(self) -> None: ...

    def close(self) -> None: ...


def a_config(feature: TimeoutManager | None = None) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(FakeTransport(), accept_loss=True)
    config.use_persistence(MemoryPersistence(accept_loss=True))
    config.transaction_mode = TransactionMode.RECEIVE_ONLY
    config.clock = FakeClock()
    config.enable_feature(feature or TimeoutManager())
    return config


def refusal(config: EndpointConfiguration) -> str:
    with pytest.raises(FeatureRefused) as refused:
        assemble(config.settings())
    return str(refused.value)


@pytest.mark.behaviour(2)
def test_a_send_only_endpoint_is_refused_with_the_documented_sentence() -> None:
    config = a_config()
    config.send_only()

    assert refusal(config).startswith(
        "feature 'timeout-manager': Send only endpoints can't use the timeoutmanager since it "
        "requires receive capabilities"
    )


@pytest.mark.behaviour(3)
def test_an_external_manager_beside_it_is_refused_with_the_documented_sentence() -> None:
    config = a_config()
    config.use_external_timeout_manager("billing.Timeouts")

    assert refusal(config).startswith(
        "feature 'timeout-manager': A user configured timeoutmanager address has been found and "
        "this endpoint will send timeouts to that endpoint"
    )


@pytest.mark.behaviour(5)
def test_a_persistence_without_timeouts_is_refused_with_the_documented_sentence() -> None:
    config = a_config()
    config.use_persistence(cast(Persistence, WithoutTimeouts()))

    assert refusal(config) == (
        "feature 'timeout-manager': The selected persistence doesn't have support for timeout "
        "storage. Select another persistence or disable the timeout manager feature using "
        "config.disable_feature('timeout-manager')"
    )


@pytest.mark.behaviour(1)
def test_enabled_it_consumes_its_two_queues_under_the_documented_names() -> None:
    consumed = {
        one.consumption.name: one.consumption.queue
        for one in assemble(a_config().settings()).satellites
        if not one.optional_queue
    }

    assert consumed == {
        "Timeout Message Processor": "sales.Timeouts",
        "Timeout Dispatcher Processor": "sales.TimeoutsDispatcher",
    }


def test_enabled_it_routes_delays_to_its_own_queue() -> None:
    composer = assemble(a_config().settings()).composer

    composed = composer.compose("billing", "Bill", {}, SendOptions(delay=5))

    assert composed.outgoing.destination == "sales.Timeouts"


@pytest.mark.behaviour(67)
def test_its_concurrency_is_that_of_both_satellites() -> None:
    parts = assemble(a_config(TimeoutManager(concurrency=3)).settings())

    assert [one.concurrency for one in parts.satellites if not one.optional_queue] == [3, 3]


@pytest.mark.behaviour(16)
@pytest.mark.parametrize(
    "wrong",
    [
        {"time_to_wait_before_critical_error": timedelta(microseconds=-1)},
        {"poll_interval": timedelta(0)},
        {"poll_interval": timedelta(minutes=1, microseconds=1)},
        {"chunk": 0},
        {"chunk": 1001},
        {"store_batch": 0},
        {"store_batch": 1001},
        {"concurrency": 0},
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    [name] = wrong

    with pytest.raises(ConfigurationError, match=name):
        TimeoutManager(**wrong)


@pytest.mark.behaviour(77)
@pytest.mark.parametrize(
    ("wait", "interval", "expected"),
    [(120, 60, 60), (15, 60, 15), (15, 10, 10), (0, 60, 1), (0.5, 60, 1), (0, 0.5, 0.5)],
)
def test_the_poll_interval_shrinks_to_the_wait(
    wait: float, interval: float, expected: float
) -> None:
    feature = TimeoutManager(
        time_to_wait_before_critical_error=timedelta(seconds=wait),
        poll_interval=timedelta(seconds=interval),
    )

    assert feature.interval == timedelta(seconds=expected)


def test_the_wait_is_two_minutes_by_default() -> None:
    assert TimeoutManager().time_to_wait_before_critical_error == timedelta(minutes=2)


# --- the breakers


class Hooked:
    """An assembled endpoint whose critical errors are collected."""

    def __init__(self, config: EndpointConfiguration | None = None) -> None:
        self.errors: list[str] = []
        config = config or a_config()
        config.define_critical_error_action(self._critical_error)
        self.parts: AssembledEndpoint = assemble(config.settings())
        self.parts.critical.started(lambda: None)
        self.clock = cast(FakeClock, self.parts.settings.clock)

    def breaker(self, name: str) -> OutageBreaker:
        [found] = [one for one in self.parts.breakers if one.name == name]
        assert isinstance(found, OutageBreaker)
        return found

    def critical_errors(self) -> list[str]:
        self.parts.critical.join(10.0)
        return self.errors

    def _critical_error(self, context: CriticalErrorContext) -> None:
        self.errors.append(context.error)


AWAY = StorageUnavailable("away")


@pytest.mark.behaviour(78)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "TimeoutStorageConnectivity",
            "Repeated failures when fetching timeouts from storage, endpoint will be terminated.",
        ),
        ("TimeoutStorage", "Repeated failures when storing timeouts, endpoint will be terminated."),
        (
            "TimeoutDispatch",
            "Repeated failures when dispatching timeouts, endpoint will be terminated.",
        ),
        (
            "Broker",
            "Repeated failures when communicating with the broker, endpoint will be terminated.",
        ),
    ],
)
def test_each_breaker_has_a_sentence_of_its_own(name: str, sentence: str) -> None:
    hooked = Hooked()

    hooked.breaker(name).failure(AWAY)
    hooked.clock.advance(120)
    hooked.breaker(name).check()

    assert hooked.critical_errors() == [sentence]


@pytest.mark.behaviour(70)
@pytest.mark.parametrize("first", ["TimeoutStorageConnectivity", "TimeoutStorage"])
def test_a_storage_outage_is_reported_once_though_two_breakers_see_it(first: str) -> None:
    hooked = Hooked()
    names = sorted(["TimeoutStorageConnectivity", "TimeoutStorage"], key=lambda name: name != first)
    for name in names:
        hooked.breaker(name).failure(AWAY)
    hooked.clock.advance(120)

    for name in names:
        hooked.breaker(name).check()

    assert len(hooked.critical_errors()) == 1


_URL = "postgresql+psycopg://sales@database/sales"


@pytest.mark.behaviour(70)
@pytest.mark.parametrize(
    ("store", "times"),
    [
        (_URL, 1),
        ("postgresql+psycopg://other@DATABASE:5432/sales", 1),
        ("postgresql+psycopg://sales@database/other", 2),
    ],
)
def test_an_outage_of_a_database_is_reported_once_by_any_number_of_breakers(
    store: str, times: int
) -> None:
    config = a_config()
    config.use_transport(_URL)
    config.use_persistence(store)
    config.enable_feature(DeadLetterQueues(node="here"))
    hooked = Hooked(config)
    breakers = list(hooked.parts.breakers)
    for breaker in breakers:
        breaker.failure(AWAY)
    hooked.clock.advance(120)

    for breaker in breakers:
        breaker.check()

    assert len(breakers) == 6
    assert len(hooked.critical_errors()) == times


@pytest.mark.behaviour(70, 72)
def test_two_breakers_that_trigger_at_the_same_moment_do_not_silence_each_other() -> None:
    hooked = Hooked()
    fetch, storing = hooked.breaker("TimeoutStorageConnectivity"), hooked.breaker("TimeoutStorage")
    fetch.failure(AWAY)
    storing.failure(AWAY)
    hooked.clock.advance(120)

    # The log line stands between a breaker's trigger and its action: the other comes between.
    with _between("timeoutmgr.resilience.breakers", storing.check):
        fetch.check()

    assert len(hooked.critical_errors()) == 1


class _between(logging.Handler):
    """Run *action* at the first log line of *name*."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        super().__init__()
        self._logger = logging.getLogger(name)
        self._action: Callable[[], None] | None = action

    def emit(self, record: logging.LogRecord) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)


# --- readiness


class Asking(ScriptedStore):
    """A store whose processes can ask each other for a poll."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.asked = threading.Event()

    def wakeups(self, _wake: Callable[[], None]) -> Asking:
        return self

    def notify(self) -> None:
        self.asked.set()

    def check(self) -> None: ...

    def close(self) -> None: ...


def test_a_stored_timeout_notifies_the_poller_and_other_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = a_config()
    store = Asking(FakeClock())
    monkeypatch.setattr(config.settings().persistence, "timeouts", lambda *_, **__: store)
    features = assemble(config.settings()).features
    step = cast(StoreTimeouts, features.satellites[0].consumption.step)
    [others] = [task for task in features.tasks if isinstance(task, OtherPollers)]
    others.start()

    step.wake(START + 10 * SECOND)

    assert store.asked.wait(SOON)
    others.stop()


class Installing(MemoryPersistence):
    """Counts its installations; checks fail until *ready*."""

    def __init__(self) -> None:
        super().__init__(accept_loss=True)
        self.installed = 0
        self.ready = True

    def install(self) -> None:
        self.installed += 1

    def check(self) -> None:
        if not self.ready:
            raise SchemaMissing("run `timeoutmgr install`")


def a_store(clock: Clock | None = None) -> ScriptedStore:
    return ScriptedStore(clock or FakeClock())


@pytest.mark.behaviour(76)
@pytest.mark.parametrize(("install", "times"), [(True, 1), (False, 0)])
def test_a_storage_is_installed_once_when_it_answers_if_installing_is_on(
    install: bool, times: int
) -> None:
    persistence = Installing()
    ready = Readiness(persistence, cast(TimeoutStore, a_store()), install)

    ready()
    ready()

    assert persistence.installed == times


@pytest.mark.behaviour(76)
def test_a_storage_that_is_away_is_not_ready_until_it_answers() -> None:
    store = a_store()
    store.fail("ping", AWAY)
    ready = Readiness(Installing(), store, True)
    with pytest.raises(StorageUnavailable):
        ready()

    ready()


def test_missing_tables_count_as_an_outage_since_an_operator_may_install_them() -> None:
    persistence = Installing()
    persistence.ready = False
    ready = Readiness(persistence, a_store(), False)
    with pytest.raises(StorageUnavailable, match="timeoutmgr install"):
        ready()

    persistence.ready = True
    ready()


def test_once_ready_it_asks_no_more_but_a_probe_still_does() -> None:
    store = a_store()
    ready = Readiness(Installing(), store, True)
    ready()

    ready()
    ready.probe()

    assert store.calls["ping"] == 2


@pytest.mark.behaviour(55)
def test_a_clock_that_is_far_off_is_a_critical_error() -> None:
    hooked = Hooked()
    [poller] = [one for one in hooked.parts.features.tasks if isinstance(one, Poller)]

    cast(Any, poller)._on_clock_offset(42.0)

    [error] = hooked.critical_errors()
    assert "differs from this host's by 42 s" in error


class Reporting(ScriptedStore):
    """A store of another author that finds its table ruined."""

    def use_critical_errors(self, raise_error: RaiseCriticalError) -> None:
        self.raise_error = raise_error


@pytest.mark.behaviour(79)
def test_a_store_reports_critical_errors_to_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Reporting(FakeClock())
    monkeypatch.setattr(MemoryPersistence, "timeouts", lambda *_arguments, **_options: store)
    reported: SimpleQueue[str] = SimpleQueue()
    config = a_config()
    config.define_critical_error_action(lambda context: reported.put(context.error))
    parts = assemble(config.settings())

    store.raise_error("The table is ruined", RuntimeError("checksum"))
    parts.critical.started(lambda: None)

    assert reported.get(timeout=SOON) == "The table is ruined"

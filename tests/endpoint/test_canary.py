"""A canary tells whether an endpoint delivers; a late canary raises an alarm."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import a_timeout
from tests.support.store import ScriptedStore
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.contracts import Outcome, OutcomeKind
from timeoutmgr.contracts.callables import is_coroutine_function
from timeoutmgr.endpoint.assembly import assemble
from timeoutmgr.endpoint.canary import MESSAGE_TYPE, SENTENCE, Canary, CanarySettings
from timeoutmgr.errors import ConfigurationError, FeatureRefused, TransportUnavailable
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.sender.composer import ToSend
from timeoutmgr.telemetry import Counters
from timeoutmgr.testing import configure
from timeoutmgr.testing.signals import PATIENCE


class Cage:
    """A canary over a store; *delivers* says whether its timeouts are dispatched in time."""

    def __init__(self, *, critical: bool = False) -> None:
        self.store = ScriptedStore(FakeClock())
        self.telemetry = Counters()
        self.critical = CriticalErrors()
        self.delivers = True
        self.refusal: Exception | None = None
        self.waits: list[float] = []
        self.now = 0.0
        self._names = iter(range(100))
        self.canary = Canary(
            CanarySettings(critical=critical),
            "sales",
            self.store,
            self._send,
            self.critical,
            self.telemetry,
            lambda: self.now,
        )

    def step(self) -> None:
        assert self.canary.step(self._wait)

    def counted(self, event: str) -> float:
        return self.telemetry.snapshot().get(event, 0)

    def _send(self, delay: timedelta) -> str:
        if self.refusal is not None:
            raise self.refusal
        timeout = a_timeout(f"m{next(self._names)}")
        self.store.store_many([timeout])
        if self.delivers:
            with self.store.lock_for_dispatch("", [timeout.key]) as locked:
                done = Outcome(key=timeout.key, kind=OutcomeKind.DISPATCHED, at=START)
                locked.close([done])
        return timeout.id

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) % 2 == 0


@pytest.mark.behaviour(140)
def test_a_canary_that_is_dispatched_in_time_raises_no_alarm() -> None:
    cage = Cage()

    cage.step()

    assert cage.waits == [35.0, 25.0]
    assert (cage.counted("canaries_delivered"), cage.counted("canaries_late")) == (1, 0)


@pytest.mark.behaviour(140)
def test_a_late_canary_raises_an_alarm_and_one_critical_error_for_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cage = Cage(critical=True)
    cage.delivers = False

    cage.step()
    cage.step()

    assert cage.counted("canaries_late") == 2
    assert cage.critical.raised is not None
    assert cage.critical.raised[0] == SENTENCE
    assert len(cage.critical._latched) == 1
    assert "canary of endpoint sales is late: its state is pending" in caplog.text


@pytest.mark.behaviour(140)
@pytest.mark.parametrize("refusal", [TransportUnavailable("away"), KeyError("of a middleware")])
def test_a_canary_that_cannot_be_sent_or_looked_for_is_late(
    caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    caplog.set_level("INFO")
    cage = Cage()
    cage.refusal = refusal
    cage.step()
    cage.refusal = None
    cage.store.store_many([])
    cage.step()

    assert cage.counted("canaries_late") == 1
    assert f"it cannot be sent: {refusal}" in caplog.text
    assert "canary of endpoint sales is delivered in time again" in caplog.text


@pytest.mark.behaviour(140)
def test_a_canary_whose_store_hangs_is_late_while_it_hangs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cage = Cage(critical=True)
    while_it_hangs: list[float] = []

    def find(_message_id: str) -> None:
        for cage.now in (64.0, 66.0, 67.0):  # due after 5 s, late 30 s after; twice that is judged
            cage.canary.watch()
            while_it_hangs.append(cage.counted("canaries_late"))

    monkeypatch.setattr(cage.store, "find", find)
    cage.step()

    assert while_it_hangs == [0, 1, 1]
    assert "canary of endpoint sales is late: its queue or its store hangs" in caplog.text
    assert len(cage.critical._latched) == 1


def test_without_critical_a_late_canary_stops_nothing() -> None:
    cage = Cage()
    cage.delivers = False

    cage.step()

    assert cage.critical.raised is None


@pytest.mark.parametrize(
    "wrong",
    [{"every": timedelta(seconds=30)}, {"delay": timedelta(0)}, {"every": timedelta(days=365_000)}],
)
def test_a_wrong_setting_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"canary.{next(iter(wrong))}"):
        CanarySettings(**wrong)


@pytest.mark.parametrize("wrong", [{"every": 60}, {"critical": "yes"}])
def test_a_setting_of_another_type_is_refused_with_its_type(wrong: dict[str, Any]) -> None:
    expected = f"CanarySettings.{next(iter(wrong))} takes (a timedelta|bool)"
    with pytest.raises(ConfigurationError, match=expected):
        CanarySettings(**wrong)


@pytest.fixture
def config() -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport("memory://", accept_loss=True)
    config.canary = CanarySettings()
    return config


def test_a_canary_needs_a_timeout_manager(config: EndpointConfiguration) -> None:
    with pytest.raises(FeatureRefused, match="has a canary and no timeout manager"):
        assemble(config.settings())


@pytest.mark.parametrize("is_awaited", [False, True])
def test_the_endpoint_handles_its_canary_in_its_middleware(
    config: EndpointConfiguration, is_awaited: bool
) -> None:
    async def awaited(_context: Any, call_next: Any) -> None:
        await call_next()

    if is_awaited:
        config.add_middleware(awaited)

    [handler] = config.settings().handlers[MESSAGE_TYPE]

    assert is_coroutine_function(handler) is is_awaited


def test_send_middleware_that_stops_the_endpoint_in_the_thread_of_the_canary_stops_it() -> None:
    config = configure("sales", features=[TimeoutManager()])
    config.canary = CanarySettings()

    def stop(outgoing: ToSend) -> ToSend:
        endpoint.stop()
        return outgoing

    config.add_send_middleware(stop)
    endpoint = Endpoint(config)
    endpoint.start()

    assert endpoint.wait(PATIENCE)
    endpoint.close()


def test_send_middleware_may_stop_the_endpoint_while_another_thread_stops_it() -> None:
    config = configure("sales", features=[TimeoutManager()])
    config.canary = CanarySettings()
    sends, stopping = threading.Event(), threading.Event()

    def stop(outgoing: ToSend) -> ToSend:
        sends.set()
        assert stopping.wait(PATIENCE)
        endpoint.stop()
        return outgoing

    config.add_send_middleware(stop)
    endpoint = Endpoint(config)
    [canary] = [task for task in endpoint.parts.features.tasks if isinstance(task, Canary)]
    canary._stop = FollowedEvent(stopping)
    endpoint.start()
    assert sends.wait(PATIENCE)

    other = threading.Thread(target=endpoint.stop, daemon=True)
    other.start()
    other.join(PATIENCE)

    assert not other.is_alive()
    endpoint.close()


class FollowedEvent(threading.Event):
    """An event of the canary's stop, which *other* follows."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def set(self) -> None:
        super().set()
        self._other.set()

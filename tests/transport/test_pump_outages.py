"""While the storage or the broker is away nothing is lost, and afterwards the messages flow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.makers import a_breaker
from tests.transport.pumping import AWAY, BROKER_AWAY, SCOPE, Mill
from timeoutmgr.errors import ConfigurationError, StorageUnavailable, TransportUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.resilience.breakers import BreakerState
from timeoutmgr.transport.delivery_policy import Outage, StorageOutage
from timeoutmgr.transport.work import Work


@pytest.mark.behaviour(32)
def test_while_the_storage_is_away_messages_are_neither_acknowledged_nor_moved() -> None:
    mill = Mill(batch=10)
    mill.put("a", "b")
    mill.always_fails("a", AWAY)

    with pytest.raises(StorageUnavailable):
        mill.pump_once()

    assert (mill.held, mill.errors, len(mill.batches)) == (["a", "b"], [], 1)


@pytest.mark.behaviour(32)
def test_after_an_outage_of_the_storage_the_messages_flow() -> None:
    mill = Mill(batch=10)
    mill.put("a", "b")
    mill.failures["a"] = [AWAY]
    mill.probed = [AWAY, AWAY, None]
    mill.before_step = lambda batch, work: None if mill.probes == 0 else mill.failures.clear()

    mill.pump.run()

    assert mill.batches == [["a", "b"], ["a", "b"]]
    assert (mill.transport.ids("sales"), mill.errors) == ([], [])


@pytest.mark.behaviour(32)
def test_during_an_outage_of_the_storage_nothing_is_consumed() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a", AWAY)
    mill.probed = [AWAY] * 20
    seen: list[list[str]] = []
    mill.before_probe = lambda: seen.append(mill.transport.ids("sales"))
    mill.stop.stop_after = 10

    mill.pump.run()

    assert seen == [["a"]] * 9
    assert len(mill.batches) == 1


@pytest.mark.behaviour(71)
def test_the_breaker_sets_the_pauses_of_an_outage() -> None:
    mill = Mill(wait=2.0)
    mill.put("a")
    mill.always_fails("a", AWAY)
    mill.probed = [AWAY] * 4

    def pass_time(batch: Sequence[Received], work: Work) -> None:
        if mill.probes:
            mill.failures.clear()

    mill.before_step = pass_time
    mill.pump.run()

    assert mill.stop.asked == [1.0] * 5


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug in the probe"),
        ConfigurationError("the tables are of a newer version"),
        TransportUnavailable("gone as well"),
    ],
)
def test_a_probe_that_fails_in_another_way_does_not_end_the_pump(error: Exception) -> None:
    mill = Mill()
    mill.put("a")
    mill.failures["a"] = [AWAY]
    mill.probed = [error]
    mill.before_step = lambda batch, work: None if mill.probes == 0 else mill.failures.clear()

    mill.pump.run()

    assert mill.transport.ids("sales") == []


def test_an_outage_of_the_storage_arms_the_breaker_of_the_storage() -> None:
    mill = Mill()
    mill.put("a")
    mill.always_fails("a", AWAY)
    mill.probed = [AWAY]
    seen: list[BreakerState] = []
    original = mill.stop.wait

    def wait(timeout: float | None = None) -> bool:
        seen.append(mill.storage.state)
        if len(seen) == 2:
            mill.stop.set()
        return original(timeout)

    mill.stop.wait = wait  # type: ignore[method-assign]  # to see the waits
    mill.pump.run()

    assert seen == [BreakerState.ARMED] * 2


def test_an_outage_of_the_broker_arms_the_breaker_of_the_broker_and_ends_by_itself() -> None:
    mill = Mill()
    mill.put("a")
    mill.transport.fail("receive", BROKER_AWAY, BROKER_AWAY)

    mill.pump.run()

    assert mill.stop.asked == [1.0, 1.0]
    assert mill.batches == [["a"]]
    assert mill.broker.state is BreakerState.DISARMED


def test_the_pump_waits_for_a_missing_queue() -> None:
    mill = Mill()
    queue = mill.transport.queues.pop("sales")
    original = mill.stop.wait

    def wait(timeout: float | None = None) -> bool:
        mill.transport.queues["sales"] = queue
        return original(timeout)

    mill.stop.wait = wait  # type: ignore[method-assign]  # to see the waits
    mill.pump.run()

    assert len(mill.stop.asked) == 1


def test_a_bug_outside_the_step_does_not_end_the_pump() -> None:
    mill = Mill()
    mill.put("a")
    mill.transport.fail("receive", ValueError("a bug in the receiver"))

    mill.pump.run()

    assert mill.batches == [["a"]]
    assert mill.telemetry.snapshot()["pump_failures"] == 1


def received_elsewhere_after_an_outage(mill: Mill) -> None:
    """Have *mill* meet both outages; another process receives the message of the second."""
    mill.put("a")
    mill.transport.fail("receive", BROKER_AWAY)
    mill.failures["a"] = [AWAY]
    mill.before_probe = mill.transport.queues["sales"].clear


def test_an_empty_receive_with_a_good_probe_ends_both_outages() -> None:
    mill = Mill()
    received_elsewhere_after_an_outage(mill)

    mill.pump.run()

    assert (mill.batches, mill.probes) == ([["a"]], 2)
    assert mill.broker.state is mill.storage.state is BreakerState.DISARMED


def test_an_empty_receive_does_not_disarm_a_storage_that_is_away() -> None:
    mill = Mill()
    received_elsewhere_after_an_outage(mill)
    mill.probed = [None, *[AWAY] * 20]
    mill.transport.on_idle = lambda: None
    mill.stop.stop_after = 10

    mill.pump.run()

    assert mill.storage.state is BreakerState.ARMED


def test_a_pump_that_works_ends_no_outage_that_another_pump_met() -> None:
    mill = Mill()
    mill.broker.failure(BROKER_AWAY)
    mill.storage.failure(AWAY)

    mill.pump_once()

    assert mill.broker.state is mill.storage.state is BreakerState.ARMED


@pytest.mark.parametrize("is_paced", [True, False])
def test_only_while_a_handler_takes_long_an_outage_that_may_be_over_does_not_trigger(
    is_paced: bool,
) -> None:
    mill = Mill(wait=10.0, is_paced=is_paced)
    mill.put("a")
    mill.transport.fail("receive", BROKER_AWAY)

    def handle(_batch: Sequence[Received], _work: Work) -> None:
        mill.clock.advance(60)
        mill.broker.check()

    mill.before_step = handle
    mill.pump.run()

    assert mill.triggered == ([] if is_paced else [BROKER_AWAY])


def test_while_the_storage_is_away_an_outage_of_the_broker_that_is_over_does_not_trigger() -> None:
    mill = Mill(wait=10.0)
    mill.put("a")
    mill.transport.fail("receive", BROKER_AWAY)
    mill.failures["a"] = [AWAY]
    mill.probed = [AWAY, None]
    mill.before_step = lambda batch, work: mill.failures.clear() if mill.probes else None

    def pass_time() -> None:
        mill.clock.advance(60)
        mill.broker.check()

    mill.before_probe = pass_time
    mill.pump.run()

    assert mill.triggered == [AWAY]


def test_another_failure_while_a_handler_takes_long_triggers() -> None:
    mill = Mill(wait=10.0, is_paced=True)
    mill.put("a")
    mill.transport.fail("receive", BROKER_AWAY)

    def handle(_batch: Sequence[Received], _work: Work) -> None:
        mill.clock.advance(60)
        mill.broker.failure(BROKER_AWAY)

    mill.before_step = handle
    mill.pump.run()

    assert mill.triggered == [BROKER_AWAY]


def test_an_outage_that_an_error_names_is_sat_out_with_its_own_probe_and_breaker() -> None:
    mill = Mill()
    mill.put("a", "b")
    triggered: list[BaseException] = []
    named = a_breaker(mill.clock, 10.0, triggered.append, "dead letters")
    probes = [*[AWAY] * 3, None, None]

    def probe() -> None:
        mill.clock.advance(4)
        if (error := probes.pop(0)) is not None:
            raise error

    mill.failures["a"] = [StorageOutage(Outage(breaker=named, probe=probe), AWAY)]
    mill.before_step = lambda batch, work: None if len(probes) == 5 else mill.failures.clear()
    mill.pump.run()

    assert (mill.batches, mill.probes, probes) == ([["a"], ["a"], ["b"]], 0, [])
    assert (named.state, mill.storage.state) == (BreakerState.DISARMED,) * 2
    assert triggered == [AWAY]


@pytest.mark.behaviour(61)
def test_an_unknown_commit_is_no_fault_of_the_message() -> None:
    mill = Mill(SCOPE)
    mill.put("a")
    mill.transport.fail("commit", AWAY)

    with pytest.raises(StorageUnavailable):
        mill.pump_once()

    assert (mill.errors, len(mill.batches)) == ([], 1)


def test_a_handler_without_a_storage_probe_pauses_by_the_brokers_breaker() -> None:
    mill = Mill(storage=False)
    mill.put("a")
    mill.failures["a"] = [AWAY]
    original = mill.stop.wait

    def wait(timeout: float | None = None) -> bool:
        mill.failures.clear()
        return original(timeout)

    mill.stop.wait = wait  # type: ignore[method-assign]  # to see the waits
    mill.pump.run()

    assert (mill.stop.asked, mill.batches) == ([1.0], [["a"], ["a"]])

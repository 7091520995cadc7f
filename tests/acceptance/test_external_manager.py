"""Endpoints without a timeout manager of their own: external address, send-only, and none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.acceptance.matrix import EACH_ONCE, EMBEDDED, REPRESENTATIVE, matrix
from tests.acceptance.place import LATER, SOON, Party, Place
from timeoutmgr import HandlerContext, RecoverabilitySettings
from timeoutmgr.errors import (
    ConfigurationError,
    DelayedDeliveryDisabled,
    FeatureRefused,
    InvalidMessage,
)
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(3)
def test_delays_and_delayed_retries_go_through_an_external_manager(place: Place) -> None:
    manager, inbox = Party(place).start(), Inbox()
    config = place.plain(f"{place.name}-b", handler=inbox)
    config.use_external_timeout_manager(f"{manager.name}.Timeouts")
    config.recoverability = RecoverabilitySettings(
        immediate=1, delayed=1, increase=timedelta(milliseconds=100)
    )
    tries: list[str] = []

    @config.handler("Flaky")
    def flaky(body: Any, context: HandlerContext) -> None:
        tries.append(context.message_id)
        if len(tries) == 1:
            raise RuntimeError("not this time")
        inbox(body, context)

    endpoint = place.run(config)
    sent = endpoint.send_local("Ping", 1, delay=SOON)
    flaked = endpoint.send_local("Flaky", 2)
    kept = endpoint.send_local("Ping", 3, delay=LATER, saga_id="saga")

    assert inbox.wait_for_id(sent.message_id).lateness >= 0
    assert inbox.wait_for_id(flaked.message_id).lateness >= 0
    manager.wait_until_stored(kept.id)
    with manager.telemetry.expect("timeouts_cleared", 1):
        endpoint.clear_timeouts("saga")
    assert tries == [flaked.message_id] * 2
    own = [f"{endpoint.name}.Timeouts", f"{endpoint.name}.TimeoutsDispatcher"]
    assert place.session.missing_queues(own) == own
    with pytest.raises(ConfigurationError, match="keeps no timeouts itself"):
        _ = endpoint.timeouts


@matrix(pairs=EACH_ONCE)
@pytest.mark.behaviour(2, 3)
def test_a_send_only_endpoint_delays_through_an_external_manager(place: Place) -> None:
    party = Party(place).start()
    config = place.plain(f"{place.name}-sender")
    config.send_only()
    config.use_external_timeout_manager(f"{party.name}.Timeouts")
    sender = place.run(config)

    sent = sender.send(party.name, "Ping", 1, delay=SOON)

    arrival = party.inbox.wait_for_id(sent.message_id)
    assert arrival.lateness >= 0
    assert "NServiceBus.ReplyToAddress" not in arrival.headers
    with pytest.raises(InvalidMessage, match="send-only"):
        sender.send_local("Ping", 1)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(2, 6)
def test_without_a_manager_a_delayed_send_raises_and_sends_nothing(place: Place) -> None:
    party = Party(place).start()
    plain = place.run(place.plain(f"{place.name}-b", handler=party.inbox))

    with pytest.raises(DelayedDeliveryDisabled, match=r"enable_feature\(TimeoutManager\(\)\)"):
        plain.send(party.name, "Ping", 1, delay=SOON)

    barrier = plain.send(party.name, "Ping", 2)
    party.inbox.wait_for_id(barrier.message_id)
    assert len(party.inbox.arrived) == 1


@matrix(pairs=[EMBEDDED])
@pytest.mark.behaviour(1, 2)
def test_a_manager_on_a_send_only_endpoint_or_beside_an_external_manager_is_refused(
    place: Place,
) -> None:
    sender = place.configuration()
    sender.send_only()
    both = place.configuration()
    both.use_external_timeout_manager("elsewhere.Timeouts")

    with pytest.raises(FeatureRefused, match="Send only endpoints can't use the timeoutmanager"):
        place.run(sender)
    with pytest.raises(FeatureRefused, match="A user configured timeoutmanager address"):
        place.run(both)


@matrix(pairs=[EMBEDDED])
@pytest.mark.behaviour(7)
def test_a_second_manager_address_is_refused(place: Place) -> None:
    config = place.plain(place.name)
    config.use_external_timeout_manager("one.Timeouts")

    with pytest.raises(ConfigurationError, match="already set the timeout manager address"):
        config.use_external_timeout_manager("two.Timeouts")
    with pytest.raises(ConfigurationError, match="queue name"):
        config.use_external_timeout_manager(" ")


@matrix(pairs=[EMBEDDED])
@pytest.mark.behaviour(5)
def test_a_persistence_without_timeouts_is_refused(place: Place) -> None:
    class NoTimeouts:
        """A persistence for other things."""

        def __init__(self, inner: Any) -> None:
            self.capabilities, self.database = inner.capabilities, inner.database

        def close(self) -> None:
            """Nothing is open."""

    other: Any = NoTimeouts(place.persistence())
    config = place.configuration(persistence=other)

    with pytest.raises(FeatureRefused, match="doesn't have support for timeout storage"):
        place.run(config)


@pytest.mark.behaviour(16)
def test_settings_out_of_range_are_refused() -> None:
    for wrong in (
        {"time_to_wait_before_critical_error": timedelta(microseconds=-1)},
        {"poll_interval": timedelta(0)},
        {"poll_interval": timedelta(minutes=2)},
        {"chunk": 0},
        {"concurrency": 0},
    ):
        with pytest.raises(ConfigurationError):
            TimeoutManager(**wrong)

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ports import FakeTransport
from timeoutmgr import EndpointConfiguration, RecoverabilitySettings, SendOptions, TransactionMode
from timeoutmgr.endpoint.assembly import assemble
from timeoutmgr.errors import CombinationRefused, ConfigurationError, DelayedDeliveryDisabled
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.persistence import MemoryPersistence
from timeoutmgr.satellites import TimeoutManager


def a_config(
    *, manager: bool = False, handlers: bool = True, **transport: Any
) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(FakeTransport(**transport), accept_loss=True)
    if manager:
        config.use_persistence(MemoryPersistence(accept_loss=True))
        config.enable_feature(TimeoutManager())
        config.transaction_mode = TransactionMode.RECEIVE_ONLY
    if handlers:
        config.add_handler("Bill", lambda *_: None)
    return config


@pytest.mark.behaviour(1)
def test_an_endpoint_needs_only_the_queues_of_its_features() -> None:
    assert assemble(a_config().settings()).queues == ["sales", "error"]


def test_the_timeout_manager_needs_two_queues_more() -> None:
    assert assemble(a_config(manager=True).settings()).queues == [
        "sales",
        "sales.Timeouts",
        "sales.TimeoutsDispatcher",
        "error",
    ]


def test_a_send_only_endpoint_needs_no_queues() -> None:
    config = a_config(handlers=False)
    config.send_only()

    assert assemble(config.settings()).queues == []


@pytest.mark.parametrize("queue", ["sales", "sales.Timeouts", "sales.TimeoutsDispatcher"])
def test_an_error_queue_from_which_the_endpoint_itself_receives_is_refused(queue: str) -> None:
    config = a_config(manager=True)
    config.error_queue = queue

    with pytest.raises(ConfigurationError, match=f"error_queue.* '{queue}'"):
        config.settings()


@pytest.mark.behaviour(3)
def test_an_external_manager_gets_the_delayed_messages_and_no_satellite_is_made() -> None:
    config = a_config(handlers=False)
    config.use_external_timeout_manager("billing.Timeouts")
    parts = assemble(config.settings())

    composed = parts.composer.compose("shipping", "Ship", {}, SendOptions(delay=5, message_id="m"))

    assert composed.outgoing.destination == "billing.Timeouts"
    assert composed.sent.id == timeout_id("billing", "m")
    assert parts.satellites == ()


@pytest.mark.behaviour(2)
def test_a_delayed_send_from_a_send_only_endpoint_raises() -> None:
    config = a_config(handlers=False)
    config.send_only()
    parts = assemble(config.settings())

    with pytest.raises(DelayedDeliveryDisabled):
        parts.composer.compose("billing", "Bill", {}, SendOptions(delay=5))


def test_a_send_only_endpoint_names_no_reply_address() -> None:
    config = a_config(handlers=False)
    config.send_only()
    composer = assemble(config.settings()).composer

    composed = composer.compose("billing", "Bill", {}, SendOptions())

    assert "NServiceBus.ReplyToAddress" not in composed.outgoing.message.headers


@pytest.mark.behaviour(129)
def test_delayed_retries_that_nothing_can_delay_are_refused_when_asked_for() -> None:
    config = a_config()
    config.recoverability = RecoverabilitySettings(delayed=3)

    with pytest.raises(ConfigurationError, match="3 delayed retries are configured and no feature"):
        assemble(config.settings())


@pytest.mark.behaviour(129)
def test_delayed_retries_without_transactions_are_refused_when_asked_for() -> None:
    config = a_config(manager=True)
    config.transaction_mode = TransactionMode.NONE
    config.recoverability = RecoverabilitySettings(delayed=2)

    with pytest.raises(ConfigurationError, match=r"2 delayed retries .* in transaction_mode none"):
        assemble(config.settings())

    config.recoverability = RecoverabilitySettings(delayed=0)
    assert assemble(config.settings()).mode is TransactionMode.NONE


@pytest.mark.behaviour(129)
def test_default_retries_are_immediate_only_if_nothing_can_delay() -> None:
    [satellite] = assemble(a_config().settings()).satellites

    assert satellite.consumption.retry_later is None


def test_with_a_manager_handlers_have_delayed_retries() -> None:
    parts = assemble(a_config(manager=True).settings())

    [handlers] = [one for one in parts.satellites if one.consumption.name == "Handlers"]
    assert handlers.consumption.retry_later is not None


@pytest.mark.behaviour(67)
def test_concurrency_is_that_of_the_handlers_alone() -> None:
    config = a_config(manager=True)
    config.concurrency = 7

    threads = {
        one.consumption.queue: one.concurrency
        for one in assemble(config.settings()).satellites
        if not one.optional_queue
    }

    assert threads == {"sales": 7, "sales.Timeouts": 1, "sales.TimeoutsDispatcher": 1}


def test_a_transaction_scope_over_two_places_is_refused() -> None:
    config = a_config(manager=True)
    config.transaction_mode = TransactionMode.TRANSACTION_SCOPE

    with pytest.raises(CombinationRefused, match="do not share one database"):
        assemble(config.settings())


@pytest.mark.parametrize(
    ("schema", "mode"),
    [("a", TransactionMode.TRANSACTION_SCOPE), ("b", TransactionMode.RECEIVE_ONLY)],
)
def test_queue_and_store_in_different_schemas_share_no_connection(
    schema: str, mode: TransactionMode
) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport("postgresql+psycopg://h/d?options=-csearch_path%3Da")
    config.use_persistence(f"postgresql+psycopg://h/d?options=-csearch_path%3D{schema}")
    config.enable_feature(TimeoutManager())

    assert assemble(config.settings()).mode is mode


def test_a_lossy_part_is_refused_without_consent() -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(FakeTransport(durable=False))

    with pytest.raises(CombinationRefused, match="accept_loss=True"):
        assemble(config.settings())


def test_each_endpoint_has_an_owner_of_its_own() -> None:
    owners = {assemble(a_config().settings()).owner for _ in range(3)}

    assert len(owners) == 3

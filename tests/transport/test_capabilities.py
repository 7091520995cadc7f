from __future__ import annotations

import pytest

from timeoutmgr.contracts import StoreCapabilities, TransactionMode, TransportCapabilities
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.transport.capabilities import check_combination, default_mode

NONE = TransactionMode.NONE
RECEIVE = TransactionMode.RECEIVE_ONLY
ATOMIC = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE
SCOPE = TransactionMode.TRANSACTION_SCOPE

SQL = TransportCapabilities(name="sql", modes=frozenset(TransactionMode), durable=True)
BROKER = TransportCapabilities(name="rabbitmq", modes=frozenset({NONE, RECEIVE}), durable=True)
REDIS = TransportCapabilities(
    name="redis", modes=frozenset({NONE, RECEIVE}), durable=False, note="pops before it tracks"
)
STORE = StoreCapabilities(name="postgresql", durable=True, row_locks=True)
MEMORY = StoreCapabilities(name="memory", durable=False, row_locks=True)


@pytest.mark.parametrize(
    ("transport", "same_database", "has_store", "mode"),
    [
        (SQL, True, True, SCOPE),
        (SQL, False, True, RECEIVE),
        (SQL, False, False, SCOPE),
        (BROKER, False, True, RECEIVE),
        (BROKER, False, False, RECEIVE),
    ],
)
def test_the_default_mode_is_the_strongest_that_can_be_kept(
    transport: TransportCapabilities, same_database: bool, has_store: bool, mode: TransactionMode
) -> None:
    assert default_mode(transport, same_database, has_store) is mode


@pytest.mark.parametrize(
    ("transport", "store", "mode", "same_database", "accept_loss"),
    [
        (SQL, STORE, SCOPE, True, False),
        (SQL, STORE, ATOMIC, False, False),
        (SQL, STORE, RECEIVE, False, False),
        (SQL, None, SCOPE, False, False),
        (BROKER, STORE, RECEIVE, False, False),
        (BROKER, STORE, NONE, False, True),
        (REDIS, STORE, RECEIVE, False, True),
        (BROKER, MEMORY, RECEIVE, False, True),
    ],
)
def test_a_combination_that_keeps_the_promises_or_has_consent_is_accepted(
    transport: TransportCapabilities,
    store: StoreCapabilities | None,
    mode: TransactionMode,
    same_database: bool,
    accept_loss: bool,
) -> None:
    check_combination(transport, store, mode, same_database=same_database, accept_loss=accept_loss)


@pytest.mark.behaviour(84)
@pytest.mark.parametrize(
    ("transport", "store", "mode", "same_database", "accept_loss", "reason", "remedy"),
    [
        (BROKER, STORE, SCOPE, False, True, "cannot undo", "none, receive_only"),
        (BROKER, STORE, ATOMIC, False, False, "cannot undo", "use the SQL queue"),
        (SQL, STORE, SCOPE, False, True, "do not share one database", "sends_atomic_with_receive"),
        (SQL, STORE, NONE, True, False, "a crash loses it", "receive_only"),
        (REDIS, STORE, RECEIVE, False, False, "pops before it tracks", "accept_loss=True"),
        (BROKER, MEMORY, RECEIVE, False, False, "killed process", "accept_loss=True"),
    ],
)
def test_a_combination_that_breaks_a_promise_is_refused_with_reason_and_remedy(
    transport: TransportCapabilities,
    store: StoreCapabilities,
    mode: TransactionMode,
    same_database: bool,
    accept_loss: bool,
    reason: str,
    remedy: str,
) -> None:
    with pytest.raises(CombinationRefused) as refused:
        check_combination(
            transport, store, mode, same_database=same_database, accept_loss=accept_loss
        )

    assert reason in refused.value.reason
    assert remedy in refused.value.remedy

"""The rows that a dispatcher locks at once have a bounded size, however large the bodies are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, outcomes, timeout
from tests.support.ports import FakeReceiver, FakeTransport
from timeoutmgr.contracts import (
    CancelResult,
    Key,
    TimeoutFilter,
    TimeoutStore,
    TransactionMode,
)
from timeoutmgr.message.validation import Limits
from timeoutmgr.persistence.sql.dispatch import lock
from timeoutmgr.satellites.timeout_manager.dispatcher import DispatchTimeouts
from timeoutmgr.telemetry import Counters
from timeoutmgr.transport.sql import SqlTransport
from timeoutmgr.transport.work import Work

MIB = 1024 * 1024
NUMBERS = itertools.count()


def sub_batches(
    store: TimeoutStore, token: str, keys: Sequence[Key]
) -> list[list[tuple[str, bytes]]]:
    """Lock and close until the claim is empty; return the rows of each lock."""
    found = []
    while keys:
        with store.lock_for_dispatch(token, keys) as locked:
            found.append([(one.id, one.message.body) for one in locked.timeouts])
            locked.close(outcomes([one.key for one in locked.timeouts]))
        token, keys = "", getattr(locked, "left", ())
    return found


def test_large_bodies_are_locked_in_sub_batches(sql: Stores) -> None:
    store = sql()
    stored = {name: name.encode() * (3 * MIB) for name in "abcd"} | {"e": b"small"}
    store.store_many([timeout(name, body=body) for name, body in stored.items()])
    chunk = store.claim(NOW, 10, "o")

    found = sub_batches(store, chunk.token, chunk.keys)

    sizes = [sum(len(body) for _, body in sub_batch) for sub_batch in found]
    assert dict(one for sub_batch in found for one in sub_batch) == stored
    assert max(sizes) <= lock.TOGETHER
    assert (store.count(TimeoutFilter()), store.statistics().claimed) == (0, 0)


def test_a_body_above_the_limit_is_locked_alone(
    sql: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "TOGETHER", MIB)
    store = sql()
    store.store_many([timeout("a", body=b"a" * (2 * MIB)), timeout("b"), timeout("c")])
    chunk = store.claim(NOW, 10, "o")

    found = sub_batches(store, chunk.token, chunk.keys)

    assert [id_ for sub_batch in found for id_, _ in sub_batch] == ["a", "b", "c"]
    assert found[0] == [("a", b"a" * (2 * MIB))]


def test_a_row_that_is_left_can_still_be_cancelled(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(name, body=name.encode() * (5 * MIB)) for name in "ab"])
    chunk = store.claim(NOW, 10, "o")

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes([one.key for one in locked.timeouts]))
    cancelled = store.cancel("b")

    assert [one.id for one in locked.timeouts] == ["a"]
    assert cancelled is CancelResult.CANCELLED
    assert sub_batches(store, "", chunk.keys[1:]) == [[]]


def test_the_rest_of_a_dispatcher_that_died_is_claimed_again(sql: Stores) -> None:
    store = sql()
    store.store_many([timeout(name, body=name.encode() * (5 * MIB)) for name in "ab"])
    chunk = store.claim(NOW, 10, "o")
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes([one.key for one in locked.timeouts]))

    again = store.claim(NOW, 10, "another")

    assert [key.id for key in again.keys] == ["b"]
    assert [id_ for [(id_, _)] in sub_batches(store, again.token, again.keys)] == ["b"]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sizes=st.lists(st.integers(0, 40), max_size=12), data=st.data())
def test_all_rows_are_locked_once_in_order_and_never_more_than_fits(
    sqlite: Stores, monkeypatch: pytest.MonkeyPatch, sizes: list[int], data: st.DataObject
) -> None:
    monkeypatch.setattr(lock, "ALONG", data.draw(st.integers(0, 20)))
    monkeypatch.setattr(lock, "TOGETHER", most := 50)
    store = sqlite(endpoint=f"{sqlite.endpoint} {next(NUMBERS)}")
    stored = [(f"{number:02}", b"x" * size) for number, size in enumerate(sizes)]
    store.store_many([timeout(name, body=body) for name, body in stored])
    chunk = store.claim(NOW, 20, "o")

    found = sub_batches(store, chunk.token, chunk.keys)

    assert [one for sub_batch in found for one in sub_batch] == stored
    for sub_batch in found:
        together = sum(len(body) for _, body in sub_batch)
        assert together <= most or all(len(body) <= lock.ALONG for _, body in sub_batch)


@pytest.mark.parametrize("mode", list(TransactionMode)[:-1])
def test_a_dispatcher_sends_the_rows_that_fit_and_leaves_the_rest_to_a_later_claim(
    sql: Stores, mode: TransactionMode
) -> None:
    store, transport, telemetry = sql(), FakeTransport("billing"), Counters()
    step = DispatchTimeouts(
        store=store,
        error_queue="error",
        limits=Limits(),
        clock=sql.clock,
        telemetry=telemetry,
    )
    store.store_many([timeout(name, body=name.encode() * (5 * MIB)) for name in "abc"])
    sent = []

    while (chunk := store.claim(NOW, 10, "o")).keys:
        with Work(transport.session(), FakeReceiver(transport, "control"), mode) as work:
            step.dispatch(chunk.token, chunk.keys, work)
        sent.append(transport.ids("billing"))

    assert sent == [["m a"], ["m a", "m b"], ["m a", "m b", "m c"]]
    assert (store.count(TimeoutFilter()), store.statistics().claimed) == (0, 0)
    assert telemetry.snapshot()["timeouts_dispatched"] == 3
    assert telemetry.snapshot().get("timeouts_gone", 0) == 0


def test_in_one_transaction_a_dispatcher_sends_all_of_a_chunk_of_large_bodies(
    sql: Stores, unique: str
) -> None:
    store, telemetry = sql(atomic=True), Counters()
    step = DispatchTimeouts(
        store=store,
        error_queue="error",
        limits=Limits(),
        clock=sql.clock,
        telemetry=telemetry,
    )
    store.store_many([timeout(name, body=name.encode() * (5 * MIB)) for name in "abc"])
    chunk = store.claim(NOW, 10, "o")

    assert sql.persistence.database is not None
    with closing(SqlTransport(sql.persistence.database, prefix=f"{unique}_")) as transport:
        transport.install()
        session = transport.session()
        session.create_queues(["billing", "control"])
        receiver = session.receiver("control", prefetch=1)
        with Work(session, receiver, TransactionMode.TRANSACTION_SCOPE) as work:
            step.dispatch(chunk.token, chunk.keys, work)
        arrived = session.receiver("billing", prefetch=0).receive(10, 0)

    assert [one.message.body[:1] for one in arrived] == [b"a", b"b", b"c"]
    assert (store.count(TimeoutFilter()), store.statistics().claimed) == (0, 0)
    assert telemetry.snapshot()["timeouts_dispatched"] == 3

"""A store says if a message with a used id is a repeat, a replacement or a conflict."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    ExaminesIds,
    Key,
    OnConflict,
    OutcomeKind,
    RepeatKind,
    Timeout,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.errors import IdInUse
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, having, timeout
from timeoutmgr.testing.conformance.stores.suite import (
    ALL,
    Stores,
    StoreSuite,
    dispatch,
    drain,
    outcomes,
    pending,
    store_and_claim,
)


def replacement(name: str, due: Micros, created: Micros, **given: Any) -> Timeout:
    """Return a timeout that replaces a pending timeout."""
    made = timeout(name, due, **given)
    return replace(made, created=created, on_conflict=OnConflict.REPLACE)


def _overtaken(now: Micros, body: bytes) -> Timeout:
    return replace(timeout("a", now, body=body), created=now - SECOND)


def kinds(store: TimeoutStore, *timeouts: Timeout) -> list[RepeatKind | None]:
    """Store *timeouts* in one batch; return the effect of each, None for a new id."""
    repeats = {id(one.timeout): one.kind for one in store.store_many(timeouts)}
    return [repeats.get(id(one)) for one in timeouts]


ADDED: dict[str, str] = {
    headers.TIME_SENT: "2030-01-01 00:00:00:000000 Z",
    headers.DELIVER_AT: "2030-01-01 00:00:00:000000 Z",
    headers.EXPIRE: "2030-01-01 00:00:00:000000 Z",
    headers.DISPATCHED_AT: "2030-01-01 00:00:00:000000 Z",
    headers.FAILED_QUEUE: "sales.Timeouts",
    headers.RETRIES: "1",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "X-B3-TraceId": "463ac35c9f6413ad48485a3953bb6124",
    "$.diagnostics.originating.hostid": "a",
}
"""Headers that are added to a message on its way, or that differ between its sends."""


class TimeoutRepeats(StoreSuite):
    """Results and effects of ``store_many``."""

    def test_the_same_content_again_is_a_duplicate(self, store: TimeoutStore, now: Micros) -> None:
        first = timeout("a", now + HOUR)
        store.store_many([first])

        again = kinds(store, timeout("b", now), timeout("a", now), timeout("b", now))

        assert again == [None, RepeatKind.DUPLICATE, RepeatKind.DUPLICATE]
        assert store.find("a") == (TimeoutState.PENDING, first)

    @pytest.mark.parametrize(
        "other",
        [
            timeout("a", 0, body=b"other"),
            timeout("a", 0, destination="stock"),
            having(timeout("a", 0), {"more": "header"}),
            having(timeout("a", 0), {"name": "other"}),
        ],
        ids=["body", "destination", "header", "value"],
    )
    def test_other_content_is_a_conflict_and_changes_nothing(
        self, store: TimeoutStore, now: Micros, other: Timeout
    ) -> None:
        first = timeout("a", now + HOUR)
        store.store_many([first])

        assert kinds(store, timeout("b", now), other) == [None, RepeatKind.CONFLICT]

        assert store.find("a") == (TimeoutState.PENDING, first)
        assert pending(store) == ["b", "a"]

    @pytest.mark.parametrize("name", ADDED)
    def test_headers_added_on_the_way_are_no_content(
        self, store: TimeoutStore, now: Micros, name: str
    ) -> None:
        store.store_many([timeout("a", now)])

        assert kinds(store, having(timeout("a", now), {name: ADDED[name]})) == [
            RepeatKind.DUPLICATE
        ]

    def test_due_times_conflict_only_if_both_sends_gave_theirs(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        given = replace(timeout("a", now + HOUR), due_given=True)
        store.store_many([given, timeout("b", now + HOUR)])

        found = kinds(
            store,
            replace(given, due=now + 1),
            timeout("a", now + 2),
            given,
            replace(timeout("b", now), due_given=True),
        )

        assert found == [
            RepeatKind.CONFLICT,
            RepeatKind.DUPLICATE,
            RepeatKind.DUPLICATE,
            RepeatKind.DUPLICATE,
        ]

    def test_a_rescheduled_timeout_conflicts_with_no_redelivery(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        given = replace(timeout("a", now + HOUR), due_given=True)
        store.store_many([given])
        store.reschedule("a", now + 2 * HOUR)

        assert kinds(store, given) == [RepeatKind.DUPLICATE]
        assert store.key_of("a") == Key(now + 2 * HOUR, "a")

    @pytest.mark.parametrize("kind", [OutcomeKind.DISPATCHED, OutcomeKind.FAILED])
    def test_a_tombstone_remembers_the_content(
        self, store: TimeoutStore, now: Micros, kind: OutcomeKind
    ) -> None:
        chunk = store_and_claim(store, now, 1, timeout("a", now - 1))
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            locked.close(outcomes(chunk.keys, now, kind))

        found = kinds(store, timeout("a", now), timeout("a", now, body=b"other"))

        assert found == [RepeatKind.DUPLICATE, RepeatKind.CONFLICT]
        assert store.count(ALL) == 0

    def test_a_conflict_within_one_batch_is_found(self, store: TimeoutStore, now: Micros) -> None:
        found = kinds(store, timeout("a", now + 1), timeout("a", now, body=b"other"))

        assert found == [None, RepeatKind.CONFLICT]
        assert [one.due for one in store.list(ALL)] == [now + 1]

    def test_an_early_cancel_is_reported_once_and_conflicts_with_nothing(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.cancel("a")

        found = kinds(store, timeout("a", now), timeout("b", now), timeout("a", now))

        assert found == [RepeatKind.CANCELLED, None, RepeatKind.DUPLICATE]
        assert store.cancel("a") is CancelResult.CANCELLED
        assert store.statistics().outcomes.get("cancelled") == 1
        assert kinds(store, timeout("a", now, body=b"other")) == [RepeatKind.CONFLICT]
        assert pending(store) == ["b"]

    def test_a_replacement_takes_the_place_of_a_pending_timeout(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now - 1, saga="s"), timeout("b", now + HOUR)])
        newer = replacement("a", now + 2 * HOUR, now, body=b"newer", destination="stock")

        assert kinds(store, newer) == [RepeatKind.REPLACED]

        assert store.find("a") == (TimeoutState.PENDING, newer)
        assert pending(store) == ["b", "a"]
        assert list(store.cancel_saga("s")) == []
        assert drain(store) == []

    def test_a_replacement_may_change_the_due_time_alone(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        assert kinds(store, replacement("a", now - HOUR, now)) == [None]

        assert kinds(store, replacement("a", now + HOUR, now + 1)) == [RepeatKind.REPLACED]

        assert drain(store) == []
        assert store.key_of("a") == Key(now + HOUR, "a")

    def test_an_older_replacement_changes_nothing(self, store: TimeoutStore, now: Micros) -> None:
        first = timeout("a", now - HOUR)
        older = replacement("a", now + HOUR, now, body=b"older")
        newer = replacement("a", now + 2 * HOUR, now + 1, body=b"newer")
        store.store_many([first, older, newer])

        found = kinds(store, older, newer, first)

        assert found == [RepeatKind.SUPERSEDED, RepeatKind.DUPLICATE, RepeatKind.DUPLICATE]
        assert store.find("a") == (TimeoutState.PENDING, newer)

    def test_the_tombstone_knows_replaced_messages_after_the_dispatch(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        first = timeout("a", now - HOUR)
        older = replacement("a", now - 2, now - 2 * SECOND, body=b"older")
        newer = replacement("a", now - 1, now - SECOND, body=b"newer")
        store.store_many([first, older, newer])
        drain(store)

        found = kinds(store, first, older, newer, replacement("a", now, now, body=b"too late"))

        assert found == [
            RepeatKind.DUPLICATE,
            RepeatKind.SUPERSEDED,
            RepeatKind.DUPLICATE,
            RepeatKind.CONFLICT,
        ]
        assert store.find("a") == (TimeoutState.DISPATCHED, None)

    @pytest.mark.parametrize("fate", ["pending", "dispatched", "cancelled"])
    def test_a_message_behind_its_replacement_counts_as_replaced(
        self, store: TimeoutStore, now: Micros, fate: str
    ) -> None:
        first, other = (_overtaken(now, body) for body in (b"first", b"other"))
        older = replacement("a", now - 2, now, body=b"older")
        newer = replacement("a", now - 1, now + 1, body=b"newer")
        if fate == "cancelled":
            store.cancel("a")
        else:
            store.store_many([older])
        store.store_many([newer])
        if fate == "dispatched":
            drain(store)

        assert kinds(store, older, first) == [RepeatKind.SUPERSEDED, RepeatKind.SUPERSEDED]

        assert kinds(store, first, other) == [RepeatKind.DUPLICATE, RepeatKind.CONFLICT]

    def test_a_message_of_the_instant_of_a_replacement_is_a_conflict(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([replacement("a", now, now - SECOND, body=b"one")])
        other = replacement("a", now, now - SECOND, body=b"other")

        assert kinds(store, other, _overtaken(now, b"later")) == [RepeatKind.CONFLICT] * 2

    def test_a_replacement_reopens_no_closed_id(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout("a", now - 1), timeout("b", now)])
        store.cancel("b")
        drain(store)

        found = kinds(
            store,
            replacement("a", now, now),
            replacement("a", now, now, body=b"other"),
            replacement("b", now, now, body=b"other"),
            timeout("b", now),
        )

        assert found == ["duplicate", "conflict", "conflict", "duplicate"]
        assert store.count(ALL) == 0

    def test_a_replacement_of_a_locked_timeout_is_too_late(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 1, timeout("a", now - 1))

        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            found = kinds(
                store, replacement("a", now, now, body=b"other"), replacement("a", now, now)
            )
            locked.close(outcomes(chunk.keys, now))

        assert found == [RepeatKind.CONFLICT, RepeatKind.DUPLICATE]
        assert store.find("a") == (TimeoutState.DISPATCHED, None)

    def test_a_claim_of_the_replaced_timeout_sends_neither_early(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        chunk = store_and_claim(store, now, 1, timeout("a", now - 1))
        store.store_many([replacement("a", now + HOUR, now, body=b"newer")])

        assert dispatch(store, chunk.token, chunk.keys) == []
        assert store.reschedule("a", now - 1) in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT)

    def test_a_conflict_that_asks_for_an_error_stores_nothing(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now)])
        refused = replace(timeout("a", now, body=b"other"), on_conflict=OnConflict.ERROR)

        with pytest.raises(IdInUse, match="'message a'"):
            store.store_many([timeout("0", now), refused, timeout("b", now)])

        assert pending(store) == ["a"]
        assert kinds(store, replace(timeout("a", now), on_conflict=OnConflict.ERROR)) == [
            RepeatKind.DUPLICATE
        ]

    @needs(transactions=True)
    def test_a_rollback_undoes_a_repeat(self, stores: Stores, now: Micros) -> None:
        store = stores()
        first = timeout("a", now)
        store.store_many([first])
        store.cancel("b")

        with stores.rolled_back() as transaction:
            batch = [replacement("a", now + HOUR, now + 1, body=b"newer"), timeout("b", now)]
            found = store.store_many(batch, transaction=transaction)

        assert {one.kind for one in found} == {RepeatKind.REPLACED, RepeatKind.CANCELLED}
        assert store.find("a") == (TimeoutState.PENDING, first)
        assert store.cancel("b") is CancelResult.WILL_BE_CANCELLED

    @needs(transactions=True)
    def test_a_refused_batch_leaves_the_callers_transaction_usable(
        self, stores: Stores, now: Micros
    ) -> None:
        store = stores()
        store.store_many([timeout("a", now)])
        refused = replace(timeout("a", now, body=b"other"), on_conflict=OnConflict.ERROR)

        with stores.committed() as transaction:
            with pytest.raises(IdInUse):
                store.store_many([timeout("0", now), refused], transaction=transaction)
            store.store_many([timeout("b", now + 1)], transaction=transaction)

        assert pending(store) == ["a", "b"]

    @needs(transactions=True)
    def test_ids_can_be_examined_without_storing(self, stores: Stores, now: Micros) -> None:
        store = stores()
        assert isinstance(store, ExaminesIds)
        store.store_many([timeout("a", now)])
        store.cancel("c")
        asked = [
            timeout("a", now + 1),
            timeout("a", now, body=b"other"),
            replacement("a", now + HOUR, now),
            timeout("b", now),
            timeout("c", now),
        ]

        with stores.committed() as transaction:
            found = store.examine(asked, transaction=transaction)

        assert [(one.timeout.id, one.kind) for one in found] == [
            ("a", RepeatKind.DUPLICATE),
            ("a", RepeatKind.CONFLICT),
            ("a", RepeatKind.REPLACED),
            ("c", RepeatKind.CANCELLED),
        ]
        assert pending(store) == ["a"]
        assert store.cancel("c") is CancelResult.WILL_BE_CANCELLED

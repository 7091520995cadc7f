"""A store finds and cancels timeouts by the labels of their messages."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from timeoutmgr.contracts import (
    Cancelled,
    CancelResult,
    ChangeResult,
    FindsByLabels,
    Outcome,
    OutcomeKind,
    Place,
    RepeatKind,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.contracts.sagas import LONG_REMEMBERED
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.labels import label_headers
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, SetClock, Track, having, timeout
from timeoutmgr.testing.conformance.stores.suite import Stores, StoreSuite, dispatch, pending


@needs(finds_by_labels=True)
class LabelCases(StoreSuite):
    """``TimeoutFilter.labels`` and ``cancel_where``."""

    def test_a_filter_finds_timeouts_that_have_all_its_labels(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        both = labelled("a", now + 1, tenant="x", task="t")
        several = labelled("b", now, tenant=["x", "y"])
        store.store_many([both, several, labelled("c", now, tenant="y"), timeout("d", now)])

        assert found(store, "tenant=x") == ["b", "a"]
        assert found(store, "tenant=y") == ["b", "c"]
        assert found(store, "task=t", "tenant=x") == ["a"]
        assert found(store, "tenant=X") == found(store, "tenant") == []

    def test_a_page_by_label_begins_behind_a_key_and_keeps_to_the_other_conditions(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([labelled(f"{n}", now + n, task="t") for n in range(6)])
        which = TimeoutFilter(labels=("task=t",), due_from=now + 1, due_before=now + 5)

        first = store.list(which, limit=2)
        rest = store.list(which, after=first[-1].key)

        assert [one.id for one in (*first, *rest)] == ["1", "2", "3", "4"]
        assert (first[0], store.count(which)) == (labelled("1", now + 1, task="t"), 4)
        assert found(store, "task=t", destination="elsewhere") == []

    def test_labels_follow_their_timeout_and_end_with_it(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        ids = [*"abcde"]
        store.store_many([labelled(one, now - 1, task="t", saga="s" * (one == "e")) for one in ids])
        chunk = store.claim(now, 5, "o")
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            kinds = dict.fromkeys("abe", OutcomeKind.RETRY) | {"c": OutcomeKind.FAILED}
            locked.close(
                [
                    Outcome(
                        key=key,
                        kind=kinds.get(key.id, OutcomeKind.DISPATCHED),
                        at=now,
                        next_try=now + HOUR,
                    )
                    for key in chunk.keys
                ]
            )
        assert found(store, "task=t") == ["a", "b", "e"]

        assert store.reschedule("a", now + 2 * HOUR) is not ChangeResult.UNKNOWN
        assert found(store, "task=t") == ["b", "e", "a"]
        store.cancel("b")
        store.cancel_saga("s")
        assert found(store, "task=t") == ["a"]
        store.reschedule("a", now - 1)
        assert dispatch(store, "", [labelled("a", now - 1).key]) == ["a"]
        assert found(store, "task=t") == []

    def test_a_cancel_by_label_meets_each_of_its_timeouts(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([labelled(f"{n}", now + n, task="t") for n in range(700)])
        store.store_many([labelled("other", now, task="u"), timeout("none", now)])

        met = cancelled(store, "task=t", now)

        assert {one.result for one in met} == {CancelResult.CANCELLED}
        assert len({one.timeout.id for one in met}) == len(met) == 700
        example = labelled("7", now + 7, task="t")
        kept = replace(example, message=replace(example.message, body=b""))
        assert kept in [one.timeout for one in met]
        assert sorted(pending(store)) == ["none", "other"]
        assert store.find("7") == (TimeoutState.CANCELLED, None)
        assert cancelled(store, "task=t", now) == []

    def test_a_cancel_by_label_says_which_timeouts_are_being_dispatched(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([labelled("a", now - 1, task="t"), labelled("b", now + HOUR, task="t")])
        chunk = store.claim(now, 1, "o")
        with store.lock_for_dispatch(chunk.token, chunk.keys):
            met = cancelled(store, "task=t", now)

        assert {one.timeout.id: one.result for one in met} == {
            "a": CancelResult.TOO_LATE,
            "b": CancelResult.CANCELLED,
        }
        assert pending(store) == ["a"]

    def test_a_cancel_holds_for_messages_that_wait_to_be_stored(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        cancelled(store, "task=t", now - HOUR)
        cancelled(store, "task=t", now)
        cancelled(store, "task=t", now - HOUR)
        waited = waiting(labelled("a", now, task="t", tenant="x"), sent=now)
        sent_later = waiting(labelled("b", now, task="t"), sent=now + 1)
        other = waiting(labelled("c", now, task="u"), sent=now)
        by_no_queue = replace(labelled("d", now, task="t"), created=now)

        repeats = store.store_many([waited, sent_later, other, by_no_queue])

        assert [(one.timeout.id, one.kind) for one in repeats] == [("a", RepeatKind.CANCELLED)]
        assert sorted(pending(store)) == ["b", "c", "d"]
        assert store.find("a") == (TimeoutState.CANCELLED, None)
        [again] = store.store_many([waited])
        assert again.kind is RepeatKind.DUPLICATE

    def test_a_cancel_of_a_saga_holds_for_messages_that_wait_to_be_stored(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout("a", now, saga="s"), timeout("b", now, saga="other")])
        met = cancel(store, TimeoutFilter(saga_id="s"), now)
        waited = waiting(timeout("c", now, saga="s"), sent=now)

        [repeat] = store.store_many([waited, waiting(timeout("d", now, saga="s"), sent=now + 1)])

        assert [one.timeout.id for one in met] == ["a"]
        assert (repeat.timeout.id, repeat.kind) == ("c", RepeatKind.CANCELLED)
        assert sorted(pending(store)) == ["b", "d"]

    @needs(settable_clock=True)
    def test_a_cancel_by_label_is_remembered_for_a_week(
        self, store: TimeoutStore, now: Micros, clock: SetClock
    ) -> None:
        cancelled(store, "task=t", now)
        clock.at = now + LONG_REMEMBERED - 1
        store.purge()
        [repeat] = store.store_many([waiting(labelled("a", now, task="t"), sent=now)])
        clock.at = now + LONG_REMEMBERED + 1
        store.purge()

        assert repeat.kind is RepeatKind.CANCELLED
        assert list(store.store_many([waiting(labelled("b", now, task="t"), sent=now)])) == []

    def test_a_cancel_of_many_names_one_label_or_one_saga(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        one = TimeoutFilter(labels=("a=b",))
        for which in (
            TimeoutFilter(),
            replace(one, labels=("a=b", "c=d")),
            replace(one, saga_id="s"),
            replace(one, due_before=now),
        ):
            with pytest.raises(ValueError, match="one label or one saga"):
                cancel(store, which, now)

    def test_of_a_cancel_by_label_and_a_concurrent_insert_one_sees_the_other(
        self, stores: Stores, now: Micros, track: Track
    ) -> None:
        rounds = max(20, self.races // 20)
        for n in range(rounds):
            store = stores(f"{stores.endpoint}.{n % 4}")
            one = waiting(labelled(f"t{n}", now + HOUR, run=f"{n}"), sent=now - 1)
            track.race(partial(store.store_many, [one]), partial(cancelled, store, f"run={n}", now))
            assert store.find(one.id) == (TimeoutState.CANCELLED, None)


def labelled(name: str, due: Micros, saga: str = "", **labels: str | Sequence[str]) -> Timeout:
    """Return a timeout with *labels*."""
    return having(timeout(name, due, saga=saga or None), label_headers(labels))


def waiting(one: Timeout, *, sent: Micros) -> Timeout:
    """Return *one* as if it was sent at *sent* and received by a consumer a second later."""
    return replace(one, created=sent, place=Place(1, sent + SECOND, sent + SECOND))


def found(store: TimeoutStore, *labels: str, destination: str | None = None) -> list[str]:
    """Return the ids that ``list`` finds; ``count`` must agree."""
    which = TimeoutFilter(labels=labels, destination=destination)
    ids = [one.id for one in store.list(which)]
    assert store.count(which) == len(ids)
    return ids


def cancelled(store: TimeoutStore, label: str, sent_until: Micros) -> Sequence[Cancelled]:
    """Cancel the timeouts with *label*; return the result for each."""
    return cancel(store, TimeoutFilter(labels=(label,)), sent_until)


def cancel(store: TimeoutStore, which: TimeoutFilter, sent_until: Micros) -> Sequence[Cancelled]:
    """Cancel the timeouts that match *which*; return the result for each."""
    assert isinstance(store, FindsByLabels)
    return store.cancel_where(which, sent_until=sent_until, channel="test")

"""Answers about timeouts are true, and say if they are incomplete."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from timeoutmgr.contracts import (
    Count,
    GroupBy,
    Groups,
    HistoryFilter,
    Insight,
    Key,
    LoadWindow,
    Overdue,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.message.headers import ENCLOSED_MESSAGE_TYPES
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, SECOND, having, timeout
from timeoutmgr.testing.conformance.stores.suite import ALL, Stores, StoreSuite, dispatch, retry


@needs(has_insight=True)
class InsightCases(StoreSuite):
    """:class:`timeoutmgr.contracts.Insight`."""

    def test_a_type_is_the_whole_name_of_the_most_specific_type(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many(
            [
                typed("plain", now, "Shop.Order"),
                typed("assembly", now, "Shop.Order, Shop, Version=1.0"),
                typed("several", now, "Shop.Order;Shop.Message"),
                typed("base", now, "Shop.Message;Shop.Order"),
                typed("longer", now, "Shop.Orders"),
                typed("other case", now, "Shop.order"),
                typed("signs", now, 'Größe "%_\\'),
                timeout("none", now),
            ]
        )

        of_orders = matching(store, TimeoutFilter(message_type="Shop.Order"))
        assert of_orders == ["assembly", "plain", "several"]
        assert matching(store, TimeoutFilter(message_type='Größe "%_\\')) == ["signs"]
        assert matching(store, TimeoutFilter(message_type="Shop")) == []

    def test_a_prefix_selects_ids_that_begin_with_it(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        names = ("a", "ab", "abc", "aB", "b", "a%", "aé")
        store.store_many([timeout(name, now) for name in names])

        assert matching(store, TimeoutFilter(id_prefix="ab")) == ["ab", "abc"]
        assert matching(store, TimeoutFilter(id_prefix="a%")) == ["a%"]
        all_of_a = ["a", "a%", "aB", "ab", "abc", "aé"]
        assert matching(store, TimeoutFilter(id_prefix="a")) == all_of_a
        assert matching(store, TimeoutFilter(id_prefix="c")) == []

    def test_groups_count_by_destination_and_by_type(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout(f"{n}", now + n) for n in range(3)])
        store.store_many([typed("typed", now + 3, "Shop.Order, Shop")])
        store.store_many([timeout("other", now + 4, destination="other")])
        asked = insight(store)

        by_destination = asked.groups(ALL, GroupBy.DESTINATION, limit=10)
        by_type = asked.groups(ALL, GroupBy.TYPE, limit=10)
        first = asked.groups(ALL, GroupBy.DESTINATION, limit=2, after=Key(now, "0"))

        assert by_destination == Groups({"billing": 4, "other": 1})
        assert (by_type, by_type.counted) == (Groups({None: 4, "Shop.Order": 1}), 5)
        assert first == Groups({"billing": 2})

    def test_load_counts_each_bucket_by_the_next_try(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        start = now + HOUR
        window = LoadWindow(start=start, width=10, buckets=3)
        store.store_many([timeout("retried", now - 1), timeout("before", now - 1)])
        chunk = store.claim(now, 1, "o")
        retry(store, chunk.token, chunk.keys, start + 19)
        for due in (start, start + 9, start + 10, start + 29, start + 30):
            store.store_many([timeout(f"{due}", due)])
        store.store_many([timeout("other", start + 29, destination="other")])

        load = insight(store).load(window)
        of_other = insight(store).load(window, destination="other")

        assert load.counts == [Count(2), Count(2), Count(2)]
        assert (load.window, load.total) == (window, Count(6))
        assert load.at >= now
        assert of_other.counts == [Count(0), Count(0), Count(1)]

    def test_the_details_of_an_id_have_its_claim_and_its_end(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        first, second = timeout("a", now), timeout("b", now + HOUR)
        store.store_many([first, second])
        chunk = store.claim(now, 1, "me")

        claimed, later = insight(store).details("a"), insight(store).details("b")
        dispatch(store, chunk.token, chunk.keys)
        ended = insight(store).details("a")

        assert claimed is not None
        assert claimed.claim is not None
        assert (claimed.state, claimed.timeout) == (TimeoutState.PENDING, first)
        assert (claimed.claim.owner, claimed.claim.first) == ("me", first.key)
        assert later is not None
        assert later.claim is None
        assert ended is not None
        assert (ended.state, ended.timeout) == (TimeoutState.DISPATCHED, None)
        assert ended.claim is None
        assert [event.event for event in ended.events][-1:] == ["dispatched"]
        assert insight(store).details("never") is None

    def test_overdue_counts_a_retry_by_its_due_time(self, store: TimeoutStore, now: Micros) -> None:
        store.store_many([timeout("a", now - SECOND), timeout("b", now)])
        assert insight(store).overdue(now - SECOND) == Overdue(Count(0), None)

        chunk = store.claim(now, 1, "o")
        retry(store, chunk.token, chunk.keys, now + HOUR)

        assert insight(store).overdue(now) == Overdue(Count(1), now - SECOND)
        assert insight(store).overdue(now + 1) == Overdue(Count(2), now - SECOND)

    def test_in_flight_are_the_keys_of_claims_in_force(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout(f"{n}", now) for n in range(5)])
        assert (insight(store).in_flight().number, insight(store).in_flight().claims) == (0, [])

        store.claim(now, 3, "one")
        store.claim(now, 3, "other")
        found = insight(store).in_flight()

        assert found.number == 5
        assert [(claim.owner, claim.size) for claim in found.claims] == [("one", 3), ("other", 2)]
        assert (found.claims[0].first.id, found.claims[0].last.id) == ("0", "2")

    def test_the_history_is_listed_newest_first_in_pages(
        self, stores: Stores, store: TimeoutStore, now: Micros
    ) -> None:
        store.store_many([timeout(f"{n}", now + HOUR) for n in range(5)])
        store.store_many([timeout("other", now + HOUR, destination="other")])
        for name in ("0", "1", "2", "3", "4", "other"):
            store.cancel(name)
        cancels = HistoryFilter(event="cancelled")
        of_other = HistoryFilter(event="cancelled", destination="other")

        first = insight(store).events(cancels, limit=4)
        second = insight(store).events(cancels, limit=4, after=first.next)

        assert [event.id for event in first.events] == ["other", "4", "3", "2"]
        assert [event.id for event in second.events] == ["1", "0"]
        assert second.next is None
        assert [event.id for event in insight(store).events(of_other).events] == ["other"]
        assert insight(store).events(HistoryFilter(since=now + HOUR)).events == []


def insight(store: TimeoutStore) -> Insight:
    """Return *store*, which must implement Insight."""
    assert isinstance(store, Insight)
    return store


def typed(name: str, due: Micros, types: str) -> Timeout:
    """Return a timeout whose message has the types *types*."""
    return having(timeout(name, due), {ENCLOSED_MESSAGE_TYPES: types})


def matching(store: TimeoutStore, which: TimeoutFilter) -> list[str]:
    """Return the ids of matching timeouts; all queries must agree on them."""
    page = insight(store).list_in_bounds(which)
    assert page.searched_to is None
    found = [one.id for one in page.timeouts]
    assert insight(store).count_in_bounds(which) == Count(len(found))
    assert (store.count(which), [one.id for one in store.list(which)]) == (len(found), found)
    return found

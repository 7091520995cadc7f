"""Every store answers about its timeouts; a SQL store reads a bounded number of rows for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import event, text

from tests.persistence.conftest import HOST, Stores
from tests.persistence.explaining import rows_read
from tests.persistence.making import NOW, SECOND, dispatch, timeout
from timeoutmgr.contracts import (
    Count,
    Exactness,
    GroupBy,
    HistoryCursor,
    HistoryEntry,
    HistoryFilter,
    Insight,
    LoadWindow,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.message.headers import ENCLOSED_MESSAGE_TYPES, RETRIES_TIMESTAMP
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.routes import id_of_timeout, timeout_id
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql import insight as bounds
from timeoutmgr.persistence.sql.insight import StoreInsight
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

ALL = TimeoutFilter()
ROWS = 10


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can pass."""
    monkeypatch.setattr(bounds, "COUNTED", 5)
    monkeypatch.setattr(bounds, "LOOKED_AT", ROWS)
    monkeypatch.setattr(bounds, "_PREFIXED", 3)


def insight(store: TimeoutStore) -> Insight:
    assert isinstance(store, Insight)
    return store


def names(store: TimeoutStore, which: TimeoutFilter) -> list[str]:
    page = insight(store).list_in_bounds(which)
    assert page.searched_to is None
    found = [one.id for one in page.timeouts]
    assert insight(store).count_in_bounds(which) == Count(len(found))
    assert (store.count(which), [one.id for one in store.list(which)]) == (len(found), found)
    return found


def test_a_prefix_of_many_ids_selects_the_same(small: None, store: TimeoutStore) -> None:
    store.store_many([timeout(f"a{n}", NOW + n) for n in range(5)])
    store.store_many([timeout("b")])
    store.cancel("a0")

    assert names(store, TimeoutFilter(id_prefix="a")) == ["a1", "a2", "a3", "a4"]


def test_buckets_that_are_not_read_to_their_end_are_lower_bounds(
    small: None, sql_of: Callable[[str], SqlPersistence], unique: str
) -> None:
    store = Stores(sql_of("sqlite"), unique)()
    window = LoadWindow(start=NOW, width=10, buckets=4)
    store.store_many([timeout(f"first {n}", NOW + 10 + n) for n in range(9)])
    store.store_many([timeout(f"next {n}", NOW + 20) for n in range(6)])
    store.store_many([timeout(f"last {n}", NOW + 30) for n in range(3)])

    assert isinstance(store, SqlTimeoutStore)
    load = StoreInsight(store.context, lambda: 0.0).load(window)

    assert load.counts == [Count(0), Count(9), Count(5, exact=False), Count(3)]
    assert (str(load.total), load.total.exactness) == ("17+", Exactness.AT_LEAST)


def test_buckets_that_are_not_read_are_estimated_from_statistics(
    crowded: SqlPersistence, unique: str
) -> None:
    store = insight(crowded.timeouts(unique, Stores(crowded, unique).clock))
    window = LoadWindow(start=NOW, width=MANY // 6, buckets=8)

    load = store.load(window)
    to_billing = store.load(window, destination="billing")

    numbers = [count.number for count in load.counts]
    assert all(count.is_estimate for count in load.counts)
    assert load.total.exactness is Exactness.ESTIMATE
    assert numbers == pytest.approx([MANY / 6] * 6 + [0, 0], abs=MANY * 0.02)
    assert to_billing.counts == load.counts
    assert not any(count.is_estimate for count in store.load(window, destination="nowhere").counts)


@pytest.mark.parametrize(("width", "buckets"), [(0, 1), (1, 0), (1, 501)])
def test_a_window_has_time_and_buckets(width: int, buckets: int) -> None:
    with pytest.raises(ValueError, match="a window has 1 to 500 buckets"):
        LoadWindow(start=NOW, width=width, buckets=buckets)


def test_an_estimate_says_so() -> None:
    estimate = Count(12, exact=False, is_estimate=True)

    assert (str(estimate), estimate.exactness) == ("≈12", Exactness.ESTIMATE)
    assert Count(12).exactness is Exactness.EXACT


def test_a_search_of_the_history_ends_behind_so_many_events(small: None, sql: Stores) -> None:
    store = sql()
    store.store_many([timeout("0", destination="other")])
    store.cancel("0")
    store.store_many([timeout(f"{n}") for n in range(1, ROWS + 1)])
    for n in range(1, ROWS + 1):
        store.cancel(f"{n}")
    wanted = HistoryFilter(event="cancelled", destination="other")

    seen: list[HistoryEntry] = []
    page = insight(store).events(wanted)
    while page.next is not None:
        seen += page.events
        assert isinstance(page.next, HistoryCursor)
        page = insight(store).events(wanted, after=page.next)

    assert not seen
    assert [event.id for event in page.events] == ["0"]


MANY = 600
NOTHING = [
    TimeoutFilter(destination="nowhere"),
    TimeoutFilter(message_type="Nothing"),
    TimeoutFilter(id_prefix="0", destination="nowhere"),
    TimeoutFilter(saga_id="s", destination="nowhere"),
    TimeoutFilter(saga_id="none"),
    TimeoutFilter(id_prefix="none"),
    TimeoutFilter(due_from=NOW + SECOND, destination="nowhere"),
    TimeoutFilter(due_before=NOW, destination="nowhere"),
    TimeoutFilter(due_from=NOW, due_before=NOW + SECOND, message_type="Nothing"),
    TimeoutFilter(due_before=NOW + MANY // 2, destination="nowhere"),
]


@pytest.fixture
def crowded(
    small: None,
    postgres_url: str,
    unique: str,
    persistence_of: Callable[..., SqlPersistence],
) -> SqlPersistence:
    """Tables of their own on PostgreSQL with MANY timeouts, of which half wait for a retry."""
    made = persistence_of(postgres_url, prefix=f"{unique}_", settings=HOST)
    made.install()
    store = made.timeouts(unique, Stores(made, unique).clock)
    store.store_many([timeout(f"0{n:05}", NOW + n, saga="s") for n in range(MANY)])
    with made.database.engine.begin() as connection:
        name = f"{unique}_timeouts"
        connection.execute(text(f"UPDATE {name} SET original_due = due - 1 WHERE due % 2 = 0"))
    with made.database.engine.connect().execution_options(
        isolation_level="AUTOCOMMIT"
    ) as connection:
        connection.execute(text("VACUUM ANALYZE"))
    return made


@pytest.mark.parametrize("which", NOTHING, ids=range(len(NOTHING)))
def test_a_filter_that_matches_nothing_reads_few_rows(
    crowded: SqlPersistence, unique: str, which: TimeoutFilter
) -> None:
    store = crowded.timeouts(unique, Stores(crowded, unique).clock)

    with rows_read(crowded.database.engine, unique) as read:
        count = insight(store).count_in_bounds(which)
        page = insight(store).list_in_bounds(which)

    assert (count.number, page.timeouts) == (0, [])
    assert read
    assert {sql: rows for sql, rows in read.items() if rows > ROWS + 2} == {}


def test_numbers_of_many_read_few_rows(crowded: SqlPersistence, unique: str) -> None:
    store = crowded.timeouts(unique, Stores(crowded, unique).clock)

    with rows_read(crowded.database.engine, unique) as read:
        insight(store).load(LoadWindow(start=NOW, width=100, buckets=6))
        insight(store).load(LoadWindow(start=NOW, width=100, buckets=6), destination="nowhere")
        insight(store).overdue(NOW + MANY)
        insight(store).groups(ALL, GroupBy.TYPE, limit=5, after=None)
        store.statistics()

    assert read
    assert {sql: rows for sql, rows in read.items() if rows > ROWS + 2} == {}


def test_the_id_of_a_message_that_waits_for_a_retry_shows_the_retry(store: TimeoutStore) -> None:
    sent, endpoint = "6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11", store.endpoint
    plain = timeout(timeout_id(endpoint, sent), NOW - SECOND)
    first = replace(plain, message=replace(plain.message, id=sent))
    store.store_many([timeout("other"), first])
    timeouts = Timeouts(store, lambda due: None)
    at_first = timeouts.show(sent)
    dispatch(store, store.claim(NOW - SECOND, 1, "o"), NOW - SECOND)
    sent_away = timeouts.show(sent)
    failed = replace(first.message, headers={RETRIES_TIMESTAMP: to_wire(NOW)})
    retry = replace(timeout(id_of_timeout(endpoint, failed), NOW + SECOND), message=failed)
    store.store_many([retry])

    assert at_first == (TimeoutState.PENDING, first)
    assert sent_away == (TimeoutState.DISPATCHED, None)
    assert timeouts.show(sent) == (TimeoutState.PENDING, retry)
    assert timeouts.show("6f1c0c9e-0a4e-4c39-8f5e-000000000000") is None


def test_types_differ_whatever_signs_their_names_have(store: TimeoutStore) -> None:
    types = ["Paid", "Paid, Shop; Event", 'Is "paid"', "Is \\paid\\", None]
    for n, name in enumerate(types):
        made = timeout(f"{n}", NOW + n)
        known = {} if name is None else {ENCLOSED_MESSAGE_TYPES: name}
        store.store_many([replace(made, message=replace(made.message, headers=known))])

    counts = insight(store).groups(ALL, GroupBy.TYPE, limit=10).counts

    assert counts == {"Paid": 2, 'Is "paid"': 1, "Is \\paid\\": 1, None: 1}


def test_the_answers_of_one_read_share_a_transaction_and_the_time(sql: Stores) -> None:
    store = sql()
    assert isinstance(store, SqlTimeoutStore)
    engine, begun = store.context.database.engine, list[object]()

    def note(connection: object) -> None:
        begun.append(connection)

    event.listen(engine, "begin", note)

    with store.one_read():
        times = {store.now() for _ in range(3)}
        answers = insight(store).overdue(NOW), insight(store).in_flight(), store.next_due()
    in_one_read = len(begun)
    insight(store).overdue(NOW)
    event.remove(engine, "begin", note)

    assert (len(times), answers[2], in_one_read, len(begun)) == (1, None, 1, 2)

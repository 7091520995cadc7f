"""Background counts by bucket, against a dictionary of what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count as numbers_from
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from tests.persistence.conftest import Stores
from tests.persistence.making import NOW, SECOND, timeout
from timeoutmgr.contracts import Count, CountsLoad, LoadWindow
from timeoutmgr.contracts.insight import HOUR
from timeoutmgr.contracts.reports import DAY
from timeoutmgr.message.instants import Micros, from_micros, to_micros
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql import insight as bounds
from timeoutmgr.persistence.sql import load_counts, searches
from timeoutmgr.persistence.sql.load_counts import CountedLoad, LoadCounter
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

MINUTE = 60 * SECOND
SLICE = 10
SPANS = {"hour": (MINUTE, 60), "day": (15 * MINUTE, 96), "week": (HOUR, 168)}
SPANS |= {"month": (6 * HOUR, 120), "year": (3 * DAY, 122)}


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of SLICE timeouts, and histograms that read hardly any timeout by themselves."""
    monkeypatch.setattr(load_counts, "FIRST", SLICE)
    monkeypatch.setattr(load_counts, "_MOST", SLICE)
    monkeypatch.setattr(searches, "FIRST", 1)
    monkeypatch.setattr(bounds, "LOOKED_AT", 1)


@pytest.fixture
def counted(sliced: None, sql: Stores) -> SqlTimeoutStore:
    """A store whose histogram is asked for."""
    return asked(sql())


def asked(store: Any, *, by_destination: bool = False) -> SqlTimeoutStore:
    assert isinstance(store, SqlTimeoutStore)
    assert isinstance(store, CountsLoad)
    store.request_load_counts(by_destination=by_destination)
    return store


def count_all(store: SqlTimeoutStore) -> int:
    """Run a new process' upkeep until nothing is due; return the slices."""
    counter, slices = LoadCounter(store.context), 0
    while counter.step():
        slices += 1
    return slices


def tiles(
    store: SqlTimeoutStore, window: LoadWindow, destination: str | None = None
) -> list[Count | None]:
    with store.context.database.read() as connection:
        now = store.context.now(connection)
        return CountedLoad(store.context).counts(connection, window.edges, destination, now)


def exact(dues: dict[str, Micros], window: LoadWindow) -> list[int]:
    """Return how many of *dues* are in each bucket; overdue timeouts count in no bucket of now."""
    found = Counter(window.bucket_of(due) for due in dues.values())
    return [found[number] for number in range(window.buckets)]


def spread(count: int) -> dict[str, Micros]:
    """Due times from the next minute to the end of next year, most of them near."""
    return {f"{n:03}": NOW + MINUTE + (n**4 * 977 * SECOND) % (365 * DAY) for n in range(count)}


@pytest.mark.parametrize("name", SPANS)
def test_the_counts_of_each_span_are_exact_as_of_their_instant(
    counted: SqlTimeoutStore, name: str
) -> None:
    dues = spread(60)
    counted.store_many([timeout(each, due) for each, due in dues.items()])
    slices = count_all(counted)
    window = LoadWindow.around(NOW, *SPANS[name])

    found = tiles(counted, window)

    assert slices > 6
    assert found == [Count(number, as_of=NOW) for number in exact(dues, window)]


def test_a_histogram_shows_counts_where_it_cannot_read_and_says_of_which_instant(
    counted: SqlTimeoutStore, sql: Stores
) -> None:
    dues = spread(60)
    counted.store_many([timeout(each, due) for each, due in dues.items()])
    window = LoadWindow.around(NOW, *SPANS["year"])
    before = counted.load(window)
    count_all(counted)
    sql.clock.at += MINUTE

    load = counted.load(window)

    assert not before.total.exact
    assert [count.number for count in load.counts] == exact(dues, window)
    assert load.total == Count(60, as_of=NOW)
    assert (load.as_of, load.at) == (NOW, NOW + MINUTE)


@pytest.mark.parametrize(("destination", "number"), [("mail", 20), ("billing", 40), ("none", 0)])
def test_counts_are_kept_by_destination(
    counted: SqlTimeoutStore, destination: str, number: int
) -> None:
    asked(counted, by_destination=True)
    for each, due in spread(60).items():
        to = "mail" if int(each) % 3 == 0 else "billing"
        counted.store_many([timeout(each, due, destination=to)])
    count_all(counted)

    found = tiles(counted, LoadWindow.around(NOW, *SPANS["year"]), destination)

    assert None not in found
    assert sum(count.number for count in found if count is not None) == number


def test_destinations_are_counted_only_while_one_is_asked_for(
    counted: SqlTimeoutStore, sql: Stores
) -> None:
    due = NOW - NOW % MINUTE + 30 * MINUTE
    counted.store_many([timeout(f"{n}", due) for n in range(2 * SLICE)])
    window = LoadWindow(due, MINUTE, 1)
    count_all(counted)
    not_asked = tiles(counted, window), tiles(counted, window, "billing")
    sql.clock.at += MINUTE
    counter = LoadCounter(counted.context)
    assert counter.step()
    asked(counted, by_destination=True)
    count_all(counted)
    from_the_middle_on = tiles(counted, window, "billing")
    sql.clock.at += MINUTE
    count_all(counted)

    assert not_asked == ([Count(2 * SLICE, as_of=NOW)], [None])
    assert from_the_middle_on == [None]
    assert tiles(counted, window, "billing") == [Count(2 * SLICE, as_of=NOW + 2 * MINUTE)]


def test_a_tile_of_too_many_destinations_keeps_its_total_alone(
    counted: SqlTimeoutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(counted, by_destination=True)
    monkeypatch.setattr(load_counts, "MOST_DESTINATIONS", 2)
    due = NOW - NOW % MINUTE + 5 * MINUTE
    for n in range(3 * SLICE):
        counted.store_many([timeout(f"{n}", due, destination=f"q{n}")])
    count_all(counted)
    window = LoadWindow(due, MINUTE, 1)

    assert tiles(counted, window) == [Count(3 * SLICE, as_of=NOW)]
    assert tiles(counted, window, "q1") == [None]
    assert tiles(counted, LoadWindow(due + MINUTE, MINUTE, 1), "q1") == [Count(0, as_of=NOW)]


def test_nothing_is_counted_that_nobody_looks_at(sliced: None, sql: Stores) -> None:
    store = sql()
    assert isinstance(store, SqlTimeoutStore)
    store.store_many([timeout("a", NOW + HOUR)])
    never = count_all(store)
    asked(store)
    sql.clock.at += load_counts.ASKED_FOR
    too_late = count_all(store)
    sql.clock.at -= 1
    in_time = count_all(store)

    assert (never, too_late) == (0, 0)
    assert in_time > 0


def test_near_tiles_are_counted_each_minute_and_far_tiles_each_hour(
    counted: SqlTimeoutStore, sql: Stores
) -> None:
    count_all(counted)
    counted.store_many([timeout("near", NOW + HOUR), timeout("far", NOW + 100 * DAY)])
    far = LoadWindow.around(NOW + 100 * DAY, DAY, 1)
    near = LoadWindow.around(NOW + HOUR, MINUTE, 1)
    sql.clock.at = NOW + MINUTE
    count_all(counted)
    after_a_minute = tiles(counted, near), tiles(counted, far)
    sql.clock.at = NOW + HOUR - 1
    asked(counted)
    count_all(counted)
    before_an_hour = tiles(counted, far)
    sql.clock.at = NOW + HOUR
    count_all(counted)

    assert after_a_minute == ([Count(1, as_of=NOW + MINUTE)], [Count(0, as_of=NOW)])
    assert before_an_hour == [Count(0, as_of=NOW)]
    assert tiles(counted, far) == [Count(1, as_of=NOW + HOUR)]


def test_tiles_that_are_not_fresh_are_not_shown(counted: SqlTimeoutStore, sql: Stores) -> None:
    count_all(counted)
    near, far = LoadWindow.around(NOW + HOUR, MINUTE, 1), LoadWindow.around(NOW + 9 * DAY, DAY, 1)

    sql.clock.at = NOW + 7 * MINUTE + 1
    assert (tiles(counted, near), tiles(counted, far)) == ([None], [Count(0, as_of=NOW)])
    sql.clock.at = NOW + 125 * MINUTE + 1
    assert tiles(counted, far) == [None]


def test_overdue_timeouts_are_not_left_out_of_the_bucket_of_now(
    counted: SqlTimeoutStore,
) -> None:
    start = NOW - NOW % (6 * HOUR)
    assert NOW - start > MINUTE
    window = LoadWindow(start, 6 * HOUR, 1)
    count_all(counted)
    without = tiles(counted, window)
    counted.store_many([timeout("overdue", start + 1)])
    counted.context.clock.at += MINUTE  # type: ignore[attr-defined]  # the clock of the test
    count_all(counted)

    assert without == [Count(0, as_of=NOW)]
    assert tiles(counted, window) == [None], "how many of the overdue are in it is not known"


def test_a_process_goes_on_where_another_has_stopped_and_nothing_is_counted_twice(
    counted: SqlTimeoutStore, sql: Stores
) -> None:
    due = NOW + 5 * MINUTE
    counted.store_many([timeout(f"{n}", due) for n in range(5 * SLICE)])
    window, seen = LoadWindow(due - due % MINUTE, MINUTE, 1), set[int | None]()

    while LoadCounter(counted.context).step():  # each step by a process of its own
        (found,) = tiles(counted, window)
        seen.add(None if found is None else found.number)

    assert seen == {None, 5 * SLICE}, "a tile is shown when it is counted to its end"


def test_a_pass_that_was_left_by_its_last_visitor_is_begun_anew(
    counted: SqlTimeoutStore, sql: Stores
) -> None:
    due = NOW - NOW % MINUTE + 90 * MINUTE
    counted.store_many([timeout(f"{n}", due) for n in range(3 * SLICE)])
    assert LoadCounter(counted.context).step()
    sql.clock.at += load_counts.ASKED_FOR
    store = asked(sql())
    counted.cancel("0")

    count_all(store)

    (found,) = tiles(store, LoadWindow(due, MINUTE, 1))
    assert found == Count(3 * SLICE - 1, as_of=NOW + load_counts.ASKED_FOR)


def test_two_processes_do_not_count_at_once(
    sliced: None, row_locking: Stores, sql_of: Callable[[str], SqlPersistence]
) -> None:
    store = asked(row_locking())
    counter = LoadCounter(store.context)
    with store.context.database.begin() as other:
        assert other.execute(counter._lock).all()
        assert not counter.step()

    assert LoadCounter(store.context).step()


def test_past_tiles_are_removed_by_the_next_pass_and_all_a_day_after_the_last_request(
    counted: SqlTimeoutStore, sql: Stores
) -> None:
    load = counted.context.tables.load

    def rows() -> tuple[int, int]:
        with counted.context.database.read() as connection:
            mine = load.c.endpoint == counted.endpoint
            numbers = select(func.count(), func.min(load.c.bucket)).where(mine)
            number, first = connection.execute(numbers.where(load.c.bucket > 0)).one()
            return number, first

    count_all(counted)
    most, _ = rows()
    sql.clock.at += 3 * MINUTE
    count_all(counted)
    _, first = rows()
    sql.clock.at += DAY + 1
    while counted.purge():
        pass

    assert first == NOW + 3 * MINUTE - NOW % MINUTE
    assert 2 * most <= 3_000, "a page reads a total and a row of its destination"
    assert rows()[0] == 0


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["store", "cancel", "move"]),
        st.integers(0, 59),
        st.integers(MINUTE, 400 * DAY),
    ),
    max_size=6,
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(between=st.lists(CHANGES, max_size=12), near=st.booleans(), name=st.sampled_from([*SPANS]))
def test_counts_are_off_by_no_more_than_the_changes_made_meanwhile(
    sliced: None,
    sql_of: Callable[[str], SqlPersistence],
    unique: str,
    between: list[list[tuple[str, int, Micros]]],
    near: bool,
    name: str,
) -> None:
    stores = Stores(sql_of("sqlite"), f"{unique}{next(_NEW)}")
    store = asked(stores())
    model = {each: NOW + MINUTE + n for n, each in enumerate(spread(60))} if near else spread(60)
    store.store_many([timeout(each, due) for each, due in model.items()])
    window = LoadWindow.around(NOW, *SPANS[name])
    touched = Counter[int]()
    counter = LoadCounter(store.context)

    rounds = iter(between)
    while counter.step():
        for change, number, ahead in next(rounds, []):
            touched.update(change_both(store, model, window, (change, f"{number:03}", NOW + ahead)))

    for number, (found, wanted) in enumerate(
        zip(tiles(store, window), exact(model, window), strict=True)
    ):
        assert found is not None
        assert abs(found.number - wanted) <= touched[number]
    if not touched:
        assert [found.number for found in tiles(store, window) if found] == exact(model, window)


def change_both(
    store: SqlTimeoutStore,
    model: dict[str, Micros],
    window: LoadWindow,
    change: tuple[str, str, Micros],
) -> list[int]:
    """Carry out *change* on the store and on *model*; return the buckets that it touches."""
    kind, name, due = change
    if kind == "store":
        fresh = f"new {next(_NEW)}"
        store.store_many([timeout(fresh, due)])
        model[fresh] = due
        return [window.bucket_of(due)]
    if name not in model:
        return []
    old = model.pop(name)
    if kind == "cancel":
        store.cancel(name)
        return [window.bucket_of(old)]
    store.reschedule(name, due)
    model[name] = due
    return [window.bucket_of(old), window.bucket_of(due)]


_NEW = numbers_from()
"""Numbers that no example of the property has had."""


# --- days of zones ------------------------------------------------------------------------------

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("day", "hours"), [(datetime(2030, 3, 31), 23), (datetime(2030, 10, 27), 25)]
)
def test_a_day_of_a_zone_has_23_or_25_hours_where_its_clocks_change(
    sliced: None, sql: Stores, day: datetime, hours: int
) -> None:
    start = to_micros(day.replace(tzinfo=BERLIN))
    sql.clock.at = start - 2 * DAY
    store = asked(sql())
    dues = {f"{n}": start + n * HOUR // 2 for n in range(-4, 60)}
    store.store_many([timeout(name, due) for name, due in dues.items()])
    count_all(store)
    days = LoadWindow.around(start - 1, DAY, 3, BERLIN)
    in_hours = LoadWindow(start, HOUR, hours, BERLIN)

    assert [end - begin for begin, end in pairwise(days.edges)] == [DAY, hours * HOUR, DAY]
    assert in_hours.end == days.edges[2]
    for window in (days, in_hours):
        found = store.load(window)
        assert [each.number for each in found.counts] == exact(dues, window)
        assert found.total.exact


@pytest.mark.parametrize("width", [MINUTE, 15 * MINUTE, HOUR, 6 * HOUR, DAY])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe"])
def test_the_first_bucket_of_a_zone_has_the_instant_and_begins_as_the_clocks_do(
    width: Micros, zone: str
) -> None:
    place = ZoneInfo(zone)
    window = LoadWindow.around(NOW, width, 3, place)
    local = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=window.start)
    wall = to_micros(local.astimezone(place).replace(tzinfo=UTC))

    assert (window.bucket_of(NOW), wall % width) == (0, 0)


def test_days_behind_a_day_whose_midnight_is_skipped_begin_at_midnight() -> None:
    cairo = ZoneInfo("Africa/Cairo")
    noon = to_micros(datetime(2026, 4, 24, 12, tzinfo=cairo))

    edges = LoadWindow.around(noon, DAY, 2, cairo).edges

    walls = [from_micros(each).astimezone(cairo).replace(tzinfo=None) for each in edges]
    assert walls == [datetime(2026, 4, 24, 1), datetime(2026, 4, 25), datetime(2026, 4, 26)]


def test_a_tally_of_the_longest_names_fits_a_text_of_every_database() -> None:
    tally = load_counts._Tally(NOW)
    for number in range(load_counts.MOST_DESTINATIONS):
        tally.add("é" * 126 + f"{number:03}", 1_000_000)

    assert tally.by is not None
    assert len(tally.text().encode()) < 65_536

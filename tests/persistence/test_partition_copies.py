"""Copies for finer partitions are gone on with, made anew or removed, and no timeout is lost."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.persistence.installations import Make
from tests.persistence.making import NOW, timeout
from tests.persistence.ranging import Installation, fill, tend
from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.persistence.sql.partitions.catalog import ALL, DAY, fresh


@pytest.mark.parametrize("steps", range(1, 7))
def test_copies_of_a_dead_process_are_continued(old: Installation, make: Make, steps: int) -> None:
    store = old.store()
    names = fill(store, 2_500, NOW + DAY, 400 * DAY)
    for _ in range(steps):  # and then it dies
        store.run_maintenance()
    store.cancel(names[0])
    store.cancel(names[-1])
    store.store_many([timeout("late", NOW + 44 * DAY)])
    store.reschedule(names[1], NOW + 333 * DAY)

    tend(make("convert").store())

    assert list(old.ranges) == fresh(NOW)
    assert old.leftovers() == []
    pending = {one.id: one.due for one in store.list(TimeoutFilter(), limit=9_999)}
    assert pending.keys() == {*names[1:-1], "late"}
    assert pending[names[1]] == NOW + 333 * DAY


def test_copies_for_another_day_are_made_anew(old: Installation, make: Make) -> None:
    store = old.store()
    names = fill(store, 2_500, NOW + DAY, 400 * DAY)
    while not (old.copies()):
        store.run_maintenance()
    later = make("convert")
    later.clock.at = NOW + DAY

    tend(later.store())

    assert list(old.ranges) == fresh(NOW + DAY)
    assert sorted(one.id for one in store.list(TimeoutFilter(), limit=9_999)) == sorted(names)
    assert old.leftovers() == []


def test_copies_that_differ_never_replace_their_original(
    old: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    store = old.store()
    names = fill(store, 2_500, NOW + DAY, 400 * DAY)
    while not (old.copies()):
        store.run_maintenance()
    with old.persistence.database.begin() as connection:
        copies = old.read_layout().table("_copies")
        connection.execute(text(f"DELETE FROM {copies} WHERE id LIKE '%7'"))

    tend(store)

    assert "copies missing" in caplog.text
    assert list(old.ranges) == fresh(NOW)
    assert sorted(one.id for one in store.list(TimeoutFilter(), limit=9_999)) == sorted(names)


def test_superfluous_copies_are_removed(old: Installation, make: Make) -> None:
    store = old.store()
    fill(store, 2_500, NOW + DAY, 400 * DAY)
    while not (old.copies()):
        store.run_maintenance()
    made = make("auto")  # it is not wanted any more

    tend(made.store())

    assert list(made.ranges) == [ALL]
    assert made.leftovers() == []
    assert store.count(TimeoutFilter()) == 2_500


def test_a_step_that_takes_too_long_is_tried_with_fewer_rows(
    old: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = old.store()
    names = fill(store, 1_200, NOW + DAY, 400 * DAY)
    with old.persistence.database.begin() as connection:  # half a millisecond for each row
        connection.execute(
            text(
                f"CREATE FUNCTION {old.prefix}slow() RETURNS trigger LANGUAGE plpgsql AS"
                " 'BEGIN PERFORM pg_sleep(0.0005); RETURN NEW; END'"
            )
        )
    slow = "CREATE TRIGGER {0}slow BEFORE INSERT ON {1} FOR EACH ROW EXECUTE FUNCTION {0}slow()"
    while not old.leftovers():
        store.run_maintenance()
    with old.persistence.database.begin() as connection:
        for one in fresh(NOW):
            part = old.read_layout().of(one)
            connection.execute(text(slow.format(old.prefix, part)))

    tend(store)

    assert list(old.ranges) == fresh(NOW)
    assert sorted(one.id for one in store.list(TimeoutFilter(), limit=9_999)) == sorted(names)

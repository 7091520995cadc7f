"""A new installation has partitions at once; an older, filled table only when asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.persistence.installations import Make
from tests.persistence.making import NOW
from tests.persistence.ranging import Installation, fill, tend
from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.partitions.catalog import ALL, DAY, fresh

pytestmark = pytest.mark.installs


def test_a_new_installation_has_its_ranges_at_once(make: Make) -> None:
    made = make()

    made.persistence.install()

    assert len(made.ranges) > 20
    assert ALL not in made.ranges
    assert made.read_layout().known


def test_without_partitions_a_new_installation_stays_whole(make: Make) -> None:
    made = make("off")
    made.persistence.install()
    store = made.store()
    fill(store, 10, NOW)

    assert tend(store) == 0
    assert list(made.ranges) == [ALL]


def test_installing_again_changes_nothing(new: Installation) -> None:
    before = new.ranges

    new.persistence.install()

    assert new.ranges == before


@pytest.mark.parametrize("again", [False, True])
def test_rows_of_an_older_installation_are_not_moved_without_being_asked(
    make: Make, again: bool
) -> None:
    made = make("off")
    made.persistence.install()
    fill(made.store(), 5, NOW)
    later = make()

    if again:
        later.persistence.install()
    tend(later.store())

    assert list(later.ranges) == [ALL]


def test_an_empty_older_installation_gets_ranges_by_itself(old: Installation, make: Make) -> None:
    made = make("auto")

    tend(made.store())

    assert list(made.ranges) == fresh(NOW)


@pytest.mark.parametrize("count", [20, 2_500])
def test_an_older_installation_is_converted_when_asked(old: Installation, count: int) -> None:
    store = old.store()
    names = fill(store, count, NOW - 3 * DAY, 600 * DAY)
    before = store.list(TimeoutFilter(), limit=count)

    tend(store)

    assert list(old.ranges) == fresh(NOW)
    assert store.list(TimeoutFilter(), limit=count) == before
    assert sorted(one.id for one in before) == sorted(names)
    assert old.leftovers() == []


def test_in_a_schema_of_its_own_it_is_the_same(
    unique: str, postgres_url: str, persistence_of: Callable[..., SqlPersistence]
) -> None:
    settings = SqlSettings(clock="host", partitions="convert")
    off = SqlSettings(clock="host", partitions="off")
    schema, prefix = f"{unique}_Schema", f"{unique}_Big_"
    names: dict[str, str] = {"schema": schema, "prefix": prefix}
    persistence_of(postgres_url, **names, settings=off).install()
    made = Installation(persistence_of(postgres_url, **names, settings=settings), prefix, schema)
    try:
        store = made.store()
        fill(store, 1_500, NOW + DAY, 300 * DAY)

        tend(store)

        assert list(made.ranges) == fresh(NOW)
        assert store.count(TimeoutFilter()) == 1_500
    finally:
        with made.persistence.database.begin() as connection:
            connection.exec_driver_sql(f'DROP SCHEMA "{schema}" CASCADE')


@pytest.mark.parametrize("wrong", ["on", "", "hourly"])
def test_other_words_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="partitions"):
        SqlSettings(partitions=wrong)

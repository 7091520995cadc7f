"""Without the right to change partitions, work goes on in the present partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import make_url, text

from tests.persistence.installations import Make, dispatch_all
from tests.persistence.making import NOW, SECOND, timeout
from tests.persistence.ranging import Installation, fill, tend
from timeoutmgr.contracts import CancelResult, TimeoutFilter, TimeoutStore
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql.partitions.catalog import ALL, DAY
from timeoutmgr.satellites.housekeeping import Housekeeping
from timeoutmgr.telemetry import Counters


def test_foreign_partitions_are_left_alone(old: Installation) -> None:
    ranged = old.read_layout()
    with old.persistence.database.begin() as connection:
        connection.execute(text(f"ALTER TABLE {ranged.of(ALL)} RENAME TO {old.prefix}mine"))
    store = old.store()
    fill(store, 5, NOW)

    assert tend(store) == 0
    old.persistence.install()

    assert not old.read_layout().known
    assert "not ours" in old.read_layout().describe()
    assert store.count(TimeoutFilter()) == 5


def test_a_user_without_the_right_to_make_tables_goes_on_and_is_warned_once(
    new: Installation, make: Make, unique: str, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with _plain_user(new, unique, postgres_url) as url:
        made = make(url=url)
        made.clock.at = NOW + 60 * DAY
        store = made.store()
        with caplog.at_level(logging.WARNING):
            assert tend(store) == 0
            made.clock.at += 7_200 * SECOND
            assert tend(store) == 0
        store.store_many([timeout("a", NOW + 60 * DAY), timeout("b", NOW - 60 * DAY)])

        assert sorted(dispatch_all(made)) == ["a", "b"]
        assert not made.read_layout().may_change
        assert [
            one.levelname for one in caplog.records if "cannot maintain" in one.getMessage()
        ] == ["WARNING"]
        made.persistence.close()


def test_a_process_tells_how_many_partitions_it_could_not_make(
    new: Installation, make: Make, unique: str, postgres_url: str
) -> None:
    new.clock.at = NOW + 60 * DAY
    with _plain_user(new, unique, postgres_url) as url:
        made = make(url=url)
        made.clock.at = NOW + 60 * DAY
        missing = _missing_in(made.store())
        made.persistence.close()

    assert missing is not None
    assert missing > 0
    assert _missing_in(new.store()) == 0
    assert _missing_in(make("off").store()) is None


def _missing_in(store: TimeoutStore) -> float | None:
    """Keep house once; return the number of missing partitions that the telemetry is given."""
    telemetry = Counters()
    Housekeeping(
        store,
        owner="me",
        ready=lambda: None,
        measure_offset=lambda read: None,
        state=dict,
        telemetry=telemetry,
    ).keep_house()
    return telemetry.snapshot().get("partitions_missing")


def test_a_user_without_rights_writes_while_another_copies(
    old: Installation, make: Make, unique: str, postgres_url: str
) -> None:
    store = old.store()
    fill(store, 2_500, NOW + DAY, 400 * DAY)
    while not old.copies():
        store.run_maintenance()
    with _plain_user(old, unique, postgres_url) as url:
        made = make(url=url)

        made.store().store_many([timeout("a", NOW + 200 * DAY)])
        assert made.store().cancel("a") is CancelResult.CANCELLED
        made.store().store_many([timeout("b", NOW + 200 * DAY)])

        made.persistence.close()
    tend(store)
    assert store.count(TimeoutFilter()) == 2_501


def test_the_layout_is_reported_with_its_remedy(
    old: Installation, make: Make, unique: str, postgres_url: str
) -> None:
    fill(old.store(), 3, NOW)
    layouts = {how: make(how).persistence.layout() for how in ("auto", "convert", "off")}

    assert {how: one.text if one else None for how, one in layouts.items()} == {
        "auto": "one partition holds all of them",
        "convert": "one partition holds all of them",
        "off": "one partition holds all of them (partitions = off)",
    }
    assert {how for how, one in layouts.items() if one and one.remedy} == {"auto"}
    tend(old.store())
    with _plain_user(old, unique, postgres_url) as url:
        installation = make(url=url)
        plain = installation.persistence.layout()
        installation.persistence.close()
    mine = make().persistence.layout()
    assert mine is not None
    assert plain is not None
    assert mine.text.endswith("partitions by due time, one a day up to 20300327")
    assert mine.remedy == ""
    assert "create tables" in plain.remedy


def test_the_ddl_for_an_administrator_has_the_ranges(
    unique: str, postgres_url: str, persistence_of: Callable[..., SqlPersistence]
) -> None:
    ranged = SqlSettings(partitions="auto")
    made = persistence_of(postgres_url, prefix=f"{unique}_", settings=ranged)
    plain = persistence_of(postgres_url, prefix=f"{unique}_")

    with psycopg.connect(_plain(postgres_url), autocommit=True) as connection:
        connection.execute(made.ddl())

    made.check()
    ranges = Installation(made, f"{unique}_").ranges
    assert len(ranges) > 18
    assert ALL not in ranges
    assert "_all" in plain.ddl()
    assert "_far_" not in plain.ddl()


@contextmanager
def _plain_user(installation: Installation, unique: str, url: str) -> Iterator[str]:
    """Yield the URL of a user with no rights but to read and write our tables."""
    role = f"{unique}_plain"
    with psycopg.connect(_plain(url), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute("REVOKE CREATE ON SCHEMA public FROM public")
        for kind in ("TABLES", "SEQUENCES"):
            connection.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {role}")
        try:
            yield make_url(url).set(username=role).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

"""PostgreSQL's partitions are made ahead, cut finer, and dropped; whoever works goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import make_url, text

from tests.persistence.making import NOW, SECOND, dispatch, ids, timeout
from tests.persistence.ranging import TODAY, Installation, fill, tend
from timeoutmgr.contracts import CancelResult, ChangeResult, TimeoutFilter, TimeoutState
from timeoutmgr.errors import ConfigurationError, StorageConflict
from timeoutmgr.instants import EARLIEST, LATEST
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.persistence.sql import replacing
from timeoutmgr.persistence.sql.ranges import ALL, DAY, Change, Range, fresh

Make = Callable[..., Installation]


@pytest.fixture
def make(postgres_url: str, unique: str, persistence_of: Callable[..., SqlPersistence]) -> Make:
    """Makes installations of a prefix of their own; the first one installs."""

    def make(partitions: str = "auto", url: str = postgres_url) -> Installation:
        settings = SqlSettings(clock="host", history="full", partitions=partitions)
        persistence = persistence_of(url, prefix=f"{unique}_", settings=settings)
        return Installation(persistence, f"{unique}_")

    return make


@pytest.fixture
def old(make: Make) -> Installation:
    """An installation of before: one partition, to be converted."""
    made = make("off")
    made.persistence.install()
    return make("convert")


@pytest.fixture
def new(make: Make) -> Installation:
    """A new installation, whose ranges suit its clock."""
    made = make()
    made.persistence.install()
    tend(made.store())
    return made


def test_a_new_installation_has_its_ranges_at_once(make: Make) -> None:
    made = make()

    made.persistence.install()

    assert len(made.ranges) > 20
    assert ALL not in made.ranges
    assert made.look().known


def test_without_partitions_a_new_installation_stays_one(make: Make) -> None:
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
def test_what_an_older_installation_holds_is_not_moved_without_being_asked(
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


def test_days_are_made_a_week_ahead_as_time_goes_on(new: Installation) -> None:
    store = new.store()
    for day in range(0, 60, 5):
        new.clock.at = NOW + day * DAY
        tend(store)

        one = new.of(new.clock.at + 7 * DAY - SECOND)
        assert (one.end or 0) - (one.start or 0) == DAY
        assert len(new.ranges) <= 45


@pytest.mark.parametrize("count", [900, 2_500])
def test_a_range_that_comes_near_is_cut_with_all_it_holds(new: Installation, count: int) -> None:
    store = new.store()
    far = new.of(NOW + 20 * DAY)
    assert far.start is not None
    assert far.end is not None
    names = fill(store, count, far.start, far.end - far.start)
    assert new.holds(far) == count

    new.clock.at = far.start - 6 * DAY
    tend(store)

    assert far not in new.ranges
    days = [one for one in new.ranges if one.is_in(far)]
    assert len(days) == 7
    assert [new.holds(day) for day in days] == [pytest.approx(count / 7, abs=1)] * 7
    assert store.count(TimeoutFilter()) == count
    new.clock.at = far.end
    assert sorted(_dispatch_all(new)) == sorted(names)
    assert new.leftovers() == []


def test_a_day_that_is_over_is_dropped_when_it_is_empty(new: Installation) -> None:
    store = new.store()
    today = new.of(NOW)
    store.store_many([timeout("a")])
    dispatch(store, store.claim(NOW, 9, "o"))

    new.clock.at = TODAY + 2 * DAY
    tend(store)

    assert today not in new.ranges
    assert new.ranges[0] == Range(None, TODAY + DAY)


def test_a_day_that_is_over_is_kept_while_it_holds_many(new: Installation) -> None:
    store = new.store()
    fill(store, 1_500, TODAY, DAY)

    new.clock.at = TODAY + 5 * DAY
    tend(store)

    assert new.holds(Range(TODAY, TODAY + DAY)) == 1_500
    assert len(_dispatch_all(new)) == 1_500


def test_what_is_left_of_a_day_joins_the_past(new: Installation) -> None:
    store = new.store()
    store.store_many([timeout("waits", TODAY + SECOND)])

    new.clock.at = TODAY + 9 * DAY
    tend(store)

    [past] = [one for one in new.ranges if one.start is None]
    assert new.holds(past) == 1
    assert _dispatch_all(new) == ["waits"]


@pytest.mark.parametrize("due", [EARLIEST, 0, NOW - 400 * DAY, NOW - DAY, LATEST])
def test_no_due_time_is_without_a_place(new: Installation, due: int) -> None:
    store = new.store()
    new.clock.at = NOW + 3 * DAY
    tend(store)

    store.store_many([timeout("a", due)])

    found = store.find("a")
    assert found is not None
    assert found[0] is TimeoutState.PENDING
    assert ids(store.claim(new.clock.at, 9, "o")) == ([] if due == LATEST else ["a"])


def test_the_same_id_is_stored_once_whatever_range_it_is_for(new: Installation) -> None:
    store = new.store()
    store.store_many([timeout("a", NOW + 300 * DAY)])

    store.store_many([timeout("a", NOW)])
    store.reschedule("a", NOW + DAY)

    assert [one.due for one in store.list(TimeoutFilter())] == [NOW + DAY]


def test_everybody_goes_on_while_ranges_are_copied(old: Installation, make: Make) -> None:
    """Nothing is lost, doubled, brought back or early, whoever works at the same time."""
    store = old.store()
    kept = fill(store, 3_000, NOW + DAY, 500 * DAY)
    gone = fill(store, 300, NOW + DAY + 1, 490 * DAY)
    moved = fill(store, 300, NOW + DAY + 2, 480 * DAY)
    due = fill(store, 600, NOW - DAY, DAY // 2)
    other = make("convert")
    stored: list[str] = []
    sent: list[str] = []
    cancelled: list[CancelResult] = []
    changed: list[ChangeResult] = []

    def storing() -> None:
        mine = old.store()
        for n in range(60):
            batch = [timeout(f"new {n} {m}", NOW + m * 40 * DAY + n * SECOND) for m in range(1, 11)]
            mine.store_many(batch)
            stored.extend(one.id for one in batch)

    def cancelling() -> None:
        mine = old.store()
        cancelled.extend(mine.cancel(name) for name in gone)

    def rescheduling() -> None:
        mine = old.store()
        for n, name in enumerate(moved):
            changed.append(mine.reschedule(name, NOW + (n % 500 + 1) * DAY))

    def dispatching() -> None:
        mine = old.store()
        while len(sent) < len(due):
            sent.extend(dispatch(mine, mine.claim(NOW, 20, "o")))

    workers = (storing, cancelling, rescheduling, dispatching)
    with _running(*workers, lambda: _tend_until_fresh(other)):
        _tend_until_fresh(old)

    assert list(old.ranges) == fresh(NOW)
    assert sorted(sent) == sorted(due)
    assert set(cancelled) == {CancelResult.CANCELLED}
    assert set(changed) == {ChangeResult.CHANGED}
    pending = store.list(TimeoutFilter(), limit=10_000)
    assert sorted(one.id for one in pending) == sorted([*kept, *moved, *stored])
    by_name = {one.id: one.due for one in pending}
    assert [by_name[name] for name in moved] == [
        NOW + (n % 500 + 1) * DAY for n in range(len(moved))
    ]
    assert old.leftovers() == []
    old.clock.at = NOW + 600 * DAY
    assert sorted(_dispatch_all(old)) == sorted([*kept, *moved, *stored])


def test_a_dispatcher_at_work_is_not_waited_for(new: Installation) -> None:
    store = new.store()
    store.store_many([timeout("a")])
    far = new.of(NOW + 20 * DAY)
    assert far.start is not None
    chunk = store.claim(NOW, 9, "o")
    new.clock.at = far.start - DAY

    with store.take_many(chunk.token, chunk.keys) as taken:
        store.tend()
        assert far in new.ranges
        assert [one.id for one in taken.timeouts] == ["a"]

    tend(store)
    assert far not in new.ranges


def test_a_writer_at_work_is_not_waited_for(old: Installation) -> None:
    store = old.store()
    fill(store, 1_500, NOW + DAY, 400 * DAY)

    with old.persistence.database.begin() as connection:
        store.store_many([timeout("open", NOW + DAY)], transaction=connection)
        with pytest.raises(StorageConflict):
            replacing.replace(old.whole, _conversion(), most=10_000)
        with pytest.raises(StorageConflict):
            replacing.prepare(old.whole, _conversion())
        assert list(old.ranges) == [ALL]

    tend(store)
    assert list(old.ranges) == fresh(NOW)
    assert store.count(TimeoutFilter()) == 1_501


@pytest.mark.parametrize("steps", range(1, 7))
def test_copies_that_somebody_left_behind_are_gone_on_with(
    old: Installation, make: Make, steps: int
) -> None:
    store = old.store()
    names = fill(store, 2_500, NOW + DAY, 400 * DAY)
    for _ in range(steps):  # and then it dies
        store.tend()
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
        store.tend()
    later = make("convert")
    later.clock.at = NOW + DAY

    tend(later.store())

    assert list(old.ranges) == fresh(NOW + DAY)
    assert sorted(one.id for one in store.list(TimeoutFilter(), limit=9_999)) == sorted(names)
    assert old.leftovers() == []


def test_copies_that_do_not_agree_never_take_the_place_of_what_they_are_copies_of(
    old: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    store = old.store()
    names = fill(store, 2_500, NOW + DAY, 400 * DAY)
    while not (old.copies()):
        store.tend()
    with old.persistence.database.begin() as connection:
        connection.execute(text(f"DELETE FROM {old.look().table('_copies')} WHERE id LIKE '%7'"))

    tend(store)

    assert "not all there" in caplog.text
    assert list(old.ranges) == fresh(NOW)
    assert sorted(one.id for one in store.list(TimeoutFilter(), limit=9_999)) == sorted(names)


def test_copies_that_nobody_needs_are_removed(old: Installation, make: Make) -> None:
    store = old.store()
    fill(store, 2_500, NOW + DAY, 400 * DAY)
    while not (old.copies()):
        store.tend()
    made = make("auto")  # it is not wanted any more

    tend(made.store())

    assert list(made.ranges) == [ALL]
    assert made.leftovers() == []
    assert store.count(TimeoutFilter()) == 2_500


def test_partitions_of_somebody_else_are_left_alone(old: Installation) -> None:
    ranged = old.look()
    with old.persistence.database.begin() as connection:
        connection.execute(text(f"ALTER TABLE {ranged.of(ALL)} RENAME TO {old.prefix}mine"))
    store = old.store()
    fill(store, 5, NOW)

    assert tend(store) == 0
    old.persistence.install()

    assert not old.look().known
    assert "not ours" in old.look().describe()
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

        assert sorted(_dispatch_all(made)) == ["a", "b"]
        assert not made.look().may_change
        assert [one.levelname for one in caplog.records if "cannot be kept" in one.message] == [
            "WARNING"
        ]
        made.persistence.close()


def test_a_user_without_rights_writes_while_another_copies(
    old: Installation, make: Make, unique: str, postgres_url: str
) -> None:
    store = old.store()
    fill(store, 2_500, NOW + DAY, 400 * DAY)
    while not old.copies():
        store.tend()
    with _plain_user(old, unique, postgres_url) as url:
        made = make(url=url)

        made.store().store_many([timeout("a", NOW + 200 * DAY)])
        assert made.store().cancel("a") is CancelResult.CANCELLED
        made.store().store_many([timeout("b", NOW + 200 * DAY)])

        made.persistence.close()
    tend(store)
    assert store.count(TimeoutFilter()) == 2_501


def test_while_there_is_nothing_to_do_it_is_looked_once_an_hour(new: Installation) -> None:
    store = new.store()
    tend(store)
    new.clock.at += 50 * DAY - new.clock.at % DAY  # of the wall's clock and of this one

    steps = tend(store)
    again = tend(store)

    assert steps > 0
    assert again == 0


def test_a_table_that_is_never_free_is_left_in_peace_after_a_few_tries(new: Installation) -> None:
    store = new.store()
    new.clock.at = NOW + 30 * DAY

    with new.persistence.database.begin() as connection:
        connection.execute(text(f"LOCK TABLE {new.look().whole} IN SHARE MODE"))
        tries = [store.tend() for _ in range(10)]

    assert tries == [True] * 9 + [False]
    tend(store)
    assert list(new.ranges) == fresh(new.clock.at)


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
        store.tend()
    with old.persistence.database.begin() as connection:
        for one in fresh(NOW):
            part = old.look().of(one)
            connection.execute(text(slow.format(old.prefix, part)))

    tend(store)

    assert list(old.ranges) == fresh(NOW)
    assert sorted(one.id for one in store.list(TimeoutFilter(), limit=9_999)) == sorted(names)


def test_the_layout_is_told_with_what_would_be_better(
    old: Installation, make: Make, unique: str, postgres_url: str
) -> None:
    fill(old.store(), 3, NOW)
    told = {how: make(how).persistence.layout() for how in ("auto", "convert", "off")}

    assert {how: one.text if one else None for how, one in told.items()} == {
        "auto": "one partition holds all of them",
        "convert": "one partition holds all of them",
        "off": "one partition holds all of them (partitions = off)",
    }
    assert {how for how, one in told.items() if one and one.remedy} == {"auto"}
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


def test_the_ddl_for_others_to_run_has_the_ranges(
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


def _conversion() -> Change:
    return Change((ALL,), tuple(fresh(NOW)))


def _tend_until_fresh(installation: Installation) -> None:
    store = installation.store()
    while list(installation.ranges) != fresh(NOW):
        store.tend()
    tend(store)


def _dispatch_all(installation: Installation) -> list[str]:
    store, sent = installation.store(), list[str]()
    while chunk := store.claim(installation.clock.at, 100, "o"):
        if not chunk.keys:
            return sent
        sent += dispatch(store, chunk, at=installation.clock.at)
    return sent


@contextmanager
def _running(*works: Callable[[], None]) -> Iterator[None]:
    """Run *works* in threads beside the body; raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


@contextmanager
def _plain_user(installation: Installation, unique: str, url: str) -> Iterator[str]:
    """Yield the URL of a user who may read and write our tables, and nothing else."""
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

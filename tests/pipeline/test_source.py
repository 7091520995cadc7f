"""The data source without a JVM: its parts are driven as Spark drives them, through a pickle."""

from __future__ import annotations

import gc
import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis.strategies import integers, none
from pyspark import cloudpickle
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType, TimestampType
from sqlalchemy import delete, text, update

from tests.pipeline.archives import DAY, write_events
from tests.pipeline.conftest import KINDS, installed
from tests.pipeline.rows import DUE, batch, count, read, row
from timeoutmgr.errors import ConfigurationError, SchemaMissing
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.errors import SnapshotEnded, WrongColumns
from timeoutmgr.pipeline.frames import options_of
from timeoutmgr.pipeline.readers.statements import (
    Part,
    as_option,
    as_text,
    cut,
    parts_of,
    statement,
    windows,
)
from timeoutmgr.pipeline.snapshots import SharedSnapshot, snapshot
from timeoutmgr.pipeline.source import FilteringDataSource, TimeoutsDataSource, narrowed
from timeoutmgr.pipeline.stores import NamedStore, Store, keep_modules, open_store
from timeoutmgr.pipeline.views import VIEWS, Selection, projected
from timeoutmgr.pipeline.writers.loader import Loader

NEW_YORK = timezone(timedelta(hours=-5))


def over_there(thing: Any) -> Any:
    """Return *thing* as a worker gets it."""
    return pickle.loads(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]  # has no types


def source(store: Store, /, **options: object) -> TimeoutsDataSource:
    given = {name: str(value) for name, value in ({"store": store.name} | options).items()}
    made = over_there(TimeoutsDataSource(given))
    assert isinstance(made, TimeoutsDataSource)
    return made


def struct(view: str = "pending", *names: str) -> StructType:
    return from_arrow_schema(projected(view, names or None))


def rows_of(made: TimeoutsDataSource, *names: str) -> list[dict[str, Any]]:
    reader = over_there(made.reader(struct(made.options.get("view", "pending"), *names)))
    return [
        one
        for part in over_there(reader.partitions())
        for each in reader.read(part)
        for one in each.to_pylist()
    ]


@pytest.fixture(scope="module", params=KINDS)
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A store that the tests only read: an install takes longer than all their reads."""
    folder = tmp_path_factory.mktemp("filled")
    store = installed(request, request.param, folder, f"t{secrets.token_hex(4)}")
    Loader(store, run_id="r").load([batch([row(number) for number in range(300)])])
    yield store
    store.persistence.close()


def test_every_worker_of_a_read_collects_garbage_without_its_modules(filled: Store) -> None:
    made = source(filled)
    reader = made.reader(struct())
    part = reader.partitions()[0]
    steps: dict[str, Callable[[], object]] = {
        "made": lambda: source(filled),
        "planned": lambda: made.reader(struct()),
        "read": lambda: list(reader.read(part)),
    }
    for name, step in steps.items():
        keep_modules.cache_clear()
        gc.unfreeze()

        step()

        assert keep_modules.cache_info().currsize == 1, name
    assert gc.get_freeze_count() > 0  # to count them takes 0.2 s


def test_pending_timeouts_come_out_as_they_went_in(filled: Store) -> None:
    found = {one["message_id"]: one for one in rows_of(source(filled))}

    assert len(found) == 300
    assert found["m7"] == row(7) | {
        **{"version": 0, "attempts": 0, "maybe_sent": 0, "run_id": "r", "hidden_by": None},
    }


def test_only_the_columns_that_are_asked_for_are_read(filled: Store) -> None:
    found = rows_of(source(filled), "due", "destination")

    assert len(found) == 300
    assert list(found[0]) == ["due", "destination"]


def test_a_column_that_no_row_fills_is_empty(store: Store) -> None:
    Loader(store).load([batch([row(1), row(3)])])

    assert [one["saga_id"] for one in rows_of(source(store), "saga_id")] == [None, None]


def test_a_read_keeps_the_log_for_the_writes_of_its_process(sqlite: Store) -> None:
    found = []
    for number in range(3):
        Loader(sqlite).load([batch([row(number)])])
        found.append(len(rows_of(source(sqlite))))

    assert found == [1, 2, 3]


def test_a_text_that_begins_late_is_read(sqlite: Store) -> None:
    # SQLite's driver guesses the type of a column from the first rows that it meets.
    rows = [row(n, saga_id=None) for n in range(2_500)] + [row(2_501, saga_id="late")]
    Loader(sqlite).load([batch(rows)])

    found = rows_of(source(sqlite), "saga_id", "due")

    assert sorted({one["saga_id"] or "" for one in found}) == ["", "late"]


def test_an_empty_store_has_no_rows(store: Store) -> None:
    for view in VIEWS:
        assert rows_of(source(store, view=view)) == []


def test_history_and_keys_have_the_loaded_timeouts(filled: Store) -> None:
    history = rows_of(source(filled, view="history"))
    keys = rows_of(source(filled, view="keys"))

    assert {(one["event"], one["run_id"]) for one in history} >= {
        ("scheduled", history[0]["run_id"])
    }
    assert {one["id"] for one in history} == {one["id"] for one in keys}
    assert {one["state"] for one in keys} == {"pending"}


def test_a_selection_is_made_in_the_store(filled: Store) -> None:
    begin, end = (to_micros(DUE + timedelta(seconds=each)) for each in (10, 13))

    some = rows_of(source(filled, due_from=begin, due_before=end))
    as_text = {
        "due_from": (DUE + timedelta(seconds=10)).isoformat(),
        "due_before": (DUE + timedelta(seconds=13)).astimezone(NEW_YORK).isoformat(),
    }
    the_same = rows_of(source(filled, **as_text))
    none = rows_of(source(filled, endpoint="other")) + rows_of(
        source(filled, destination="o'th%er")
    )

    assert sorted(one["message_id"] for one in some) == ["m10", "m11", "m12"]
    own = rows_of(source(filled, endpoint="sales", destination="billing"), "id")
    assert the_same == some
    assert none == []
    assert len(own) == 300


def test_a_selection_by_saga_and_of_keys_that_are_open_is_made_in_the_store(filled: Store) -> None:
    saga = rows_of(source(filled, saga_id="saga-8"), "message_id")
    to = rows_of(source(filled, due_to=to_micros(DUE + timedelta(seconds=2))), "message_id")
    keys = rows_of(source(filled, view="keys", open_since=to_micros(DUE)), "id")

    assert [one["message_id"] for one in saga] == ["m8"]
    assert sorted(one["message_id"] for one in to) == ["m0", "m1"]
    assert len(keys) == 300


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ([EqualTo(("saga_id",), "saga-8"), EqualTo(("endpoint",), "sales")], ["m8"]),
        ([EqualTo(("destination",), "mail")], []),
        (
            [
                GreaterThanOrEqual(("due",), DUE + timedelta(seconds=297)),
                LessThan(("due",), DUE + timedelta(seconds=299)),
            ],
            ["m297", "m298", "m299"],  # the end is left to Spark
        ),
        ([EqualTo(("due",), DUE + timedelta(seconds=5)), EqualTo(("version",), 0)], ["m5"]),
    ],
)
def test_filters_of_a_query_narrow_what_leaves_the_store_and_stay_sparks(
    filled: Store, filters: list[Any], names: list[str]
) -> None:
    made = over_there(FilteringDataSource({"store": filled.name}))
    reader = made.reader(struct("pending", "message_id"))

    left = list(reader.pushFilters(filters))
    there = over_there(reader)
    found = [one for part in there.partitions() for each in there.read(part) for one in each[0]]

    assert left == [one for one in filters if not isinstance(one.value, str)]
    assert sorted(one.as_py() for one in found) == names


def test_a_filter_widens_no_range_that_ends_in_1970() -> None:
    which = Selection(due_from=0, due_before=0)

    after = narrowed(which, "pending", GreaterThanOrEqual(("due",), DUE - timedelta(days=40_000)))

    assert narrowed(after, "pending", LessThan(("due",), DUE)) == which


def test_the_load_is_counted_by_the_store(filled: Store) -> None:
    found = rows_of(source(filled, view="load", bucket_seconds=60))

    assert [one["bucket"] for one in sorted(found, key=lambda one: str(one["bucket"]))] == [
        DUE + timedelta(minutes=minute) for minute in range(5)
    ]
    assert {one["messages"] for one in found} == {60}
    assert sum(one["bytes"] for one in found) == sum(len(row(n)["body"]) for n in range(300))


def test_without_a_snapshot_one_task_reads_all(postgres: Store) -> None:
    reader = source(postgres, partitions=8).reader(struct())

    assert len(reader.partitions()) == 1


def test_parts_of_one_snapshot_see_one_moment(postgres: Store) -> None:
    Loader(postgres).load([batch([row(number) for number in range(2_000)])])

    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        made = source(postgres, snapshot=held.name, partitions=8)
        reader: Any = made.reader(struct("pending", "id"))
        parts = reader.partitions()
        found = []
        for part in parts:
            found += [one for each in reader.read(part) for one in each["id"].to_pylist()]
            # Every row moves to the end of its table, where the last part would find it again.
            with postgres.database.begin() as connection:
                connection.execute(
                    update(postgres.tables.timeouts).values(
                        attempts=postgres.tables.timeouts.c.attempts + 1
                    )
                )
            Loader(postgres).load([batch([row(5_000 + len(found))])])

    assert len(parts) >= 4
    assert len(found) == len(set(found)) == 2_000


def test_parts_that_are_given_are_read_without_asking_the_store() -> None:
    parts = [Part("timeouts", 0, 4), Part("timeouts", 4, None), Part(None, 5, 9, is_window=True)]
    given = {"store": "nowhere", "snapshot": "x", "parts": as_option(parts)}

    found = over_there(TimeoutsDataSource(given).reader(struct()).partitions())

    assert [one.value for one in found] == parts


def test_a_worker_keeps_a_store_until_its_file_is_another(sqlite: Store) -> None:
    named = NamedStore(sqlite.name)
    first, second = named.open(), over_there(named).open()
    path = Path(sqlite.name)
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))
    other = named.open()

    assert first is second
    assert other is not first


def test_a_snapshot_that_has_ended_is_named(postgres: Store) -> None:
    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
    reader = source(postgres, snapshot=held.name).reader(struct("pending", "id"))

    with pytest.raises(SnapshotEnded, match="run it again"):
        list(reader.read(reader.partitions()[0]))


def test_ranges_of_due_times_are_read_each(store_of: Any, postgres: Store) -> None:
    from timeoutmgr.persistence import SqlPersistence, SqlSettings

    ranged = SqlPersistence(
        postgres.database,
        prefix=postgres.tables.timeouts.name.removesuffix("timeouts"),
        settings=SqlSettings(partitions="auto", history="full"),
    )
    ranged.install()
    far = [row(n, due=DUE + timedelta(days=400 * n)) for n in range(9)]
    Loader(postgres).load([batch(far)])

    with snapshot(postgres) as held:
        assert isinstance(held, SharedSnapshot)
        found = rows_of(source(postgres, snapshot=held.name, partitions=4))

    assert sorted(one["message_id"] for one in found) == sorted(one["message_id"] for one in far)


@pytest.mark.parametrize(
    ("sizes", "count_", "parts"),
    [
        ([("a", 10)], 1, [("a", 0, None)]),
        ([("a", 10)], 3, [("a", 0, 4), ("a", 4, 8), ("a", 8, None)]),
        ([("a", 1)], 8, [("a", 0, None)]),
        ([("a", 6), ("b", 2)], 4, [("a", 0, 2), ("a", 2, 4), ("a", 4, None), ("b", 0, None)]),
        ([], 4, []),
    ],
)
def test_tables_are_cut_into_parts_of_like_size(
    sizes: list[tuple[str, int]], count_: int, parts: list[tuple[str, int, int | None]]
) -> None:
    assert cut(sizes, count_) == [Part(*one) for one in parts]


@pytest.fixture
def days(postgres: Store) -> Store:
    """A store with the events of three months, whose numbers PostgreSQL knows."""
    write_events(postgres, range(20_000), at=to_micros(DAY))
    for number, hours in enumerate((-1, 0, 1, 30)):
        write_events(postgres, [-number], at=to_micros(DAY + timedelta(days=90, hours=hours)))
    with postgres.database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text(f"ANALYZE {postgres.tables.history.name}"))
    return postgres


def test_events_of_a_window_are_found_by_the_index_whoever_has_them(days: Store) -> None:
    since = to_micros(DAY + timedelta(days=90))
    which = Selection(at_from=since)
    with snapshot(days) as held:
        assert isinstance(held, SharedSnapshot)
        # The snapshot sees the events that archive removes meanwhile, and whose they were.
        with days.database.begin() as connection:
            connection.execute(
                delete(days.tables.history).where(days.tables.history.c.endpoint == "sales")
            )
        made = source(days, view="history", at_from=since, snapshot=held.name, partitions=4)
        found = rows_of(made, "id", "endpoint")
    (part,) = parts_of(days, "history", 4, which)
    wanted = statement(days.tables, "history", projected("history", ["id"]), which, part)
    with days.database.read() as connection:
        explained = "EXPLAIN " + as_text(wanted, connection.dialect)
        plan = "\n".join(connection.execute(text(explained)).scalars())

    assert sorted((one["id"], one["endpoint"]) for one in found) == [
        *(("id-1", "sales"), ("id-2", "ship/ping"), ("id-3", "sales")),
    ]
    assert part.is_window
    assert "Seq Scan" not in plan
    assert f"{days.tables.history.name}_at" in plan


def test_any_name_of_a_queue_chooses_the_events_of_a_window(days: Store) -> None:
    name = "x/:due 5% %s 'y'"
    since = to_micros(DAY + timedelta(days=90))
    write_events(days, [-9], at=since, destination=name)

    found = rows_of(source(days, view="history", at_from=since, destination=name), "id")

    assert [one["id"] for one in found] == ["id-9"]


def test_a_window_of_most_events_is_read_as_all_events_are(days: Store) -> None:
    which = Selection(at_from=to_micros(DAY))

    parts = parts_of(days, "history", 2, which)

    assert [one.is_window for one in parts] == [False, False]


@given(
    begin=integers(-10, 10),
    end=none() | integers(-20, 40),
    count_=integers(0, 5),
    at=integers(-20, 60),
)
def test_an_instant_lies_in_one_window_exactly_if_it_is_not_before_them(
    begin: int, end: int | None, count_: int, at: int
) -> None:
    made = windows(begin, end, count_)

    holding = [one for one in made if one.first <= at and (one.end is None or at < one.end)]

    assert len(holding) == (at >= begin)


def written(store: Store, batches: Iterator[pa.RecordBatch], **options: object) -> None:
    made = source(store, **options)
    writer = over_there(made.writer(struct(), overwrite=False))
    messages = [over_there(writer.write(batches))]
    over_there(writer).commit(messages)


def test_a_repeated_task_stores_the_missing_rows(store: Store) -> None:
    def fails_half_way() -> Iterator[pa.RecordBatch]:
        yield batch([row(n) for n in range(10)])
        raise ConnectionResetError("the executor is killed here")

    with pytest.raises(ConnectionResetError):
        written(store, fails_half_way(), run_id="r", chunk_rows=4)
    half = count(store, "timeouts")
    whole = batch([row(n) for n in range(20)])
    written(store, iter([whole]), run_id="r", chunk_rows=4)

    assert 0 < half < 20
    assert (count(store, "timeouts"), count(store, "keys"), count(store, "history")) == (20,) * 3


def test_an_abort_undoes_nothing(sqlite: Store) -> None:
    made = source(sqlite, run_id="r")
    writer = made.writer(struct(), overwrite=False)
    message = writer.write(iter([batch([row(1)])]))

    writer.abort([message, None])

    assert [one["run_id"] for one in read(sqlite, "pending")] == ["r"]


def test_a_write_whose_commit_failed_is_made_good_by_the_same_write(store: Store) -> None:
    halves = [batch([row(n) for n in some]) for some in (range(6), range(6, 10))]
    writer = source(store, run_id="r", chunk_rows=4).writer(struct(), overwrite=False)
    messages = [over_there(over_there(writer).write(iter([half]))) for half in halves]
    settings = Path(store.name)
    away = settings.rename(settings.with_suffix(".away"))
    with pytest.raises(ConfigurationError, match="cannot read the settings file"):
        over_there(writer).commit(messages)
    over_there(writer).abort(messages)
    away.rename(settings)

    written(store, iter(halves), run_id="r", chunk_rows=4)

    assert (count(store, "timeouts"), count(store, "keys"), count(store, "history")) == (10,) * 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"veiw": "history"}, "no option 'veiw', only store"),
        ({"view": "letters"}, "no view 'letters'; views are pending"),
        ({"due_from": "2030-01-31T09:00:00"}, "'due_from' is an instant of .* with a zone"),
        ({"due_from": "tomorrow"}, "'due_from' is an instant of ISO 8601 .* got 'tomorrow'"),
        ({"due_from": "9" * 19}, "'due_from' is an instant .* of the years 1 to 9999; got '9999"),
        ({"store": "postgresql://me:secret@host/db"}, "TIMEOUTMGR_STORE_<NAME>"),
        ({"store": "nowhere"}, "TIMEOUTMGR_STORE_NOWHERE is not set"),
        ({"store": "missing.toml"}, "cannot read the settings file"),
        ({"schema": "elsewhere"}, r"\.toml names its tables itself; leave out prefix and schema"),
        ({"prefix": "own_"}, r"\.toml names its tables itself; leave out prefix and schema"),
        ({"partitions": "0"}, "'partitions' is a whole number from 1, got '0'"),
    ],
)
def test_wrong_options_are_refused_with_the_right_values(
    sqlite: Store, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        rows_of(TimeoutsDataSource({"store": sqlite.name, **options}))

    assert "secret" not in str(refused.value)


def test_a_column_that_is_not_there_is_named(sqlite: Store) -> None:
    with pytest.raises(WrongColumns, match="no column 'dew'"):
        source(sqlite).reader(StructType([StructField("dew", TimestampType())]))


def test_timeouts_are_never_overwritten(sqlite: Store) -> None:
    with pytest.raises(ConfigurationError, match="append"):
        source(sqlite).writer(struct("pending", "id"), overwrite=True)


def test_a_write_with_an_unknown_rule_for_conflicts_is_refused_at_the_door(sqlite: Store) -> None:
    with pytest.raises(ConfigurationError, match="one of ignore, error, verify, got 'fail'"):
        source(sqlite, on_conflict="fail").writer(struct(), overwrite=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("endpoint", "sales"), ("destination", "billing"), ("at_from", 1), ("at_before", 1)),
        *(("snapshot", "x"), ("on_conflict", "ignore")),
    ],
)
def test_a_stream_refuses_options_that_it_would_not_obey(
    sqlite: Store, option: str, value: object
) -> None:
    with pytest.raises(ConfigurationError, match=rf"no option '{option}', only .*\.where\("):
        source(sqlite, **{option: value}).streamReader(struct("history"))


def test_numbers_of_a_stream_and_of_a_history_table_are_checked(sqlite: Store) -> None:
    with pytest.raises(ConfigurationError, match=r"'batch_events' is a whole number .* 'many'"):
        source(sqlite, batch_events="many").streamReader(struct("history"))
    with pytest.raises(ConfigurationError, match=r"'partitions' is a whole number from 1"):
        TimeoutsDataSource({"table": "h", "partitions": "0"}).reader(struct("history", "id"))


def test_a_stream_is_of_the_history_alone(sqlite: Store) -> None:
    with pytest.raises(ConfigurationError, match="'history', got 'pending'"):
        source(sqlite, view="pending").streamReader(struct("history", "id"))

    source(sqlite, view="history", batch_events=5).streamReader(struct("history", "id"))


def test_workers_find_the_tables_that_a_store_was_opened_with(
    postgres: Store, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.database.url.render_as_string(hide_password=False)
    monkeypatch.setenv("TIMEOUTMGR_STORE_ELSEWHERE", url)
    store = open_store("elsewhere", schema=unique, prefix="own_")

    named = over_there(NamedStore.of(store))
    read = TimeoutsDataSource(options_of(named, "pending", Selection()))

    there = named.open()
    assert there.tables.history.fullname == f"{unique}.own_timeout_history"
    assert read._named == named
    for one in (store, there):
        one.persistence.close()


def test_workers_find_all_of_a_settings_file_in_it(sqlite: Store) -> None:
    assert NamedStore.of(sqlite) == NamedStore.of(sqlite.name) == NamedStore(sqlite.name)


def test_a_store_that_is_not_installed_is_said_so(
    sqlite: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMEOUTMGR_STORE_ELSE_WHERE", f"{sqlite.database.url}x")

    with pytest.raises(SchemaMissing, match="timeoutmgr install"):
        rows_of(source(sqlite, store="else-where"))

    assert sqlite.database.path is not None
    assert not sqlite.database.path.with_suffix(".dbx").exists()


def test_an_unknown_selection_of_buckets_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="whole seconds"):
        Selection(bucket=timedelta(milliseconds=1500))

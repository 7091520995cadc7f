from __future__ import annotations

import gzip
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from sqlalchemy import delete, update

from tests.pipeline.migrations import due_tomorrow, fill, moved
from tests.pipeline.rows import batch, row, settle
from tests.pipeline.spark import oracle
from tests.pipeline.spark.oracle import Fact
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Outcome, OutcomeKind, TimeoutState
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import from_micros, to_micros
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.jobs.archive import archive
from timeoutmgr.pipeline.jobs.output_folder import require_own
from timeoutmgr.pipeline.jobs.reconcile import ReconcileReport, all_known, reconcile
from timeoutmgr.pipeline.options import ArchiveOptions, ReconcileOptions
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.transforms.verdicts import (
    VERDICTS,
    Bounds,
    Verdict,
    about,
    of_accepted,
    of_history,
    of_keys,
    of_pending,
    problems_of,
    tallied,
    together,
    verdicts,
    verdicts_by_print,
)
from timeoutmgr.pipeline.views import HISTORY, KEYS, PENDING
from timeoutmgr.pipeline.writers.loader import Loader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CUTOFF, LATE = 1_000, timedelta(microseconds=50)
BOUNDS = Bounds(cutoff=CUTOFF, late=LATE)
EVENTS = (
    *("scheduled", "rescheduled", "dispatched", "cancelled", "failed", "dead_lettered"),
    *("migrated", "erased", "odd"),
)
STATES = tuple(state.value for state in TimeoutState)
NOON = datetime(2020, 6, 1, 12, tzinfo=UTC)
LAST = datetime(9999, 12, 31, tzinfo=UTC)

instants = st.sampled_from([900, 980, 999, 1_000, 1_001, 1_050, 1_051, 2_000])
facts = st.builds(
    Fact,
    st.sampled_from([*EVENTS, *(f"key-{state}" for state in STATES), "pending", "accepted"]),
    instants,
    instants,
)


def judged(spark: SparkSession, cases: list[list[Fact]]) -> list[str]:
    """Return the verdict on each of *cases*."""
    return [one["verdict"] if one else "no facts" for one in reconciled_rows(spark, cases)]


def reconciled_rows(spark: SparkSession, cases: list[list[Fact]]) -> list[dict[str, Any]]:
    """Return the verdict on each of *cases*, all in one job; nothing without facts."""
    found = verdicts(evidence_of(spark, cases), BOUNDS).toArrow()
    by_id = {one["id"]: one for one in found.to_pylist()}
    return [by_id.get(f"{case:05}", {}) for case in range(len(cases))]


def evidence_of(spark: SparkSession, cases: list[list[Fact]]) -> list[DataFrame]:
    """Return the facts of *cases* from the four views."""

    def frame(names: dict[str, str], columns: pa.Schema, *more: str) -> DataFrame:
        rows = [
            {
                "id": f"{case:05}",
                "at": None if fact.at is None else from_micros(fact.at),
                "due": from_micros(fact.due),
                **{name: names[fact.what] for name in more},
            }
            for case, found in enumerate(cases)
            for fact in found
            if fact.what in names
        ]
        closed = [row | {"closed_at": row["at"]} for row in rows]
        kept = pa.schema(
            [
                columns.field(n)
                for n in ("id", "at", "due", "closed_at", *more)
                if n in columns.names
            ]
        )
        return spark.createDataFrame(pa.Table.from_pylist(closed, schema=kept))

    return [
        of_history(frame({name: name for name in EVENTS}, HISTORY, "event")),
        of_keys(frame({f"key-{state}": state for state in STATES}, KEYS, "state")),
        of_pending(frame({"pending": ""}, PENDING)),
        of_accepted(frame({"accepted": ""}, PENDING), "sales"),
    ]


# Hypothesis first tries the simplest cases, which have no facts: these would be the only example.
once = settings(
    max_examples=1, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.usefixtures("compiled")
@once
@given(cases=st.lists(st.lists(facts, max_size=5), min_size=300, max_size=600).filter(any))
def test_verdicts_match_the_oracle(spark: SparkSession, cases: list[list[Fact]]) -> None:
    alone = (*EVENTS, *(f"key-{state}" for state in STATES), "pending", "accepted")
    every = [
        *([Fact(one, 1_000, 1_000)] for one in alone),
        *([Fact(one, 999, 1_000), Fact(two, 1_051, 999)] for one in alone for two in alone),
    ]
    expected = [
        oracle.verdict(case, cutoff=CUTOFF, late=50).value if case else "no facts"
        for case in [*every, *cases]
    ]

    assert judged(spark, [*every, *cases]) == expected


ever = st.integers(to_micros(datetime.min.replace(tzinfo=UTC)), to_micros(LAST))
facts_of_any_time = st.builds(
    Fact, st.sampled_from(["dispatched", "pending", "scheduled", "key-dispatched"]), ever, ever
)


@once
@given(
    cases=st.lists(st.lists(facts_of_any_time, max_size=5), min_size=200, max_size=300).filter(any)
)
def test_the_times_that_count_match_the_oracle(
    spark: SparkSession, cases: list[list[Fact]]
) -> None:
    first = [Fact("dispatched", 5, -9), Fact("dispatched", -3, 7), Fact("pending", 0, 1)]
    every = [first, [Fact("pending", 0, -1), Fact("scheduled", 0, 100)], *cases]

    found = [(one.get("first_at"), one.get("due")) for one in reconciled_rows(spark, every)]

    assert found == [oracle.times(case) for case in every]
    assert found[:2] == [(-3, -9), (None, -1)]


def test_prints_are_judged_as_their_ids_are_and_lead_back_to_them(spark: SparkSession) -> None:
    kinds = [Fact("dispatched", 1_000, 1_000), Fact("scheduled", 1_000, 1_000)]
    evidence = evidence_of(spark, [[kinds[case < 20]] for case in range(2_000)])

    heaps = tallied(verdicts_by_print(evidence, BOUNDS), "verdict").toArrow().to_pylist()
    many = Counter[str]()
    for heap in heaps:
        many[heap["verdict"]] += heap["many"]
    lost = {heap[name] for heap in heaps if heap["verdict"] == "lost" for name in ("first", "last")}
    named = about(together(evidence), lost).select("id").toArrow().column("id").to_pylist()

    assert many == {"ok": 1_980, "lost": 20}
    assert sorted(named) == [f"{case:05}" for case in range(20)]


def test_a_verdict_names_the_last_destination_of_a_rerouted_message(spark: SparkSession) -> None:
    events = (("scheduled", 900, "old"), ("rerouted", 950, "new"), ("dispatched", 1_000, "new"))
    history = [
        {"id": "i", "event": event, "at": from_micros(at), "due": from_micros(999)}
        | {"endpoint": "sales", "destination": destination}
        for event, at, destination in events
    ]
    times = dict.fromkeys(("due", "closed_at"), from_micros(1_000))
    keys = [{"id": "i", "state": "dispatched", "endpoint": "sales"} | times]
    frames = [
        spark.createDataFrame(pa.Table.from_pylist(rows, pa.schema(map(schema.field, rows[0]))))
        for rows, schema in ((history, HISTORY), (keys, KEYS))
    ]

    found = verdicts([of_history(frames[0]), of_keys(frames[1])], BOUNDS).toArrow().to_pylist()

    assert [(one["endpoint"], one["destination"]) for one in found] == [("sales", "new")]


def run(spark: SparkSession, store: Store, **options: Any) -> ReconcileReport:
    given = ReconcileOptions(**({"stores": (store.name,), "endpoint": "sales"} | options))
    return reconcile(spark, given, clock=SystemClock())


def dispatch(store: Store, some: int) -> None:
    """Dispatch *some* that are due."""
    timeouts = store.persistence.timeouts("sales", SystemClock())
    chunk = timeouts.claim(timeouts.now(), some, "me")
    with timeouts.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        assert len(locked.timeouts) == some
        locked.close(
            [
                Outcome(key=one.key, kind=OutcomeKind.DISPATCHED, at=one.due + 1_000)
                for one in locked.timeouts
            ]
        )


@pytest.mark.usefixtures("compiled")
def test_the_messages_of_a_store_get_their_verdicts(
    spark: SparkSession, postgres: Store, tmp_path: Path
) -> None:
    past = [row(n, due=NOON + timedelta(seconds=n)) for n in range(6)]
    Loader(postgres).load([batch(past), batch([row(n) for n in range(10, 14)])])
    timeouts = postgres.persistence.timeouts("sales", SystemClock())
    dispatch(postgres, 3)
    timeouts.cancel(row(10)["id"])
    timeouts.reschedule(row(11)["id"], to_micros(NOON))
    well = run(spark, postgres)
    # Our code never does this: a row disappears without an event.
    with postgres.database.begin() as connection:
        removed = postgres.tables.timeouts.c.id == row(12)["id"]
        connection.execute(delete(postgres.tables.timeouts).where(removed))

    broken = run(spark, postgres, out=tmp_path / "verdicts")

    expected = {Verdict.OK: 3, Verdict.OVERDUE: 4, Verdict.CANCELLED: 1, Verdict.PENDING: 2}
    assert well.counts == expected
    assert (well.is_broken, well.is_decidable, well.messages) == (False, True, 10)
    assert broken.counts == expected | {Verdict.PENDING: 1, Verdict.LOST: 1}
    assert broken.is_broken
    assert broken.examples[0]["id"] == row(12)["id"]
    assert pq.read_table(tmp_path / "verdicts").num_rows == 10


def test_a_run_since_a_time_judges_open_messages_and_those_with_an_event_since(
    spark: SparkSession, sqlite: Store
) -> None:
    past = [row(n, due=NOON + timedelta(seconds=n)) for n in range(6)]
    Loader(sqlite).load([batch(past), batch([row(10), row(11, destination="mail")])])
    dispatch(sqlite, 3)
    now = datetime.now(UTC)
    with sqlite.database.begin() as connection:  # all but one long ago
        for table, column in (("history", "at"), ("keys", "closed_at")):
            named = getattr(sqlite.tables, table)
            there, last = named.c[column].is_not(None), named.c.id == row(2)["id"]
            for which, at in ((~last, NOON), (last, now)):
                changed = update(named).where(there, which).values({column: to_micros(at)})
                connection.execute(changed)

    whole = run(spark, sqlite, keep=True)
    with pytest.MonkeyPatch.context() as patch:
        kept = kept_frames(patch)
        since = run(spark, sqlite, since=now - timedelta(hours=1))
    due = run(spark, sqlite, until=NOON + timedelta(seconds=4))
    sent = run(spark, sqlite, destination="mail")

    assert since.examples == whole.examples
    assert [one.storageLevel.useMemory for one in kept] == [False], "kept for the examples alone"
    open_: dict[Verdict, int] = {Verdict.OVERDUE: 3, Verdict.PENDING: 2}
    assert whole.counts == {Verdict.OK: 2, Verdict.LATE: 1, **open_}
    assert since.counts == {Verdict.LATE: 1, **open_}
    assert due.counts == {Verdict.OK: 2, Verdict.LATE: 1, Verdict.OVERDUE: 1}
    assert sent.counts == {Verdict.PENDING: 1}
    frame = whole.verdicts.where(f"id = '{row(11)['id']}'").toArrow()
    assert frame.column_names == [*VERDICTS]
    (one,) = frame.to_pylist()
    assert (one["endpoint"], one["destination"], one["verdict"]) == ("sales", "mail", "pending")
    assert one["day"] == row(11)["due"].date()
    with pytest.raises(ConfigurationError, match="counted and not kept; give"):
        _ = since.verdicts


def kept_frames(patch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets each frame that is kept from now on."""
    found: list[Any] = []
    persist: Any = ClassicFrame.persist

    def kept(frame: Any) -> Any:
        found.append(persist(frame))
        return found[-1]

    patch.setattr(ClassicFrame, "persist", kept)
    return found


def test_a_migrated_message_is_not_lost_and_counts_at_its_place(
    spark: SparkSession, store_of: Any
) -> None:
    here, there = store_of("sqlite"), store_of("postgres")
    fill(here, due_tomorrow(3))
    moved(here, there)

    moved_away = run(spark, here)
    # A timeout that the target loses is reported as lost.
    with there.database.begin() as connection:
        removed = there.tables.timeouts.c.id == "t001"
        connection.execute(delete(there.tables.timeouts).where(removed))
    lost = run(spark, here, stores=(here.name, there.name))

    assert (moved_away.counts, moved_away.is_broken) == ({Verdict.MIGRATED: 3}, False)
    assert lost.counts == {Verdict.PENDING: 2, Verdict.LOST: 1}


def neighbour(store: Store, history: str) -> str:
    """Name the settings of another endpoint that keeps its timeouts in the tables of *store*."""
    path = Path(store.name).with_name("billing.toml")
    own = Path(store.name).read_text().replace('"sales"', '"billing"')
    path.write_text(own.replace('history = "full"', f'history = "{history}"'))
    return str(path)


def test_an_event_is_one_event_in_store_and_archive_and_for_all_names_of_the_store(
    spark: SparkSession, store_of: Any, tmp_path: Path
) -> None:
    for kind, format_ in (("sqlite", ""), ("postgres", "delta:")):
        store, place = store_of(kind), f"{format_}{tmp_path / kind}"
        due = {row(n)["id"]: NOON + timedelta(days=n // 2, seconds=n) for n in range(4)}
        Loader(store).load([batch([row(n, due=due[row(n)["id"]]) for n in range(4)])])
        dispatch(store, 4)
        history = store.tables.history
        with store.database.begin() as connection:
            for id_, at in due.items():
                changed = update(history).where(history.c.id == id_).values(at=to_micros(at))
                connection.execute(changed)
        if store.is_postgresql:
            settle(store)
        both = (store.name, neighbour(store, "full"))
        found = []
        # All events are in both places; then those of the first two messages leave the store.
        for after, purge in ((timedelta(days=2), False), (timedelta(hours=12), True)):
            older_than = datetime.now(UTC) - (NOON + after)
            given = ArchiveOptions(store=store.name, to=place, older_than=older_than, purge=purge)
            archived = archive(given, clock=SystemClock())
            found.append((archived.written, archived.removed))
        report = run(spark, store, stores=both, archive=place)

        assert found == [(8, 0), (0, 4)]
        assert (report.counts, report.is_decidable) == ({Verdict.OK: 4}, True)


def test_an_accepted_message_never_stored_is_lost_once_due(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    Loader(sqlite).load([batch([row(1), row(2)])])
    # A tombstone that is older than its message: the message counts as cancelled.
    sqlite.persistence.timeouts("sales", SystemClock()).cancel(row(3)["id"])
    accepted = tmp_path / "accepted.csv"
    accepted.write_text(
        "message_id,due\nm1,2031-01-01T00:00:00Z\nm3,2020-01-01T00:00:00Z\n"
        "m4,2020-01-01T00:00:00Z\nm5,2131-01-01T00:00:00Z\n"
    )

    report = run(spark, sqlite, accepted=str(accepted))

    assert report.counts == {Verdict.PENDING: 3, Verdict.CANCELLED: 1, Verdict.LOST: 1}
    assert [one["id"] for one in report.examples] == [row(4)["id"]]


def test_a_lost_message_of_unknown_destination_is_lost_in_the_run_for_each(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    Loader(sqlite).load([batch([row(1), row(2, destination="mail")])])
    accepted = tmp_path / "accepted.csv"
    accepted.write_text("message_id,due\nm1,\nm2,\nm4,2020-01-01T00:00:00Z\n")

    report = run(spark, sqlite, accepted=str(accepted), destination="mail")

    assert report.counts == {Verdict.PENDING: 1, Verdict.LOST: 1}


def test_an_accepted_message_without_a_due_time_is_undecided_without_as_of(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    Loader(sqlite).load([batch([row(1)])])
    accepted = tmp_path / "accepted.csv"
    accepted.write_text("message_id\nm1\nm2\n")
    now = datetime.now(UTC)

    found = [
        run(spark, sqlite, accepted=str(accepted), as_of=as_of)
        for as_of in (now, now - timedelta(minutes=6))
    ]

    assert [one.counts for one in found] == [
        {Verdict.PENDING: 1, Verdict.UNDECIDED: 1},
        {Verdict.PENDING: 1, Verdict.LOST: 1},
    ]
    assert [one.is_decidable for one in found] == [False, True]
    assert [one.is_broken for one in found] == [False, True]


def test_accepted_messages_are_stored_only_as_of_a_time_that_has_passed() -> None:
    known = [Bounds(cutoff=CUTOFF, as_of=as_of) for as_of in (None, CUTOFF + 1, CUTOFF)]

    assert [one.accepted_is_stored for one in known] == [False, False, True]


def test_without_full_history_a_message_never_stored_is_not_missed(
    spark: SparkSession, sqlite: Store
) -> None:
    other = neighbour(sqlite, "outcomes")

    # Any of two endpoints that share a database is enough.
    known = [
        all_known(spark, ReconcileOptions(stores=names))
        for names in ((sqlite.name,), (sqlite.name, other))
    ]

    assert known == [True, False]


def test_a_list_says_what_is_lost_of_its_endpoint_alone(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    other, accepted, empty = neighbour(sqlite, "outcomes"), tmp_path / "a.csv", tmp_path / "e.csv"
    accepted.write_text("message_id\nm1\n")
    empty.write_text("message_id\n")
    Loader(sqlite).load([batch([row(1)])])

    def known(path: Path, **options: Any) -> bool:
        given = ReconcileOptions(stores=(other,), accepted=str(path), **options)
        return all_known(spark, given)

    alone = [known(accepted, accepted_for="sales"), known(empty, endpoint="sales")]
    Loader(sqlite).load([batch([row(2, endpoint="billing")])])
    both = [known(accepted, accepted_for="sales"), known(accepted, endpoint="sales")]

    assert (alone, both) == ([True, False], [False, True])
    assert not known(accepted, endpoint="billing", accepted_for="sales")


def test_a_list_without_ids_is_refused(spark: SparkSession, sqlite: Store, tmp_path: Path) -> None:
    path = tmp_path / "list.csv"

    with pytest.raises(ConfigurationError, match=r"list.csv cannot be read as csv"):
        run(spark, sqlite, accepted=str(path))
    for name in ("list.txt", "list.csv.gz"):
        path.with_name(name).write_bytes(b"message_id\nm1\n")
        with pytest.raises(ConfigurationError, match=rf"/{name} cannot be read as .* is broken"):
            run(spark, sqlite, accepted=str(path.with_name(name)))
    path.write_text("order\n7\n")
    with pytest.raises(WrongColumns, match="neither a column 'message_id' nor 'id'"):
        run(spark, sqlite, accepted=str(path))
    path.write_text(
        "message_id,due\nm1,2031-01-01T00:00:00Z\n,2031-13-01T00:00:00Z\nm3,2031-01-01T00:00\n"
        "m4,\nm5,soon\n"
    )
    with pytest.raises(
        WrongColumns,
        match=r"1 rows whose 'message_id' is empty; has 3 rows whose 'due' is not an instant .* "
        "with a time zone, such as .*; one is '2031-01-01T00:00'",
    ):
        run(spark, sqlite, accepted=str(path))


def test_a_list_that_was_cut_off_is_named(
    spark: SparkSession, sqlite: Store, tmp_path: Path
) -> None:
    path = tmp_path / "list.csv.gz"
    packed = gzip.compress(b"message_id\n" + b"".join(b"m%d\n" % n for n in range(50_000)))
    path.write_bytes(packed[: len(packed) // 2])

    with pytest.raises(ConfigurationError, match=r"/list.csv.gz cannot be read as a list of acc"):
        run(spark, sqlite, accepted=str(path))


def test_numbers_in_a_list_are_read_as_texts(spark: SparkSession, sqlite: Store) -> None:
    Loader(sqlite).load([batch([row(1)])])
    spark.sql("CREATE OR REPLACE TEMP VIEW numbers AS VALUES (7, 8) AS rows(id, destination)")

    found = run(spark, sqlite, accepted="table:numbers", keep=True).verdicts.toArrow().to_pylist()

    assert {(one["id"], one["destination"]) for one in found} == {
        ("7", "8"),
        (row(1)["id"], "billing"),
    }


@pytest.mark.parametrize("kind", ["DATE", "DOUBLE", "TIMESTAMP_NTZ"])
def test_a_column_that_does_not_say_when_is_refused(spark: SparkSession, kind: str) -> None:
    (problem,) = problems_of(spark.createDataFrame([], f"id STRING, due {kind}"))

    assert f"'due' that is {kind.lower()}; expected timestamps, or texts with" in problem


def test_an_instant_beyond_the_calendar_is_refused(spark: SparkSession) -> None:
    beyond = spark.sql(f"SELECT 'm' AS message_id, timestamp_micros({to_micros(LAST)} + {10**12})")

    (problem,) = problems_of(beyond.toDF("message_id", "due"))

    assert "1 rows whose 'due' is not an instant of the years 1 to 9999" in problem


def test_a_table_of_the_catalog_is_a_list_too(spark: SparkSession, sqlite: Store) -> None:
    spark.sql("CREATE OR REPLACE TEMP VIEW sent AS VALUES ('m1'), (NULL) AS rows(message_id)")

    with pytest.raises(WrongColumns, match="table:sent: has 1 rows whose 'message_id' is empty"):
        run(spark, sqlite, accepted="table:sent")
    for name in ("lake.nowhere.sent", "no name"):
        with pytest.raises(ConfigurationError, match=f"table:{name} cannot be read as a table: "):
            run(spark, sqlite, accepted=f"table:{name}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stores": ()}, "no store"),
        ({"accepted": "list.csv"}, "give endpoint"),
        ({"accepted": "table:", "endpoint": "sales"}, "table:NAME, where NAME is a table"),
        ({"grace": timedelta(seconds=-1)}, "not negative"),
        ({"as_of": NOON}, "of a list of accepted ids"),
        ({"accepted": "a.csv", "endpoint": "e", "since": NOON}, "exclude each other"),
        ({"since": NOON.replace(tzinfo=None)}, "since is a time with a zone"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        ReconcileOptions(**({"stores": ("s",)} | options))


def test_files_without_verdicts_are_not_overwritten(
    spark: SparkSession, sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lake, rows = tmp_path / "lake", tmp_path / "rows"
    (lake / "manifests").mkdir(parents=True)
    rows.mkdir()
    pq.write_table(pa.table({"id": ["m1"]}), rows / "part-00000.parquet")

    for folder, name in ((lake, "manifests"), (rows, "part-00000.parquet")):
        with pytest.raises(ConfigurationError, match=f"holds '{name}', which no earlier run"):
            run(spark, sqlite, out=folder)
    own = tmp_path / "10:00/verdicts"  # no scheme of a URL
    own.mkdir(parents=True)
    old = own / "part-00000-old.parquet"
    pq.write_table(pa.table({name: ["x"] for name in VERDICTS}), old)
    run(spark, sqlite, out=Path("10:00/verdicts"))  # its own are
    require_own(own, "verdicts")
    assert (pq.read_table(own).num_rows, old.exists()) == (0, False)


def test_folders_are_no_urls() -> None:
    with pytest.raises(ConfigurationError, match="out is a folder of the file system"):
        ReconcileOptions(stores=("s",), out=Path("s3a://lake/h"))
    with pytest.raises(ConfigurationError, match=r"archive is delta:URI, .* put delta: before it"):
        ReconcileOptions(stores=("s",), archive="s3a://lake/h")

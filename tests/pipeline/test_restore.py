"""``archive --with-pending`` and ``restore``: store to lake to store, and everything is there."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, update

from tests.pipeline.archives import DAY, rows_of, write_events
from tests.pipeline.conftest import SETTINGS
from tests.pipeline.lakes import S3_TOO
from tests.pipeline.rows import DUE, batch, read, row, settle
from tests.pipeline.spark.oracle import Fact, verdict
from tests.support.clock import FakeClock
from timeoutmgr.cli.main import cli
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.archive import archive
from timeoutmgr.pipeline.jobs.compact import compact
from timeoutmgr.pipeline.jobs.restore import RestoreCounts, restore
from timeoutmgr.pipeline.jobs.stream import stream
from timeoutmgr.pipeline.lake import parquet
from timeoutmgr.pipeline.lake.message_snapshots import (
    PENDING_WRITTEN,
    pending_place,
    pending_table,
)
from timeoutmgr.pipeline.lake.places import open_table
from timeoutmgr.pipeline.lake_options import CompactOptions, RestoreOptions
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState
from timeoutmgr.pipeline.options import ArchiveOptions, StreamOptions
from timeoutmgr.pipeline.readers import arrow_batches
from timeoutmgr.pipeline.stores import Store, identity, open_store
from timeoutmgr.pipeline.writers.history_writer import HistoryRestore
from timeoutmgr.pipeline.writers.loader import Loader

ENDS = ("dispatched", "cancelled", "failed")
LABELLED = {"headers": '{"TimeoutManager.Labels":"[\\"tenant=acme\\"]"}'}

Facts = dict[str, list[dict[str, Any]]]


def archived(store: Store, place: str) -> int | None:
    options = ArchiveOptions(
        store=store.name, to=place, older_than=timedelta(days=30), with_pending=True
    )
    return archive(options, clock=SystemClock()).pending


def restored(store: Store, place: str, **options: Any) -> RestoreCounts:
    made = RestoreOptions(store=store.name, lake=place, **({"batch": 3} | options))
    return restore(made, clock=SystemClock())


def end(store: Store, number: int, event: str) -> None:
    """End the timeout *number*, as a dispatcher or an order would."""
    of, tables = row(number), store.tables
    due, at = to_micros(of["due"]), to_micros(datetime.now(UTC))
    with store.database.begin() as connection:
        connection.execute(delete(tables.timeouts).where(tables.timeouts.c.id == of["id"]))
        connection.execute(
            update(tables.keys)
            .where(tables.keys.c.id == of["id"])
            .values(state=event, closed_at=at)
        )
    write_events(store, [0], id=of["id"], event=event, at=at, due=due, endpoint="sales")


def filled(store: Store, pending: set[int], ended: dict[int, str]) -> None:
    numbers = sorted(pending | set(ended))
    Loader(store).load([batch([row(number) for number in numbers])])
    for number, event in ended.items():
        end(store, number, event)


def facts(store: Store) -> Facts:
    """Return all that a restore promises of *store*: messages, events and used ids."""
    of_run = ("version", "attempts", "run_id", "hidden_by")
    pending = [{k: v for k, v in one.items() if k not in of_run} for one in read(store, "pending")]
    events = [one for one in read(store, "history") if one["event"] != "scheduled"]
    keys = [{**one, "version": 0} for one in read(store, "keys")]
    return {"pending": pending, "history": events, "keys": keys}


def verdicts(store: Store) -> dict[str, str]:
    """Return the verdict on each id of *store*, by the rules of ``reconcile`` in plain Python."""
    found = defaultdict[str, list[Fact]](list)
    names = {"pending": ("", ""), "history": ("event", "at"), "keys": ("state", "closed_at")}
    for view, (what, at) in names.items():
        for one in read(store, view):
            name = {"pending": "pending", "keys": f"key-{one.get(what)}"}.get(view, one.get(what))
            instant = one.get(at)
            due = to_micros(one["due"])
            found[one["id"]].append(Fact(str(name), instant and to_micros(instant), due))
    now = to_micros(datetime.now(UTC))
    return {id_: verdict(some, cutoff=now, late=60_000_000) for id_, some in found.items()}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed file, to be copied: the migrations take longer than a test."""
    folder = tmp_path_factory.mktemp("empty")
    return store_in(folder, "empty", None)[1]


def store_in(folder: Path, name: str, like: Path | None) -> tuple[Store, Path]:
    path, toml = folder / f"{name}.db", folder / f"{name}.toml"
    toml.write_text(SETTINGS.format(url=f"sqlite:///{path}", prefix="t"))
    if like is not None:
        shutil.copy(like, path)
    store = open_store(str(toml))
    if like is None:
        store.persistence.install()
        store.persistence.close()
    return store, path


def test_the_pending_messages_of_a_day_are_in_one_file(
    postgres: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_batches, "BATCH_BYTES", 1)  # a batch for each row
    monkeypatch.setattr(parquet, "_OPEN_AT_ONCE", 2)
    scattered = [row(n) | {"due": row(1)["due"] + timedelta(days=n % 6)} for n in range(12)]
    Loader(postgres).load([batch(scattered)])

    archived(postgres, str(tmp_path / "history"))

    assert len([*(tmp_path / "pending").rglob("*.parquet")]) == 6


def test_a_compaction_of_the_pending_table_keeps_every_message(
    place: str, store_of: Callable[[str], Store]
) -> None:
    first, second, target = store_of("sqlite"), store_of("sqlite"), store_of("sqlite")
    for source, numbers in ((first, {1, 2}), (second, {3})):
        filled(source, numbers, {})
        archived(source, place)
    options = CompactOptions(lake=pending_place(place))

    report = compact(options, clock=FakeClock(to_micros(DUE + timedelta(days=30))))
    restored(target, place, of_store=identity(first))

    assert (report.scattered, report.compacted, report.after) == (2, 2, 1)
    assert facts(target)["pending"] == facts(first)["pending"] != []


def test_files_of_an_old_snapshot_are_removed_after_a_week(
    tmp_path: Path, store_of: Callable[[str], Store]
) -> None:
    def files() -> set[Path]:
        return {*(tmp_path / "pending").rglob("*.parquet")}

    source, place = store_of("sqlite"), str(tmp_path / "history")
    filled(source, {1}, {})
    archived(source, place)
    first = files()
    archived(source, place)
    eight_days_ago = datetime.now(UTC).timestamp() - 8 * 86_400
    for file in first:
        os.utime(file, (eight_days_ago, eight_days_ago))

    archived(source, place)

    assert first.isdisjoint(files())
    assert len(files()) == 2


def test_history_is_not_written_into_a_table_of_other_columns(
    place: str, store_of: Callable[[str], Store]
) -> None:
    source = store_of("sqlite")
    filled(source, {1}, {2: "dispatched"})
    archived(source, place)
    pending = pending_place(place)
    other = ArchiveOptions(store=source.name, to=pending, older_than=timedelta(minutes=1))

    with pytest.raises(ConfigurationError, match="other columns than a history has; name another"):
        archive(other, clock=FakeClock(to_micros(DUE + timedelta(days=30))))


@given(data=st.data())
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_store_comes_back_whole_and_used_ids_stay_used(
    data: st.DataObject, empty: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pending = data.draw(st.sets(st.integers(0, 9), max_size=6))
    ended = data.draw(st.dictionaries(st.integers(10, 19), st.sampled_from(ENDS), max_size=6))
    folder = tmp_path_factory.mktemp("trip")
    source, _ = store_in(folder, "source", empty)
    target, _ = store_in(folder, "target", empty)
    filled(source, pending, ended)
    place = str(folder / "history")

    assert archived(source, place) == len(pending)
    if not pending and not ended:
        return
    report = restored(target, place)
    again = restored(target, place)

    assert facts(target) == facts(source)
    assert verdicts(target) == verdicts(source)
    assert len(verdicts(source)) == len(pending) + len(ended)
    assert (report.new_pending, report.new_used_ids) == (len(pending), len(ended))
    assert (again.new_events, again.new_used_ids, again.new_pending) == (0, 0, 0)
    known = Loader(target).load([batch([row(number) for number in sorted(pending | {*ended})])])
    assert known == 0
    for store in (source, target):
        store.persistence.close()


@pytest.mark.parametrize("kind", S3_TOO)
def test_every_format_keeps_the_newest_snapshot_alone(
    kind: str, place_of: Callable[[str], str], store_of: Callable[[str], Store]
) -> None:
    source, target, place = store_of("sqlite"), store_of("sqlite"), place_of(kind)
    filled(source, {1, 2}, {})
    archived(source, place)
    filled(source, {3}, {1: "dispatched", 7: "failed"})

    assert archived(source, place) == 2
    planned = restored(target, place, dry_run=True)
    assert facts(target) == {"pending": [], "history": [], "keys": []}
    report = restored(target, place)

    assert facts(target) == facts(source)
    assert {one["message_id"] for one in facts(target)["pending"]} == {"m2", "m3"}
    assert (planned.new_pending, planned.new_events, planned.new_used_ids) == (
        report.new_pending,
        report.new_events,
        report.new_used_ids,
    )


@pytest.mark.parametrize("other", [{"system": 7}, {"timeline": 7}])
def test_the_pending_messages_of_another_server_are_not_replaced(
    other: dict[str, int], postgres: Store, place: str
) -> None:
    filled(postgres, {1, 2}, {})
    settle(postgres)
    archived(postgres, place)
    kept = pending_table(place)
    marks = kept.marks(identity(postgres))
    nothing = pa.RecordBatchReader.from_batches(PENDING_WRITTEN, [])
    kept.append(identity(postgres), nothing, {**marks, **other, "batch": marks["batch"]})

    with pytest.raises(RunConflict, match="begin anew in another place"):
        archived(postgres, place)

    assert sum(each.num_rows for each in pending_table(place).files().read(["id"])) == 2


@pytest.mark.parametrize("kind", ["delta-s3", "parquet"])
def test_a_store_comes_back_from_a_table_that_a_stream_has_written(
    kind: str, place_of: Callable[[str], str], store_of: Callable[[str], Store]
) -> None:
    source, target, place = store_of("postgres"), store_of("postgres"), place_of(kind)
    follow = StreamOptions(store=source.name, to=place, once=True)
    filled(source, {1, 2, 3}, {7: "failed"})
    settle(source)
    stream(follow)
    archived(source, place)
    end(source, 1, "dispatched")
    end(source, 2, "cancelled")
    settle(source)
    assert stream(follow).events == 2

    report = restored(target, place)
    again = restored(target, place)

    assert facts(target) == facts(source)
    assert verdicts(target) == verdicts(source)
    assert (report.pending, report.ended, report.new_pending, report.new_used_ids) == (3, 2, 1, 3)
    assert (again.new_events, again.new_used_ids, again.new_pending) == (0, 0, 0)


def test_a_young_store_comes_back_though_no_event_is_in_the_lake(
    place: str, store_of: Callable[[str], Store]
) -> None:
    source, target = store_of("sqlite"), store_of("sqlite")
    with pytest.raises(ConfigurationError, match="no history table"):
        restored(target, place)
    Loader(source).load([batch([row(1)])])
    with source.database.begin() as connection:
        connection.execute(delete(source.tables.history))
    archived(source, place)

    report = restored(target, place)

    assert (report.new_pending, report.events) == (1, 0)
    assert facts(target)["pending"] == facts(source)["pending"]


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_store_on_a_server_comes_back(
    kind: str, store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    source, target = store_of(kind), store_of(kind)
    filled(source, {1, 2, 4}, {7: "failed", 8: "dispatched"})
    if source.is_postgresql:
        settle(source)
    archived(source, str(tmp_path / "history"))

    restored(target, str(tmp_path / "history"))
    write_events(target, [99])  # a sequence that is free

    events = [one for one in facts(target)["history"] if one["id"] != "id99"]
    assert {**facts(target), "history": events} == facts(source)


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_restore_beside_an_endpoint_that_stores_the_same_id_leaves_the_id_to_the_endpoint(
    kind: str, store_of: Callable[[str], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, place = store_of(kind), store_of(kind), str(tmp_path / "history")
    filled(source, set(), {1: "dispatched", 2: "dispatched"})
    if source.is_postgresql:
        settle(source)
    archived(source, place)
    real = HistoryRestore.unused

    def overtaken(*given: Any) -> Any:
        found = real(*given)
        monkeypatch.setattr(HistoryRestore, "unused", real)
        Loader(target).load([batch([row(1)])])
        return found

    monkeypatch.setattr(HistoryRestore, "unused", overtaken)
    report = restored(target, place)

    assert (report.used_ids, report.new_used_ids) == (2, 1)
    assert [one["id"] for one in read(target, "pending")] == [row(1)["id"]]


def test_what_was_sent_after_the_snapshot_is_not_stored_again(empty: Path, tmp_path: Path) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    target, _ = store_in(tmp_path, "target", empty)
    filled(source, {1, 2}, {})
    place, history = str(tmp_path / "history"), source.tables.history
    now = to_micros(datetime.now(UTC))
    with source.database.begin() as connection:
        connection.execute(update(history).values(at=now - 180_000_000))
    archived(source, place)
    end(source, 1, "dispatched")
    with source.database.begin() as connection:  # the clock of an event runs before its commit
        sent = update(history).where(history.c.event == "dispatched")
        connection.execute(sent.values(at=now - 90_000_000))
    only_history = ArchiveOptions(store=source.name, to=place, older_than=timedelta(minutes=1))
    archive(only_history, clock=SystemClock())

    report = restored(target, place)

    assert (report.pending, report.ended, report.new_pending) == (2, 1, 1)
    assert [one["message_id"] for one in facts(target)["pending"]] == ["m2"]


def test_a_timeout_that_came_back_from_a_migration_is_pending(empty: Path, tmp_path: Path) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    target, _ = store_in(tmp_path, "target", empty)
    filled(source, {1}, {})
    at = to_micros(datetime.now(UTC))
    write_events(source, [0], id=row(1)["id"], event="migrated", endpoint="sales", at=at)
    place = str(tmp_path / "history")
    archived(source, place)

    assert restored(target, place).new_pending == 1
    assert facts(target) == facts(source)


def test_events_whose_sequence_is_in_use_get_another_once(empty: Path, tmp_path: Path) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    target, _ = store_in(tmp_path, "target", empty)
    write_events(source, range(4))
    write_events(target, [90, 91])
    place = str(tmp_path / "history")
    archived(source, place)

    first = restored(target, place)
    second = restored(target, place)

    ids = [one["id"] for one in read(target, "history")]
    assert (first.new_events, second.new_events) == (4, 0)
    assert sorted(ids) == ["id0", "id1", "id2", "id3", "id90", "id91"]


def test_labels_find_restored_timeouts(empty: Path, tmp_path: Path) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    target, _ = store_in(tmp_path, "target", empty)
    Loader(source).load([batch([row(1, **LABELLED)])])
    archived(source, str(tmp_path / "history"))

    restored(target, str(tmp_path / "history"))

    with target.database.read() as connection:
        labels = connection.execute(select(target.tables.labels.c.label)).scalars().all()
    assert labels == ["tenant=acme"]


def test_timeouts_that_a_migration_has_hidden_are_not_in_the_snapshot(
    empty: Path, tmp_path: Path
) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    filled(source, {1, 2}, {})
    timeouts = source.tables.timeouts
    with source.database.begin() as connection:
        hidden = update(timeouts).where(timeouts.c.id == row(1)["id"]).values(hidden_by="m")
        connection.execute(hidden)

    assert archived(source, str(tmp_path / "history")) == 1


def test_of_many_archived_stores_one_has_to_be_named(empty: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "history")
    stores = [store_in(tmp_path, name, empty)[0] for name in ("east", "west", "new")]
    for number, store in enumerate(stores[:2]):
        filled(store, {number}, {})
        archived(store, place)

    with pytest.raises(ConfigurationError, match="name one with --of"):
        restored(stores[2], place)
    with pytest.raises(
        ConfigurationError, match="'nort', which the lake does not have; it has the"
    ):
        restored(stores[2], place, of_store="nort")
    restored(stores[2], place, of_store=identity(stores[1]))

    assert [one["message_id"] for one in facts(stores[2])["pending"]] == ["m1"]


def test_the_table_of_pending_timeouts_is_beside_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "history").mkdir()
    monkeypatch.chdir(tmp_path / "history")

    assert pending_place("delta:s3://lake/history") == "delta:s3://lake/pending"
    assert pending_place("delta:history") == f"delta:{tmp_path}/history/pending"
    assert pending_place("iceberg:main.timeouts.history") == "iceberg:main.timeouts.pending"
    assert pending_place("/lake/history/") == "/lake/pending"
    assert pending_place(".") == f"{tmp_path}/pending"


@pytest.mark.parametrize("history", ["/lake/pending", "/"])
def test_a_history_with_no_place_beside_it_has_no_pending_table(history: str) -> None:
    with pytest.raises(ConfigurationError, match="name the table of the history"):
        pending_place(history)


def test_the_commands_archive_and_restore(empty: Path, tmp_path: Path) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    target, _ = store_in(tmp_path, "target", empty)
    filled(source, {1, 2}, {5: "cancelled"})
    place = str(tmp_path / "history")

    def run(*words: str) -> dict[str, Any]:
        found = CliRunner().invoke(cli, ["--json", "pipeline", *words])
        assert found.exit_code == 0, found.output
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    written = run(
        *("archive", "--store", source.name, "--to", place, "--older-than", "1d"), "--with-pending"
    )
    report = run("restore", "--store", target.name, "--lake", place)

    assert written["pending"] == 2
    assert (report["new_pending"], report["new_used_ids"], report["ended"]) == (2, 1, 0)
    ledger = JobLedger(target)
    assert [one.run_id for one in ledger.runs("restore", JobRunState.COMPLETED)] == [
        report["run_id"]
    ]


def test_progress_counts_the_used_ids_that_there_are(empty: Path, tmp_path: Path) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    target, _ = store_in(tmp_path, "target", empty)
    filled(source, set(), dict.fromkeys(range(4), "dispatched"))
    place, said = str(tmp_path / "history"), list[str]()
    archived(source, place)

    options = RestoreOptions(store=target.name, lake=place, batch=3)
    restore(options, clock=SystemClock(), progress=said.append)

    assert [one for one in said if one.startswith("used ids")] == ["used ids 3", "used ids 4"]


def test_events_that_come_back_to_their_store_are_not_archived_again(
    postgres: Store, place: str
) -> None:
    write_events(postgres, range(4))
    settle(postgres)
    archived(postgres, place)
    assert rows_of(postgres) == []

    assert restored(postgres, place).new_events == 4
    settle(postgres)
    options = ArchiveOptions(store=postgres.name, to=place, older_than=timedelta(days=30))
    again = archive(options, clock=SystemClock())

    assert (again.written, again.removed) == (0, 4)
    assert sum(each.num_rows for each in open_table(place).files().read(["id"])) == 4


def test_events_of_one_sequence_come_back_both_once(
    place: str, empty: Path, tmp_path: Path
) -> None:
    source, _ = store_in(tmp_path, "source", empty)
    target, _ = store_in(tmp_path, "target", empty)
    for number in (1, 1, 2):  # SQLite gives a sequence again
        write_events(source, [number], sequence=1, event="failed" if number == 2 else "dispatched")
        archived(source, place)
    open_table(place).compact(DAY.date() + timedelta(days=9))

    first, second = (restored(target, place, batch=10) for _ in range(2))

    assert (first.new_events, second.new_events) == (2, 0)
    assert sorted(one["id"] for one in read(target, "history")) == ["id1", "id2"]

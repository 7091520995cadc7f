from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from chaos.forkserver_client import ForkServer, Streams
from tests.pipeline.rows import DUE, batch, count, read, row
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import CancelResult, Outcome, OutcomeKind, TimeoutFilter
from timeoutmgr.errors import ConfigurationError, InvalidMessage, StorageConflict
from timeoutmgr.message.headers import LABELS
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.adbc import postgresql_connection
from timeoutmgr.pipeline.errors import ContentDiffers
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import TO_STORE
from timeoutmgr.pipeline.writers import copy_writer
from timeoutmgr.pipeline.writers.conflicts import COMPARED, KnownIdRule
from timeoutmgr.pipeline.writers.copy_writer import CopyWriter
from timeoutmgr.pipeline.writers.loader import CHUNK_BYTES, Loader, chunks
from timeoutmgr.pipeline.writers.store_writer import StoreWriter

LONG_AGO = DUE - timedelta(days=9_000)


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


def test_timeouts_sent_by_this_run_are_found_by_ids_alone_without_statistics(
    postgres: Store,
) -> None:
    rows = [row(number, due=LONG_AGO) for number in range(1_000)]
    Loader(postgres, run_id="r").load([batch(rows)])
    dispatch(postgres, len(rows))
    put = CopyWriter(postgres, "r", KnownIdRule.ERROR)
    ids = pa.table({name: [one[name] for one in rows] for name in ("endpoint", "id")})
    staged = ids.append_column("run_id", pa.array(["r"] * len(rows)))

    with postgresql_connection(postgres.database) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("timeoutmgr_stage", staged, mode="create", temporary=True)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {put.known_to_others()}")
        [found] = json.loads(cursor.fetchone()[0])

    assert found["Plan"]["Actual Rows"] == 0
    # A few blocks for each id; in the order of the history's time it was 22 for each, and growing.
    assert found["Plan"]["Shared Hit Blocks"] < 10 * len(rows)


def test_timeouts_sent_by_this_run_are_found_by_ids_on_sqlite(sqlite: Store) -> None:
    wanted = StoreWriter(sqlite, "r", KnownIdRule.ERROR).in_history("sales", ["a", "b"])
    as_text = wanted.compile(sqlite.database.engine, compile_kwargs={"literal_binds": True})

    with sqlite.database.read() as connection:
        [plan] = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {as_text}").all()

    assert "_history_few (id=?)" in plan.detail


def test_loaded_timeouts_equal_timeouts_stored_by_an_endpoint(store: Store) -> None:
    loaded = Loader(store, run_id="r1").load([batch([row(1), row(2)])])

    timeouts = store.persistence.timeouts("sales", SystemClock())
    found = timeouts.find(row(2)["id"])
    assert loaded == 2
    assert found is not None
    assert found[1] is not None
    assert found[1].due == to_micros(DUE + timedelta(seconds=2))
    assert (found[1].saga_id, found[1].message.body) == ("saga-2", b'{"number": 2}')
    assert found[1].message.headers == {"NServiceBus.MessageId": "m2"}
    assert [each["run_id"] for each in read(store, "pending")] == ["r1", "r1"]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32()])
def test_times_without_a_zone_are_not_stored(sqlite: Store, kind: pa.DataType) -> None:
    rows = pa.Table.from_batches([batch([row(1)])])
    due = pa.array([datetime(2031, 5, 1)], kind)  # without a zone

    with pytest.raises(InvalidMessage, match=r"due of the rows to store is .*; give times with a"):
        Loader(sqlite).load(rows.set_column(2, "due", due).to_batches())

    assert count(sqlite, "timeouts") == 0


def labelled(number: int, *labels: str, **more: object) -> dict[str, object]:
    given = row(number, **more)
    texts = json.dumps(json.dumps(labels))
    return given | {"headers": f'{{"NServiceBus.MessageId":"m{number}","{LABELS}" : {texts}}}'}


def found_by(store: Store, label: str) -> list[str]:
    which = TimeoutFilter(labels=(label,))
    timeouts = store.persistence.timeouts("sales", SystemClock())
    return [one.message.headers["NServiceBus.MessageId"] for one in timeouts.list(which)]


def test_loaded_timeouts_are_found_by_their_labels_and_leave_none(store: Store) -> None:
    Loader(store).load(
        [batch([row(0), labelled(1, "tenant=x", "task=t"), labelled(2, "no equals")])]
    )
    # Ids that are known already are not labelled anew.
    again = [labelled(1, "tenant=y"), labelled(3, "tenant=x", due=LONG_AGO), row(4)]
    loaded = Loader(store).load([batch(again)])

    assert loaded == 2
    assert found_by(store, "tenant=x") == ["m3", "m1"]
    assert found_by(store, "tenant=y") == found_by(store, "no equals") == []
    assert count(store, "labels") == 3
    timeouts = store.persistence.timeouts("sales", SystemClock())
    timeouts.cancel(row(1)["id"])
    dispatch(store, 1)
    assert count(store, "labels") == 0


def test_loading_again_stores_nothing(store: Store) -> None:
    rows = [batch([row(number) for number in range(20)])]
    Loader(store).load(rows)

    again = Loader(store).load(rows)

    assert again == 0
    assert (count(store, "timeouts"), count(store, "keys"), count(store, "history")) == (20,) * 3


def test_missing_rows_are_stored_and_present_rows_stay_as_they_are(store: Store) -> None:
    Loader(store, run_id="first").load([batch([row(1), row(3)])])

    changed = [row(n, destination="elsewhere") for n in range(5)]
    loaded = Loader(store, run_id="second").load([batch(changed)])

    found = {each["message_id"]: each for each in read(store, "pending")}
    assert loaded == 3
    assert sorted(found) == ["m0", "m1", "m2", "m3", "m4"]
    assert (found["m1"]["destination"], found["m1"]["run_id"]) == ("billing", "first")
    assert (found["m2"]["destination"], found["m2"]["run_id"]) == ("elsewhere", "second")
    assert count(store, "history") == 5


def test_a_cancelled_timeout_is_not_loaded_again(store: Store) -> None:
    Loader(store).load([batch([row(1)])])
    cancelled = store.persistence.timeouts("sales", SystemClock()).cancel(row(1)["id"])

    loaded = Loader(store).load([batch([row(1), row(2)])])

    assert cancelled is CancelResult.CANCELLED
    assert loaded == 1
    assert [each["message_id"] for each in read(store, "pending")] == ["m2"]


def test_the_earlier_of_two_rows_of_one_id_is_stored(store: Store) -> None:
    twice = [row(1, due=DUE + timedelta(hours=1)), row(1, due=DUE)]

    loaded = Loader(store).load([batch(twice)])

    assert loaded == 1
    assert [each["due"] for each in read(store, "pending")] == [DUE]


def test_rows_that_are_the_same_pass_a_verification(store: Store) -> None:
    stored = '{"a":"1","b":"2","NServiceBus.TimeSent":"then"}'
    Loader(store).load([batch([row(1, headers=stored), row(2)])])

    # Headers tell when it was sent, which is another time in each run.
    given = '{"b":"2","NServiceBus.TimeSent":"now","NServiceBus.DeliverAt":"soon","a":"1"}'
    same = [row(1, headers=given), row(2), row(3)]
    assert Loader(store, on_conflict="verify").load([batch(same)]) == 1


OTHER_CONTENTS: list[dict[str, object]] = [
    {"body": b"other"},
    {"destination": "other"},
    {"due": DUE},
    {"saga_id": "other"},
    {"content_type": "text/plain"},
    {"content_encoding": "latin-1"},
    {"headers": '{"NServiceBus.MessageId":"m1","Tenant":"other"}'},
    {"headers": '{"NServiceBus.EnclosedMessageTypes":"Other"}'},
]
"""Changes that make a row another content for both writers: in SQL and in Python."""


def test_other_contents_cover_every_compared_column() -> None:
    changed = {name for change in OTHER_CONTENTS for name in change}

    assert changed == {*COMPARED, "due", "headers"}


@pytest.mark.parametrize("changed", OTHER_CONTENTS)
def test_a_verification_refuses_another_content(
    postgres: Store, sqlite: Store, changed: dict[str, object]
) -> None:
    for store in (postgres, sqlite):
        Loader(store).load([batch([row(1), row(2)])])

        with pytest.raises(ContentDiffers, match=row(1)["id"]):
            Loader(store, on_conflict="verify").load([batch([row(1, **changed), row(2), row(3)])])

        assert count(store, "timeouts") == 2


@pytest.mark.parametrize("on_conflict", ["verify", "error"])
@pytest.mark.parametrize(
    "changed",
    [
        {"body": b"other"},
        {"due": DUE + timedelta(hours=1)},
        {"headers": '{"NServiceBus.MessageId":"m1","Tenant":"other"}'},
    ],
)
def test_two_rows_of_a_chunk_conflict_as_if_the_first_were_stored(
    sqlite: Store, on_conflict: str, changed: dict[str, object]
) -> None:
    rows = [row(1), row(2), row(1, **changed), row(1)]

    with pytest.raises(ContentDiffers, match=f"1 rows .* given twice.*: {row(1)['id']};"):
        Loader(sqlite, run_id="r", on_conflict=on_conflict).load([batch(rows)])

    assert count(sqlite, "keys") == 0


@pytest.mark.parametrize("on_conflict", ["verify", "error"])
def test_a_row_given_twice_is_not_a_conflict(sqlite: Store, on_conflict: str) -> None:
    texts = '{"a":"1","NServiceBus.TimeSent":"now"}', '{"NServiceBus.TimeSent":"then","a":"1"}'
    rows = [row(1, headers=one) for one in texts]

    loaded = Loader(sqlite, on_conflict=on_conflict).load([batch(rows)])

    assert loaded == 1


def test_a_loader_refuses_an_unknown_rule_for_conflicts(sqlite: Store) -> None:
    with pytest.raises(ConfigurationError, match="one of ignore, error, verify, got 'fail'"):
        Loader(sqlite, on_conflict="fail")


def test_a_rescheduled_timeout_is_not_another_content(store: Store) -> None:
    Loader(store).load([batch([row(1)])])
    later = to_micros(DUE + timedelta(days=9))
    store.persistence.timeouts("sales", SystemClock()).reschedule(row(1)["id"], later)

    assert Loader(store, on_conflict="verify").load([batch([row(1)])]) == 0


def test_on_conflict_error_stores_nothing_of_the_chunk(store: Store) -> None:
    Loader(store).load([batch([row(1)])])

    with pytest.raises(ContentDiffers, match="=error forbids"):
        Loader(store, on_conflict="error").load([batch([row(1), row(2)])])

    assert count(store, "keys") == 1


def test_rows_of_the_same_run_are_no_conflict(store: Store) -> None:
    past = [row(number, due=LONG_AGO + timedelta(seconds=number)) for number in range(4)]
    Loader(store, run_id="r", on_conflict="error").load([batch(past)])
    dispatch(store, 2)

    again = Loader(store, run_id="r", on_conflict="error").load([batch([*past, row(5)])])

    assert again == 1
    with pytest.raises(ContentDiffers, match=r"4 rows are stored already, .*=error forbids"):
        Loader(store, run_id="another", on_conflict="error").load([batch(past)])


@pytest.mark.parametrize("on_conflict", ["verify", "error"])
def test_a_row_with_the_id_of_an_earlier_chunk_of_the_run_is_a_conflict(
    store: Store, on_conflict: str
) -> None:
    loader = Loader(store, run_id="r", on_conflict=on_conflict)

    with pytest.raises(ContentDiffers, match=f"1 rows .*: {row(1)['id']};"):
        loader.load([batch([row(1), row(2), row(3), row(1, body=b"other")])], chunk_rows=2)

    assert count(store, "keys") == 2


def test_two_loaders_of_the_same_rows_store_each_row_once(store: Store) -> None:
    rows = [batch([row(number) for number in range(400)])]

    def load(number: int) -> int:
        return Loader(store, run_id=f"r{number}").load(rows, chunk_rows=50)

    with ThreadPoolExecutor(3) as pool:
        loaded = list(pool.map(load, range(3)))

    assert sum(loaded) == 400
    assert (count(store, "timeouts"), count(store, "keys"), count(store, "history")) == (400,) * 3


def test_a_load_that_is_killed_is_ended_by_running_it_again(
    job_server: ForkServer, postgres: Store, sqlite: Store, tmp_path: Path
) -> None:
    rows, output = 1_000, Streams(tmp_path / "output.txt")
    for store in (postgres, sqlite):
        child = job_server.start("tests.pipeline.rows:load", [store.name, str(rows)], output, {})
        while count(store, "timeouts") < 100:
            assert child.poll() is None
            time.sleep(0.005)  # leave the other process some of the processor
        child.kill()
        child.wait(60)
        half = count(store, "timeouts")

        loaded = Loader(store, run_id="r").load([batch([row(number) for number in range(rows)])])

        assert 100 <= half < rows
        assert loaded == rows - half
        assert [count(store, one) for one in ("timeouts", "keys", "history")] == [rows] * 3


def test_a_chunk_with_which_others_are_always_in_conflict_is_a_conflict_of_the_store(
    postgres: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_writer, "_CONFLICTS", ("22012",))
    monkeypatch.setattr(
        CopyWriter, "_copy", lambda _self, cursor, _rows: cursor.execute("SELECT 1/0")
    )

    with pytest.raises(StorageConflict, match="conflict with other writers"):
        Loader(postgres).load([batch([row(1)])])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"destination": "x" * 256}, "256 characters"),
        ({"message_id": None}, "no message_id"),
        ({"body": None}, "no body"),
        ({"headers": '{"a":"\0"}'}, "NUL"),
    ],
)
def test_values_that_no_store_can_keep_are_refused(
    sqlite: Store, changed: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidMessage, match=sentence):
        Loader(sqlite).load([batch([row(1), row(2, **changed)])])

    assert count(sqlite, "keys") == 0


def test_chunks_are_bounded_by_rows_and_by_bytes() -> None:
    many = batch([row(number) for number in range(10)])
    big = batch([row(1, body=b"x" * (CHUNK_BYTES // 2 + 1))])

    assert [one.num_rows for one in chunks([many, many], 8)] == [8, 2, 8, 2]
    assert [one.num_rows for one in chunks([many, many], 25)] == [20]
    assert [one.num_rows for one in chunks([big, big, many], 25)] == [1, 11]
    assert list(chunks([], 25)) == []


def test_a_column_that_is_missing_is_named() -> None:
    short = pa.RecordBatch.from_pylist([{"id": "a"}], schema=pa.schema([TO_STORE.field("id")]))

    with pytest.raises(InvalidMessage, match="no column endpoint, due, destination"):
        list(chunks([short], 5))

"""``erase``: nothing of a person's timeouts is left but their ids."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, S3FileSystem
from sqlalchemy import select

from tests.deadletter.making import a_stored_copy
from tests.pipeline.archives import write_events
from tests.pipeline.lakes import KEYS, S3, ids_in
from tests.pipeline.rows import batch, count, read, row, settle
from tests.pipeline.test_restore import archived, end, restored
from tests.support.clock import START
from tests.support.waiting import eventually
from timeoutmgr.cli import output
from timeoutmgr.cli.main import cli
from timeoutmgr.cli.pipeline import group
from timeoutmgr.clock import SystemClock
from timeoutmgr.database import Database
from timeoutmgr.deadletter import DeadLetterStore, NodeQueue
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.node_status import read_node_status
from timeoutmgr.deadletter.queues import StoredCopyQueue
from timeoutmgr.deadletter.tables import to_row
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.headers import (
    FAILED_QUEUE,
    ORIGINATING_ENDPOINT,
    RELATED_TO_TIMEOUT,
    RETRIES_TIMESTAMP,
    SAGA_ID,
)
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.erase import Certificate, erase
from timeoutmgr.pipeline.jobs.stream import stream, writer_lock
from timeoutmgr.pipeline.lake.places import open_table
from timeoutmgr.pipeline.lake.table import read_history
from timeoutmgr.pipeline.lake.writer import TransactionWriter
from timeoutmgr.pipeline.lake_options import EraseOptions
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState, exclusive_lock
from timeoutmgr.pipeline.options import StreamOptions
from timeoutmgr.pipeline.stores import Store, identity
from timeoutmgr.pipeline.writers.erasure import Erasure, Key
from timeoutmgr.pipeline.writers.loader import Loader
from timeoutmgr.transport.sql import SqlTransport

CANARY = "canary-7f3a"
OF_PERSON: dict[str, Any] = {
    "saga_id": f"{CANARY}-saga",
    "destination": f"{CANARY}-queue",
    "headers": json.dumps(
        {"Customer": CANARY, "TimeoutManager.Labels": json.dumps([f"name={CANARY}"])}
    ),
    "body": f"dear {CANARY}".encode() * 50,
}
SELECTIONS: tuple[dict[str, Any], ...] = (
    {"saga_ids": (f"{CANARY}-saga",)},
    {"headers": {"Customer": CANARY}},
    {"destinations": (f"{CANARY}-queue",)},
    {"ids": (row(1)["id"], row(2)["id"])},
)


def fill(store: Store) -> None:
    """Store two timeouts of the person, and two others."""
    rows = [row(number, **(OF_PERSON if number < 3 else {})) for number in range(1, 5)]
    Loader(store).load([batch(rows)])


def erased(store: Store, **options: Any) -> Certificate:
    return erase(EraseOptions(store=store.name, **options), clock=SystemClock())


def files_with(folder: Path, word: str) -> list[str]:
    """Return the files below *folder* that hold *word*, as it is or within Parquet."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and word in _text(path.name, path.read_bytes()):
            found.append(str(path.relative_to(folder)))
    return sorted(found)


def _text(name: str, content: bytes) -> str:
    text = content.decode("latin-1")
    if name.endswith(".parquet"):
        text += str(pq.read_table(pa.BufferReader(content)).to_pylist())
    return text


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda one: next(iter(one)))
def test_no_byte_of_the_person_is_left(
    selection: dict[str, Any], store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    fill(store)
    place = str(tmp_path / "lake" / "history")
    assert archived(store, place) == 4
    assert len(files_with(tmp_path, CANARY)) >= 3  # the file of the store, and both tables

    certificate = erased(store, lake=place, **selection)

    assert files_with(tmp_path, CANARY) == []
    assert (certificate.timeouts, certificate.left) == (2, 0)
    assert certificate.removed == {
        **{"lake history": 2, "lake pending": 2},
        **{"labels": 2, "timeouts": 2, "history": 2, "keys": 2},
    }
    assert CANARY not in json.dumps(certificate.document())
    assert {one["message_id"] for one in read(store, "pending")} == {"m3", "m4"}


def test_delta_forgets_its_log_and_its_files(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    fill(store)
    place = f"delta:{tmp_path}/lake/history"
    archived(store, place)

    erased(store, lake=place, saga_ids=(OF_PERSON["saga_id"],))

    assert files_with(tmp_path, CANARY) == []
    assert archived(store, place) == 2  # the tables go on, and have their marks
    target = store_of("sqlite")
    report = restored(target, place)
    assert (report.new_pending, report.new_used_ids) == (2, 2)


def test_delta_forgets_its_versions_beside_another_change_of_its_properties(
    store_of: Callable[[str], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of("sqlite")
    fill(store)
    place = f"delta:{tmp_path}/lake/history"
    archived(store, place)
    real, log = DeltaTable.vacuum, "delta.logRetentionDuration"

    def overtaken(table: DeltaTable, *given: Any, **more: Any) -> list[str]:
        monkeypatch.setattr(DeltaTable, "vacuum", real)
        DeltaTable(table.table_uri).alter.set_table_properties({log: "interval 90 days"})
        return real(table, *given, **more)

    monkeypatch.setattr(DeltaTable, "vacuum", overtaken)
    erased(store, lake=place, saga_ids=(OF_PERSON["saga_id"],))

    assert files_with(tmp_path, CANARY) == []
    properties = DeltaTable(f"{tmp_path}/lake/history").metadata().configuration
    assert properties[log] == "interval 90 days"


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_one_person_after_the_other_is_erased_and_all_jobs_go_on(
    kind: str, store_of: Callable[[str], Store], place_of: Callable[[str], str]
) -> None:
    store, place = store_of("sqlite"), place_of(kind)
    people = [{**OF_PERSON, "saga_id": f"s{number}"} for number in range(4)]
    Loader(store).load([batch([row(number, **one) for number, one in enumerate(people)])])
    archived(store, place)

    for number in range(3):
        assert erased(store, lake=place, saga_ids=(f"s{number}",)).left == 0

    archived(store, place)
    assert restored(store_of("sqlite"), place).new_pending == 1


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_another_store_keeps_a_message_of_the_same_id_in_the_lake_and_at_home(
    kind: str, store_of: Callable[[str], Store], place_of: Callable[[str], str]
) -> None:
    stores, place = [store_of("sqlite"), store_of("sqlite")], place_of(kind)
    for store, sagas in zip(stores, (("of-us", "else"), ("else", "of-eu")), strict=True):
        rows = [row(number, saga_id=saga) for number, saga in enumerate(sagas)]
        Loader(store).load([batch(rows)])
        archived(store, place)

    certificate = erased(stores[0], lake=place, saga_ids=("of-us", "of-eu"))

    assert certificate.timeouts == 1
    assert any("--of" in one for one in certificate.not_reached)
    assert [count(store, "timeouts") for store in stores] == [1, 2]
    other = identity(stores[1])
    assert restored(store_of("sqlite"), place, of_store=other).new_pending == 2
    moved = store_of("sqlite")
    with pytest.raises(ConfigurationError, match="'typo', which the lake does not have"):
        erased(moved, lake=place, saga_ids=("of-eu",), of_store="typo")
    assert erased(moved, lake=place, saga_ids=("of-eu",), of_store=other).timeouts == 1
    assert restored(store_of("sqlite"), place, of_store=other).new_pending == 1


def test_iceberg_loses_the_rows_and_the_certificate_names_its_snapshots(
    store_of: Callable[[str], Store], place_of: Callable[[str], str]
) -> None:
    store, place = store_of("sqlite"), place_of("iceberg")
    fill(store)
    archived(store, place)

    certificate = erased(store, lake=place, saga_ids=(OF_PERSON["saga_id"],))

    assert ids_in(place) == sorted([row(3)["id"], row(4)["id"]])
    assert certificate.removed["lake pending"] == 2
    assert any("Iceberg" in one for one in certificate.not_reached)


def test_no_object_of_a_bucket_holds_the_person_after_it(
    store_of: Callable[[str], Store], place_of: Callable[[str], str], s3: S3
) -> None:
    store, place = store_of("postgres"), place_of("delta-s3")
    fill(store)
    settle(store)
    stream(StreamOptions(store=store.name, to=place, once=True))
    archived(store, place)
    assert len(objects_with(place, CANARY, s3)) >= 2

    certificate = erased(store, lake=place, saga_ids=(OF_PERSON["saga_id"],))

    assert objects_with(place, CANARY, s3) == []
    assert (certificate.removed["lake history"], certificate.removed["lake pending"]) == (2, 2)
    settle(store)
    stream(StreamOptions(store=store.name, to=place, once=True))
    assert erased(store, lake=place, ids=(row(1)["id"],)).timeouts == 0
    events = read_history(open_table(place), ["id", "event"]).to_pylist()
    assert {one["event"] for one in events if one["id"] == row(1)["id"]} == {"erased"}


def objects_with(place: str, word: str, s3: S3) -> list[str]:
    """Return the objects of the bucket of *place* that hold *word*."""
    bucket = place.removeprefix("delta:s3://").partition("/")[0]
    files = S3FileSystem(
        access_key=KEYS["AWS_ACCESS_KEY_ID"],
        secret_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        region=KEYS["AWS_REGION"],
        endpoint_override=s3.url,
    )
    found = files.get_file_info(FileSelector(bucket, recursive=True))
    names = [one.path for one in found if one.is_file]
    return [name for name in names if word in _text(name, files.open_input_file(name).read())]


def test_a_stream_that_has_read_the_person_before_writes_nothing_of_them(
    place: str, store_of: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of("postgres")
    Loader(store).load([batch([row(9)])])
    settle(store)
    stream(StreamOptions(store=store.name, to=place, once=True))
    fill(store)
    settle(store)
    table = open_table(place)
    real = table.append

    def overtaken(*given: Any) -> None:
        monkeypatch.setattr(table, "append", real)
        assert erased(store, lake=place, saga_ids=(OF_PERSON["saga_id"],)).left == 0
        real(*given)

    monkeypatch.setattr(table, "append", overtaken)
    writer = TransactionWriter(store=store, table=table, most=1_000)
    writer.step()
    settle(store)
    writer.step()

    events = read_history(open_table(place), ["id", "event"]).to_pylist()
    assert sorted((one["id"], one["event"]) for one in events) == sorted(
        (row(number)["id"], "erased" if number < 3 else "scheduled") for number in (1, 2, 3, 4, 9)
    )


def test_a_stream_is_awaited_until_its_first_commit_and_no_longer(
    place: str, store_of: Callable[[str], Store]
) -> None:
    store, other = store_of("postgres"), store_of("sqlite")
    write_events(other, range(3))
    archived(other, place)
    fill(store)
    settle(store)
    person: dict[str, Any] = {"lake": place, "saga_ids": (OF_PERSON["saga_id"],)}
    with pytest.raises(ConfigurationError, match="give --of with the name"):
        erased(store, **person)
    person["of_store"] = identity(store)

    with (
        writer_lock(store, open_table(place).place),
        pytest.raises(RunConflict, match=r"history of .*; wait until it has ended"),
    ):
        erased(store, **person)
    assert count(store, "timeouts") == 4
    stream(StreamOptions(store=store.name, to=place, once=True))
    with writer_lock(store, open_table(place).place):
        assert erased(store, **person).left == 0


def test_an_archive_that_runs_is_not_overtaken(store_of: Callable[[str], Store]) -> None:
    store = store_of("sqlite")
    fill(store)

    with (
        exclusive_lock(store, f"archive {identity(store)}"),
        pytest.raises(RunConflict, match="wait until it has ended"),
    ):
        erased(store, ids=(row(1)["id"],))

    assert count(store, "timeouts") == 4


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_an_erased_id_stays_used(kind: str, store_of: Callable[[str], Store]) -> None:
    store = store_of(kind)
    fill(store)

    first = erased(store, saga_ids=(OF_PERSON["saga_id"],))
    second = erased(store, ids=(row(1)["id"],))
    again = Loader(store).load([batch([row(1, **OF_PERSON)])])

    states = {one["id"]: one["state"] for one in read(store, "keys")}
    assert states[row(1)["id"]] == states[row(2)["id"]] == "erased"
    assert states[row(3)["id"]] == "pending"
    assert (first.timeouts, second.timeouts, again) == (2, 0, 0)
    assert store.persistence.timeouts("sales", SystemClock()).find(row(1)["id"]) is not None
    events = [one["event"] for one in read(store, "history") if one["id"] == row(1)["id"]]
    assert events == ["erased"]


def test_a_timeout_that_has_ended_is_found_by_its_snapshot(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    fill(store)
    place = str(tmp_path / "lake" / "history")
    archived(store, place)
    end(store, 1, "dispatched")

    certificate = erased(store, lake=place, saga_ids=(OF_PERSON["saga_id"],))

    assert certificate.timeouts == 2
    assert {one["state"] for one in read(store, "keys")} == {"erased", "pending"}


def test_a_dry_run_counts_and_changes_nothing(store_of: Callable[[str], Store]) -> None:
    store = store_of("sqlite")
    fill(store)
    before = read(store, "pending")

    certificate = erased(store, headers={"Customer": CANARY}, dry_run=True)

    assert (certificate.timeouts, certificate.left, certificate.removed) == (2, 2, {})
    assert read(store, "pending") == before


@pytest.mark.parametrize(
    ("kind", "selection", "before"),
    [
        ("sqlite", {"saga_ids": ("s",)}, ""),
        ("postgres", {"ids": (row(1)["id"],)}, row(1)["id"]),
        ("mysql", {"ids": (row(1)["id"],)}, "an earlier retry"),
    ],
)
def test_a_delayed_retry_is_erased_with_the_timeout_that_it_retries(
    kind: str,
    selection: dict[str, Any],
    before: str,
    store_of: Callable[[str], Store],
    tmp_path: Path,
) -> None:
    store, place = store_of(kind), str(tmp_path / "lake" / "history")
    retries = [
        row(number, id=f"r{number}", message_id=message_id, endpoint="billing", saga_id=None)
        | {"headers": json.dumps({RETRIES_TIMESTAMP: "now", SAGA_ID: saga, RELATED_TO_TIMEOUT: of})}
        for number, message_id, saga, of in ((2, "m1", "s", before), (4, "m3", "t", row(3)["id"]))
    ]
    Loader(store).load([batch([row(1, saga_id="s"), *retries])])
    if store.is_postgresql:
        settle(store)
    archived(store, place)
    end(store, 1, "dispatched")

    certificate = erased(store, lake=place, **selection)

    assert (certificate.timeouts, certificate.left) == (2, 0)
    assert [one["id"] for one in read(store, "pending")] == ["r4"]
    assert certificate.removed["lake pending"] == 2


def test_a_delayed_retry_of_another_message_with_the_same_id_stays(
    store_of: Callable[[str], Store],
) -> None:
    store = store_of("sqlite")
    retry = row(1, id="r1", endpoint="shipping", destination="shipping")
    retry["headers"] = json.dumps({RETRIES_TIMESTAMP: "now", ORIGINATING_ENDPOINT: "web"})
    Loader(store).load([batch([row(1, headers=json.dumps({"Customer": "17"})), retry])])

    certificate = erased(store, headers={"Customer": "17"})

    assert (certificate.timeouts, certificate.left) == (1, 0)
    assert [one["id"] for one in read(store, "pending")] == ["r1"]


def test_a_header_of_another_value_is_another_person(store_of: Callable[[str], Store]) -> None:
    store = store_of("sqlite")
    fill(store)

    assert erased(store, headers={"Customer": CANARY[:-1]}).timeouts == 0
    assert count(store, "timeouts") == 4


def test_the_name_of_a_header_is_found_however_its_letters_are_written(
    store_of: Callable[[str], Store],
) -> None:
    store = store_of("postgres")  # is loaded by COPY, which keeps the text as it is
    spelt = [json.dumps({"Größe": "17"}, ensure_ascii=is_ascii) for is_ascii in (True, False)]
    rows = [row(number, headers=headers) for number, headers in enumerate(spelt)]
    Loader(store).load([batch(rows)])

    certificate = erased(store, headers={"Größe": "17"})

    assert (certificate.timeouts, count(store, "timeouts")) == (2, 0)


def test_the_certificate_says_what_it_does_not_reach(store_of: Callable[[str], Store]) -> None:
    texts = " ".join(erased(store_of("sqlite"), ids=("x",)).not_reached)

    for word in ("backups", "--lake", "errors delete", "deadletters delete", "audit", "_runs"):
        assert word in texts


def with_queues(store: Store, folder: Path, *, apart: bool = False) -> Path:
    """Give the settings of *store* a SQL queue and a node, in its file or *apart*; install them."""
    toml, own = Path(store.name), store.database.path
    queue, letters = (folder / "queue.db", folder / "letters.db") if apart else (own, own)
    given = toml.read_text().replace("memory://", f"sqlite:///{queue}")
    given = given.replace('["timeout-manager"]', '["timeout-manager", "dead-letter-queues"]')
    node = f'[dead-letter-queues]\nnode = "n1"\nstore = "sqlite:///{letters}"\n'
    toml.write_text(f"{given}\n{node}")
    assert CliRunner().invoke(cli, ["--config", str(toml), "install"]).exit_code == 0
    return toml


@contextmanager
def node_in(file: Path | None) -> Iterator[QueueManager]:
    """Lend the node whose dead letters are in *file*."""
    with closing(DeadLetterStore(Database(f"sqlite:///{file}"))) as store:
        yield QueueManager(store=store, node="n1")


def fail(file: Path | None, *messages: Message) -> None:
    """Put *messages* into the error queue in *file*."""
    with closing(SqlTransport(f"sqlite:///{file}")) as transport:
        transport.install()
        with closing(transport.session()) as session:
            session.create_queues(["error"])
            session.send([Outgoing("error", message) for message in messages])


FAILED_AGAIN = {
    **{FAILED_QUEUE: "shipping", ORIGINATING_ENDPOINT: "web"},
    RETRIES_TIMESTAMP: "now",
}


def of(customer: str, id_: str = "one", **headers: str) -> Message:
    return Message(id=id_, headers={"Customer": customer, **headers}, body=customer.encode())


def erased_with_copies(toml: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of the command, and the certificate."""
    given = words or ("--header", f"Customer={CANARY}")
    command = ("--config", str(toml), "--json", "pipeline", "erase", "--copies", *given)
    done = CliRunner().invoke(cli, command)
    return done.exit_code, json.loads(done.stdout)


def test_copies_in_the_error_queue_are_erased_with_the_store(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    fill(store)
    toml = with_queues(store, tmp_path)
    fail(store.database.path, of(CANARY), of(CANARY), of("other"), of("other", "two"))

    code, document = erased_with_copies(toml)

    assert (code, document["timeouts"], document["left"]) == (0, 2, 0)
    assert document["removed"]["error copies"] == 2
    assert not any("errors delete" in one for one in document["not_reached"])
    assert any("other nodes" in one for one in document["not_reached"])
    assert files_with(tmp_path, CANARY) == []


def test_copies_on_the_node_are_erased_with_the_store_and_its_counts_stay_exact(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    toml = with_queues(store, tmp_path)
    with node_in(store.database.path) as manager:
        dead, awaiting = ("d1", "d2"), ("a1", "a2")
        copies = {
            id_: replace(a_stored_copy(), message=of(customer, id_))
            for ids in (dead, awaiting)
            for id_, customer in zip(ids, (CANARY, "other"), strict=True)
        }
        for id_ in dead:
            manager.place(copies[id_])
        manager.keep([copies[id_] for id_ in awaiting], START, None)

        code, document = erased_with_copies(toml)

        status = read_node_status(manager)
        assert status.awaiting == 1
        assert status.node_share.used == sum(
            to_row("n1", copies[id_])["bytes"] for id_ in ("d2", "a2")
        )
        assert manager.sweep(START) == 1
        left = StoredCopyQueue(manager, NodeQueue.DEADLETTER).every()
        assert {one.message.id for one in left} == {"d2", "a2"}
    assert (code, document["removed"]["stored copies"], document["left"]) == (0, 2, 0)
    assert files_with(tmp_path, CANARY) == []


@pytest.mark.parametrize(("step", "code", "left"), [("erase", 0, 0), ("overwrite", 1, 1)])
def test_a_timeout_that_fails_during_a_step_is_erased_as_a_copy_or_counts_as_left(
    step: str,
    code: int,
    left: int,
    store_of: Callable[[str], Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = store_of("sqlite")
    toml = with_queues(store, tmp_path)
    real = getattr(Erasure, step)

    def overtaken(*given: Any) -> Any:
        fail(store.database.path, of(CANARY))
        return real(*given)

    monkeypatch.setattr(Erasure, step, overtaken)

    assert erased_with_copies(toml)[0] == code
    monkeypatch.undo()
    _code, again = erased_with_copies(toml)
    assert again["removed"]["error copies"] == left


def test_copies_are_found_by_the_ids_of_timeouts_and_those_of_another_endpoint_stay(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    fill(store)
    toml = with_queues(store, tmp_path)
    id_ = row(1)["id"]
    other = {RELATED_TO_TIMEOUT: timeout_id("billing", "m1")}
    retried = {RELATED_TO_TIMEOUT: timeout_id("sales", "m1|now"), RETRIES_TIMESTAMP: "now"}
    messages = [
        of("a", "m1"),
        of("b", "m1", **{RELATED_TO_TIMEOUT: id_}),
        of("c", "m1", **retried),
        of("d", "m1", **other),
        of("e", "m3"),
    ]
    fail(store.database.path, *messages)

    code, document = erased_with_copies(toml, "--ids", id_)
    _code, by_header = erased_with_copies(toml, "--header", "Customer=d")

    assert (code, document["timeouts"], document["removed"]["error copies"]) == (0, 1, 3)
    assert by_header["removed"]["error copies"] == 1


@pytest.mark.parametrize(
    ("headers", "removed"),
    [
        ({FAILED_QUEUE: "shipping", ORIGINATING_ENDPOINT: "shipping"}, 0),
        ({FAILED_QUEUE: "shipping", RETRIES_TIMESTAMP: "now"}, 0),
        ({FAILED_QUEUE: "shipping", ORIGINATING_ENDPOINT: "sales"}, 1),
        ({FAILED_QUEUE: "sales.Timeouts", ORIGINATING_ENDPOINT: "web"}, 1),
        # The delays of web and shipping are kept by sales, and by billing.
        ({**FAILED_AGAIN, RELATED_TO_TIMEOUT: timeout_id("sales", "m1|now")}, 1),
        ({**FAILED_AGAIN, RELATED_TO_TIMEOUT: timeout_id("billing", "m1|now")}, 0),
    ],
)
def test_a_copy_is_of_the_endpoints_that_sent_it_and_failed_at_it(
    headers: dict[str, str], removed: int, store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    fill(store)
    toml = with_queues(store, tmp_path)
    fail(store.database.path, of("18", "m1", **headers))

    _code, document = erased_with_copies(toml)

    assert (document["timeouts"], document["removed"]["error copies"]) == (2, removed)


def test_no_byte_is_left_in_the_files_of_the_queue_and_of_the_dead_letters(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    fill(store)
    toml = with_queues(store, tmp_path, apart=True)
    fail(tmp_path / "queue.db", of(CANARY))
    with node_in(tmp_path / "letters.db") as manager:
        manager.place(replace(a_stored_copy(), message=of(CANARY)))
    assert len(files_with(tmp_path, CANARY)) >= 3

    code, document = erased_with_copies(toml)

    assert (code, files_with(tmp_path, CANARY)) == (0, [])
    assert not any("row versions" in one for one in document["not_reached"])


def test_the_certificate_names_row_versions_of_a_server_that_has_copies(
    store_of: Callable[[str], Store],
) -> None:
    store, server = store_of("sqlite"), store_of("postgres")

    @dataclass
    class OnServer:
        databases: Sequence[Database]

        def count(self, keys: set[Key], *, delete: bool = False) -> dict[str, int]:
            return {}

    certificate = erase(
        EraseOptions(store=store.name, ids=("x",)),
        clock=SystemClock(),
        copies=OnServer([server.database]),
    )

    assert any("row versions" in one for one in certificate.not_reached)


def test_a_file_is_overwritten_when_another_process_has_ended_its_write(
    store_of: Callable[[str], Store],
) -> None:
    store = store_of("sqlite")
    fill(store)
    writers = store.database._writers
    assert writers is not None
    with (
        closing(sqlite3.connect(store.database.path or "", isolation_level=None)) as other,
        ThreadPoolExecutor() as threads,
    ):
        other.execute("BEGIN IMMEDIATE")
        waiting = threads.submit(Erasure(store).overwrite)
        eventually(lambda: writers._lock.locked() or waiting.done(), "it waits")
        other.rollback()

        assert waiting.result()


def test_nothing_selected_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing is selected; give --saga-ids"):
        EraseOptions(store="s")


def test_the_command_writes_the_certificate_and_none_of_a_search_that_finds_nothing(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store = store_of("sqlite")
    fill(store)
    write_events(store, [8], destination=f"{CANARY}-queue")
    path = tmp_path / "certificate.json"

    def run(*words: str) -> Any:
        return CliRunner().invoke(
            cli, ["--json", "pipeline", "erase", "--store", store.name, *words]
        )

    done = run("--destinations", f"{CANARY}-queue", "--certificate", str(path))
    document = json.loads(path.read_text())
    path.unlink()
    none = run("--header", f"Customer={CANARY}", "--certificate", str(path))

    assert (done.exit_code, none.exit_code, path.exists()) == (0, 3, False)
    assert json.loads(done.stdout) == document
    assert (document["timeouts"], document["left"]) == (3, 0)


def test_the_ids_of_an_interrupted_run_are_dropped_by_the_run_that_ends_it(
    store_of: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of("sqlite")
    fill(store)
    found = {"headers": {"Customer": CANARY}}

    def interrupt(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Erasure, "overwrite", interrupt)
        with pytest.raises(KeyboardInterrupt):
            erased(store, **found)
    ended, again = erased(store, **found), erased(store, **found)

    assert (ended.timeouts, ended.interrupted_runs, ended.left) == (2, 1, 0)
    assert (again.timeouts, again.interrupted_runs, again.has_found) == (0, 0, False)
    ledger = JobLedger(store)
    runs = [
        *ledger.runs("erase", JobRunState.ABORTED),
        *ledger.runs("erase", JobRunState.COMPLETED),
    ]
    assert [("keys" in (run.report or {})) for run in runs] == [False] * 3


def test_a_certificate_that_was_not_delivered_is_delivered_by_the_same_command(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    store, path = store_of("sqlite"), tmp_path / "certificate.json"
    fill(store)
    words = ["--json", "pipeline", "erase", "--store", store.name, "--ids", row(1)["id"]]
    command, to_file = [sys.executable, "-m", "timeoutmgr", *words], ["--certificate", str(path)]

    with open("/dev/full", "w") as full:
        for more in ([], to_file):
            assert subprocess.run([*command, *more], stdout=full, stderr=full).returncode == 1
    document = json.loads(path.read_text())
    path.unlink()

    assert (document["timeouts"], document["interrupted_runs"], document["left"]) == (1, 1, 0)
    assert document["removed"] == {"labels": 1, "timeouts": 1, "history": 1, "keys": 1}
    assert CliRunner().invoke(cli, [*words, *to_file]).exit_code == 3


def test_a_certificate_in_the_list_of_several_jobs_is_delivered_before_its_run_is_complete(
    store_of: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of("sqlite")
    fill(store)
    job = f"erase --store {store.name} --ids "
    command = ["--json", "pipeline", "run", job + row(1)["id"], job + row(2)["id"]]
    printed: list[list[str | None]] = []

    def full(_document: object) -> None:
        with store.database.read() as connection:
            states = select(store.tables.runs.c.state).where(store.tables.runs.c.kind == "erase")
            printed.append([*connection.execute(states).scalars()])
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(group, "spark", lambda *_given: nullcontext())
    with monkeypatch.context() as patched:
        patched.setattr(output, "print_json", full)
        CliRunner().invoke(cli, command)
    again = CliRunner().invoke(cli, command)

    assert printed == [["running"]]
    assert [one["interrupted_runs"] for one in json.loads(again.stdout)] == [1, 0]


@pytest.mark.parametrize("name", ["there.json", "no-folder/certificate.json"])
def test_nothing_is_erased_if_the_certificate_cannot_be_a_new_file(
    store_of: Callable[[str], Store], tmp_path: Path, name: str
) -> None:
    store = store_of("sqlite")
    fill(store)
    (tmp_path / "there.json").write_text("an earlier certificate")
    words = ["--header", f"Customer={CANARY}", "--certificate", str(tmp_path / name)]

    refused = CliRunner().invoke(cli, ["pipeline", "erase", "--store", store.name, *words])
    erased_later = erased(store, headers={"Customer": CANARY})

    assert (refused.exit_code, "--certificate" in refused.stderr) == (2, True)
    assert (tmp_path / "there.json").read_text() == "an earlier certificate"
    assert erased_later.timeouts == 2

"""``archive`` and ``stream``: history into a table, each event once, and out of the store."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from sqlalchemy import select, update

from tests.pipeline.archives import write_events
from tests.pipeline.lakes import ids_in
from tests.pipeline.rows import count, settle
from timeoutmgr.cli.main import cli
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.errors import ArchiveMismatch, RunConflict
from timeoutmgr.pipeline.jobs.archive import ArchiveReport, archive
from timeoutmgr.pipeline.jobs.stream import give_up, stream, writer_lock
from timeoutmgr.pipeline.lake.places import open_table
from timeoutmgr.pipeline.lake.table import WRITTEN, Doomed
from timeoutmgr.pipeline.ledger import JobLedger, JobRunState, exclusive_lock
from timeoutmgr.pipeline.options import ArchiveOptions, StreamOptions
from timeoutmgr.pipeline.stores import Store, identity

ROWS = 12


def run(store: Store | str, place: str, **options: Any) -> ArchiveReport:
    progress = options.pop("progress", lambda _text: None)
    name = store if isinstance(store, str) else store.name
    given: dict[str, Any] = {
        "store": name,
        "to": place,
        "older_than": timedelta(days=30),
        "batch": 5,
    }
    made = ArchiveOptions(**(given | options))
    return archive(made, clock=SystemClock(), progress=progress)


def followed(store: Store, place: str) -> int:
    return stream(StreamOptions(store=store.name, to=place, once=True)).events


def ids(store: Store) -> set[str]:
    with store.database.read() as connection:
        return set(connection.execute(select(store.tables.history.c.id)).scalars())


def names(numbers: range) -> list[str]:
    return sorted(f"id{number}" for number in numbers)


def test_old_history_moves_into_the_table_and_new_history_stays(sqlite: Store, place: str) -> None:
    write_events(sqlite, range(ROWS))
    write_events(sqlite, [999], at=to_micros(datetime.now(UTC)))

    kept = run(sqlite, place, purge=False)
    report = run(sqlite, place)
    again = run(sqlite, place)

    assert (kept.written, kept.removed) == (ROWS, 0)
    assert (report.written, report.removed, report.held) == (0, ROWS, 0)
    assert (again.written, again.removed) == (0, 0)
    assert ids(sqlite) == {"id999"}
    assert ids_in(place) == names(range(ROWS))
    assert JobLedger(sqlite).runs("archive", JobRunState.RUNNING) == []


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_store_on_a_server_is_archived_to_s3(
    kind: str, store_of: Callable[[str], Store], place_of: Callable[[str], str]
) -> None:
    store, place = store_of(kind), place_of("delta-s3")
    write_events(store, range(ROWS))
    if store.is_postgresql:
        settle(store)

    report = run(store, place)

    assert (report.written, report.removed) == (ROWS, ROWS)
    assert ids(store) == set()
    assert ids_in(place) == names(range(ROWS))


def test_an_event_that_differs_in_the_table_is_not_removed(sqlite: Store, place: str) -> None:
    write_events(sqlite, range(ROWS))
    run(sqlite, place, purge=False)
    history = sqlite.tables.history
    with sqlite.database.begin() as connection:
        connection.execute(update(history).where(history.c.id == "id3").values(attempt=1))

    with pytest.raises(ArchiveMismatch, match="id3 has another attempt in the history table"):
        run(sqlite, place)

    assert count(sqlite, "history") == ROWS


def test_events_that_the_table_has_lost_stay_and_are_said_so(postgres: Store, place: str) -> None:
    write_events(postgres, range(4))
    settle(postgres)
    run(postgres, place, purge=False)
    open_table(place).remove(Doomed("id", ("id1",)))
    reported: list[str] = []

    report = run(postgres, place, progress=reported.append)

    assert (report.written, report.removed, report.held) == (0, 3, 1)
    assert any(f"{place} has lost 1 of them" in one for one in reported)
    assert ids(postgres) == {"id1"}


def test_a_sequence_that_is_given_again_is_another_event(sqlite: Store, tmp_path: Path) -> None:
    place = str(tmp_path / "history")
    write_events(sqlite, [1])
    run(sqlite, place)
    write_events(sqlite, [1], at=to_micros(datetime(2024, 5, 1, tzinfo=UTC)))

    assert run(sqlite, place).written == 1
    assert ids_in(place) == ["id1", "id1"]


def test_two_runs_do_not_archive_one_store_at_once(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    for kind in ("sqlite", "postgres", "mysql"):
        store = store_of(kind)
        with (
            exclusive_lock(store, f"archive {identity(store)}"),
            pytest.raises(RunConflict, match="wait until it has ended"),
        ):
            run(store, str(tmp_path))


def test_archive_removes_nothing_that_a_stream_into_another_table_has_not_read(
    postgres: Store, tmp_path: Path
) -> None:
    live, cold = f"delta:{tmp_path}/live", str(tmp_path / "cold")
    write_events(postgres, range(10))
    settle(postgres)
    first = followed(postgres, live)
    write_events(postgres, range(10, 14))
    settle(postgres)
    reported: list[str] = []

    held = run(postgres, cold, progress=reported.append)
    second = followed(postgres, live)
    after = run(postgres, cold)

    assert (first, second) == (10, 4)
    assert (held.written, held.removed, held.held) == (14, 10, 4)
    assert any(f"the stream into {live}, which is at" in one for one in reported)
    assert (after.written, after.removed, after.held) == (0, 4, 0)
    assert ids_in(live) == ids_in(cold) == names(range(14))


def test_a_stream_and_archive_share_one_table(postgres: Store, place_of: Any) -> None:
    place = place_of("delta")
    write_events(postgres, range(4))
    settle(postgres)
    followed(postgres, place)
    write_events(postgres, range(4, 8))
    settle(postgres)

    # The stream does not run: archive writes on its behalf, and need not wait for it.
    archived = run(postgres, place)

    assert (archived.written, archived.removed, archived.held) == (4, 8, 0)
    assert followed(postgres, place) == 0
    assert ids_in(place) == names(range(8))
    with (
        writer_lock(postgres, open_table(place).place),
        pytest.raises(RunConflict, match=r"writes into .* stop it first"),
    ):
        give_up(StreamOptions(store=postgres.name, to=place))
    words = ["--json", "pipeline", "stream", "--store", postgres.name, "--to", place]
    handler = signal.getsignal(signal.SIGTERM)
    assert CliRunner().invoke(cli, [*words, "--once"]).exit_code == 0
    assert signal.getsignal(signal.SIGTERM) is handler
    ended = [CliRunner().invoke(cli, [*words, "--abort"]) for _ in range(2)]
    assert [(one.exit_code, json.loads(one.stdout)) for one in ended] == [
        (0, {"given_up": True}),
        (3, {"given_up": False}),
    ]


class Stop(Event):
    """Notes each wait in *seen*, and is set by the last of *waits*."""

    def __init__(self, seen: list[str], waits: int) -> None:
        super().__init__()
        self._seen, self._waits = seen, waits

    def wait(self, timeout: float | None = None) -> bool:
        self._seen.append(f"wait {timeout:.0f} s")
        if self._seen.count(self._seen[-1]) == self._waits:
            self.set()
        return self.is_set()


def test_a_stream_commits_a_trickle_of_events_as_often_as_it_is_asked(
    postgres: Store, tmp_path: Path
) -> None:
    seen: list[str] = []

    def trickle(text: str) -> None:
        if text.startswith("batch"):
            seen.append(text)
            write_events(postgres, [len(seen)])
            settle(postgres)

    write_events(postgres, [0])
    settle(postgres)
    stream(
        StreamOptions(store=postgres.name, to=str(tmp_path), every=timedelta(seconds=7)),
        stop=Stop(seen, 2),
        progress=trickle,
    )

    assert seen == ["batch 1: 1 events", "wait 7 s", "batch 2: 1 events", "wait 7 s"]


def test_a_stream_that_is_behind_does_not_wait_between_its_commits(
    postgres: Store, tmp_path: Path
) -> None:
    seen: list[str] = []
    for number in range(3):
        write_events(postgres, [number])
    settle(postgres)

    given = StreamOptions(store=postgres.name, to=str(tmp_path), batch_events=1)
    stream(given, stop=Stop(seen, 1), progress=seen.append)

    commits = [text for text in seen if text.startswith(("batch", "wait"))]
    assert commits == [*(f"batch {number}: 1 events" for number in (1, 2, 3)), "wait 10 s"]


def test_a_table_of_another_server_is_not_written(postgres: Store, place: str) -> None:
    write_events(postgres, range(4))
    settle(postgres)
    followed(postgres, place)
    table = open_table(place)
    marks = dict(table.marks(identity(postgres)))
    for changed, sentence in [
        ({"timeline": marks["timeline"] + 1}, "--any-timeline"),
        ({"timeline": marks["timeline"], "system": 7}, "database system 7"),
    ]:
        marks |= changed | {"batch": marks["batch"] + 1}
        empty = open_table(place)
        empty.append(identity(postgres), nothing(), marks)

        with pytest.raises(RunConflict, match=sentence):
            followed(postgres, place)


def nothing() -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(WRITTEN, [])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"older_than": timedelta(seconds=59)}, "at least a minute"),
        ({"batch": 0}, "1 to 100000"),
        ({"to": "s3://lake/history"}, "put delta: before it"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"store": "s", "to": "t", "older_than": timedelta(days=1)}

    with pytest.raises(ConfigurationError, match=sentence):
        ArchiveOptions(**(given | options))

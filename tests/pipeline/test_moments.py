"""Moments of stores and of an archive; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import delete

from tests.pipeline.archives import publish, rows_of, write_events
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.instants import Micros
from timeoutmgr.pipeline.jobs.archived import ROW, Archive, Moments, moments
from timeoutmgr.pipeline.snapshots import CopiedSnapshot
from timeoutmgr.pipeline.stores import Store, identity


class Meanwhile(SystemClock):
    """A clock that is read before each snapshot, and lets tests act just before."""

    def __init__(self, *acts: Callable[[], None]) -> None:
        self._acts = iter(acts)

    def now(self) -> Micros:
        next(self._acts, lambda: None)()
        return super().now()


looked_at = partial(moments, views=("history",), columns=ROW)


def seen(held: Moments, archive: Archive) -> list[str]:
    """Return the ids of all events in ``history``, with repeats."""
    found = [row[1] for run in held.archived for row in archive.rows(run.run_id)]
    for one in held.stores:
        in_history = {row for run in one.in_both for row in archive.rows(run.run_id)}
        assert isinstance(one.snapshot, CopiedSnapshot)
        table = pq.read_table(one.snapshot.folder / "history").select(list(ROW))
        columns = [*table.columns[:2], table["at"].cast(pa.int64())]
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        found += [row[1] for row in rows if row not in in_history]
    return sorted(found)


@pytest.fixture
def east(store_of: Callable[[str], Store]) -> Store:
    return store_of("sqlite")


@pytest.fixture
def west(store_of: Callable[[str], Store]) -> Store:
    store = store_of("sqlite")
    write_events(store, range(10, 13))
    return store


def seen_when(times: Sequence[int], east: Store, west: Store, folder: Path) -> list[str]:
    """Return the events seen if the east is archived meanwhile: published, removed, and noted.

    Each step at its time of *times*: before all, before the snapshot of the east, after it, and
    after the manifests were read.
    """
    lake = Archive(folder)
    lake.create()

    def removed() -> None:
        with east.database.begin() as connection:
            connection.execute(delete(east.tables.history))

    def do(when: int) -> None:
        if when == times[0]:
            publish(lake, "run", identity(east), rows_of(east))
        if when == times[1]:
            removed()
        if when == times[2]:
            lake.note_purged("run")

    do(0)
    clock = Meanwhile(lambda: do(1), lambda: do(2))
    with looked_at((east.name, west.name), folder, clock=clock) as held:
        do(3)
        found = seen(held, lake)
    removed()
    return found


def test_an_event_counts_once_whenever_it_is_archived(
    east: Store, west: Store, tmp_path: Path
) -> None:
    for times in combinations_with_replacement(range(4), 3):
        write_events(east, range(4))

        found = seen_when(times, east, west, tmp_path / "-".join(map(str, times)))

        assert found == ["id0", "id1", "id10", "id11", "id12", "id2", "id3"], times


def test_an_archive_counts_for_the_given_stores_only(
    east: Store, west: Store, tmp_path: Path
) -> None:
    lake = Archive(tmp_path / "lake")
    write_events(east, range(2))
    for name, store in (("east", east), ("west", west)):
        publish(lake, name, identity(store), rows_of(store))
    reported: list[str] = []

    with looked_at(
        (east.name,), lake.folder, clock=SystemClock(), progress=reported.append
    ) as held:
        one = [run.run_id for run in held.archived]
    with looked_at((west.name, east.name), lake.folder, clock=SystemClock()) as held:
        both = [run.run_id for run in held.archived]
        found = seen(held, lake)
    with looked_at((), lake.folder, clock=SystemClock()) as held:
        every = [run.run_id for run in held.archived]

    assert (one, both, every) == (["east"], ["east", "west"], ["east", "west"])
    assert reported == ["1 of 2 archived runs, of other stores, do not count"]
    assert found == ["id0", "id1", "id10", "id11", "id12"]


def test_a_store_with_two_names_is_read_once_under_its_first_name(
    west: Store, tmp_path: Path
) -> None:
    again = Path(west.name).with_name("again.toml")
    again.write_text(Path(west.name).read_text().replace('"sales"', '"billing"'))
    lake = Archive(tmp_path / "lake")
    lake.create()

    with looked_at((west.name, str(again), west.name), lake.folder, clock=SystemClock()) as held:
        names = [one.snapshot.store.name for one in held.stores]
        found = seen(held, lake)

    assert names == [west.name]
    assert found == ["id10", "id11", "id12"]

"""Moments of stores and of a history table; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import delete

from tests.pipeline.archives import DAY, write_events
from tests.pipeline.lakes import ids_in
from tests.pipeline.rows import read, settle
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, to_micros
from timeoutmgr.pipeline.jobs.moments import Moments, moments
from timeoutmgr.pipeline.lake.places import open_table
from timeoutmgr.pipeline.lake.table import ROW, read_history
from timeoutmgr.pipeline.lake.writer import SequenceWriter, TransactionWriter
from timeoutmgr.pipeline.snapshots import CopiedSnapshot, SharedSnapshot
from timeoutmgr.pipeline.stores import Store

LATER = to_micros(DAY) + 30 * 86_400_000_000


class Meanwhile(SystemClock):
    """A clock that is read before each snapshot, and lets tests act just before."""

    def __init__(self, *acts: Callable[[], None]) -> None:
        self._acts = iter(acts)

    def now(self) -> Micros:
        next(self._acts, lambda: None)()
        return super().now()


looked_at = partial(moments, views=("history",), columns=ROW)


def keep(store: Store, place: str) -> None:
    """Write the history of *store* into the table."""
    writer: SequenceWriter | TransactionWriter
    if store.is_postgresql:
        writer = TransactionWriter(store=store, table=open_table(place), most=100)
    else:
        writer = SequenceWriter(store=store, table=open_table(place), most=100, cutoff=LATER)
    while writer.step() is not None:
        pass


def remove(store: Store) -> None:
    with store.database.begin() as connection:
        connection.execute(delete(store.tables.history))


def seen(held: Moments) -> list[str]:
    """Return the ids of all events in ``history``, with repeats."""
    found: list[str] = []
    for one in held.stores:
        kept: set[tuple[object, ...]] = set()
        if held.table is not None and one.kept is not None:
            table = read_history(held.table, ROW, one.kept)
            kept = {tuple(row.values()) for row in table.to_pylist()}
            found += table["id"].to_pylist()
        if isinstance(one.snapshot, CopiedSnapshot):
            rows = pq.read_table(one.snapshot.folder / "history").select(list(ROW)).to_pylist()
        else:
            assert isinstance(one.snapshot, SharedSnapshot)
            rows = read(one.snapshot.store, "history", xid_from=one.fresh.xid_from)
        split = [row for row in rows if one.is_split or tuple(row[n] for n in ROW) not in kept]
        found += [row["id"] for row in split]
    return sorted(found)


@pytest.fixture
def east(store_of: Callable[[str], Store]) -> Store:
    return store_of("sqlite")


@pytest.fixture
def west(store_of: Callable[[str], Store]) -> Store:
    store = store_of("sqlite")
    write_events(store, range(10, 13))
    return store


def seen_when(times: Sequence[int], east: Store, west: Store, place: str) -> list[str]:
    """Return the events seen if the east is archived meanwhile: written, and removed.

    Each step at its time of *times*: before all, before the snapshot of the east, after it, and
    after the table was opened.
    """
    keep(west, place)

    def do(when: int) -> None:
        if when == times[0]:
            keep(east, place)
        if when == times[1]:
            remove(east)

    do(0)
    clock = Meanwhile(lambda: do(1), lambda: do(2))
    with looked_at((east.name, west.name), place, clock=clock) as held:
        do(3)
        found = seen(held)
    remove(east)
    return found


def test_an_event_counts_once_whenever_it_is_archived(
    east: Store, west: Store, tmp_path: Path
) -> None:
    for times in combinations_with_replacement(range(4), 2):
        write_events(east, range(4))

        found = seen_when(times, east, west, str(tmp_path / "-".join(map(str, times))))

        assert found == ["id0", "id1", "id10", "id11", "id12", "id2", "id3"], times


def test_transactions_split_the_events_of_a_server_between_table_and_store(
    postgres: Store, tmp_path: Path
) -> None:
    place = str(tmp_path / "lake")
    write_events(postgres, range(4))
    settle(postgres)
    keep(postgres, place)
    write_events(postgres, range(4, 6))
    settle(postgres)

    with looked_at((postgres.name,), place, clock=SystemClock()) as held:
        # A stream writes on: what it adds to the table is after this moment.
        before = seen(held)
        (moment,) = held.stores
    keep(postgres, place)
    with looked_at((postgres.name,), place, clock=SystemClock()) as held:
        after = seen(held)
    remove(postgres)
    with looked_at((postgres.name,), place, clock=SystemClock()) as held:
        alone = seen(held)

    assert before == after == alone == [f"id{n}" for n in range(6)]
    assert moment.is_split
    assert moment.kept is not None
    assert ids_in(place, moment.kept) == [f"id{n}" for n in range(4)]


def test_a_table_counts_for_the_given_stores_only(east: Store, west: Store, tmp_path: Path) -> None:
    place = str(tmp_path / "lake")
    write_events(east, range(2))
    for store in (east, west):
        keep(store, place)

    with looked_at((east.name,), place, clock=SystemClock()) as held:
        one = seen(held)
    with looked_at((west.name, east.name), place, clock=SystemClock()) as held:
        both = seen(held)

    assert one == ["id0", "id1"]
    assert both == ["id0", "id1", "id10", "id11", "id12"]
    with (
        pytest.raises(ConfigurationError, match="no history table at"),
        looked_at((), str(tmp_path / "none"), clock=SystemClock()),
    ):
        pass


def test_a_store_with_two_names_is_read_once_under_its_first_name(west: Store) -> None:
    again = Path(west.name).with_name("again.toml")
    again.write_text(Path(west.name).read_text().replace('"sales"', '"billing"'))

    with looked_at((west.name, str(again), west.name), None, clock=SystemClock()) as held:
        names = [one.snapshot.store.name for one in held.stores]
        found = seen(held)

    assert names == [west.name]
    assert found == ["id10", "id11", "id12"]

"""Partitioned tables as the tests of the partitions need them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text

from tests.persistence.making import NOW, SetClock, timeout
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence import SqlPersistence, SqlTimeoutStore
from timeoutmgr.persistence.sql.partitions.catalog import DAY, DueRange, Ranged, Whole, read_ranges
from timeoutmgr.persistence.sql.partitions.upkeep import lay_out
from timeoutmgr.persistence.sql.tables import tables

TODAY: Micros = NOW - NOW % DAY


class Installation:
    """The tables of one prefix, and a clock that all its stores go by."""

    def __init__(self, persistence: SqlPersistence, prefix: str, schema: str | None = None) -> None:
        self.persistence = persistence
        self.prefix = prefix
        self.clock = SetClock()
        self.whole = Whole(persistence.database, tables(schema, prefix).timeouts)

    def store(self, endpoint: str = "e") -> TimeoutStore:
        return self.persistence.timeouts(endpoint, self.clock)

    def read_layout(self) -> Ranged:
        with self.persistence.database.read() as connection:
            found = read_ranges(connection, self.whole)
        assert found is not None
        return found

    @property
    def ranges(self) -> Sequence[DueRange]:
        return self.read_layout().ranges

    def lay_out(self) -> None:
        lay_out(self.whole)

    def holds(self, one: DueRange) -> int:
        """Return how many rows the partition of the range *one* holds."""
        with self.persistence.database.read() as connection:
            table = self.read_layout().of(one)
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())

    def of(self, due: Micros) -> DueRange:
        """Return the range that holds *due*."""
        return next(
            one
            for one in self.ranges
            if (one.start is None or one.start <= due) and (one.end is None or due < one.end)
        )

    def leftovers(self) -> list[str]:
        """Return the tables, functions and triggers of copies that are still there."""
        like = {"like": f"{self.prefix}timeouts\\_%"}
        with self.persistence.database.read() as connection:
            names = connection.execute(
                text(
                    "SELECT relname FROM pg_class WHERE relname LIKE :like"
                    " AND relkind IN ('r', 'p') AND NOT relispartition"
                    " AND relname NOT LIKE '%version'"
                    " UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE :like"
                    " UNION ALL SELECT tgname FROM pg_trigger WHERE tgname LIKE :like"
                ),
                like,
            ).scalars()
            return list(names)

    def copies(self) -> int:
        """Return how many copies were made."""
        with self.persistence.database.read() as connection:
            copies = self.read_layout().table("_copies")
            there = text("SELECT to_regclass(:copies) IS NOT NULL")
            if not connection.execute(there, {"copies": copies}).scalar_one():
                return 0
            return int(connection.execute(text(f"SELECT count(*) FROM {copies}")).scalar_one())


def coarsen(whole: Whole) -> None:
    """Put all into one partition, as in an installation of before."""
    with whole.database.begin() as connection:
        ranged = read_ranges(connection, whole)
        assert ranged is not None
        parts = [ranged.of(one) for one in ranged.ranges]
        connection.execute(text(f"LOCK TABLE {ranged.whole}"))
        connection.execute(text(f"CREATE TEMP TABLE kept AS SELECT * FROM {ranged.whole}"))
        connection.execute(text(f"DROP TABLE {', '.join(parts)} CASCADE"))
        connection.execute(
            text(
                f"CREATE TABLE {ranged.table('_all')} PARTITION OF {ranged.whole}"
                " FOR VALUES FROM (MINVALUE) TO (MAXVALUE)"
            )
        )
        connection.execute(text(f"INSERT INTO {ranged.whole} SELECT * FROM kept"))
        connection.execute(text("DROP TABLE kept"))


def tend(store: TimeoutStore, most: int = 2_000) -> int:
    """Have *store* do all there is to do for its partitions; return in how many steps.

    On a busy machine a step may be left for another time.
    """
    assert isinstance(store, SqlTimeoutStore)
    partitions = store._partitions
    for steps in range(most):
        if not store.run_maintenance() and (
            partitions.rests or store.context.settings.partitions == "off"
        ):
            return steps
    raise AssertionError(f"there is more to do after {most} steps")


def fill(store: TimeoutStore, count: int, due: Micros, over: Micros = DAY) -> list[str]:
    """Store *count* timeouts with due times over a span from *due* on; return their ids."""
    names = [f"{due}-{n:06}" for n in range(count)]
    for at in range(0, count, 500):
        store.store_many(
            [
                timeout(name, due + over * (at + n) // count)
                for n, name in enumerate(names[at : at + 500])
            ]
        )
    return names

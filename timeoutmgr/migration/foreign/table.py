"""A foreign timeout table in a live database as a source.

Its own timeout manager may be running. So one transaction hides a batch by moving its rows into a
separate table of the run; an abort moves them back. Delivered rows stay there as a copy until an
administrator drops the table.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Index,
    MetaData,
    String,
    Table,
    and_,
    cast,
    delete,
    exc,
    func,
    insert,
    inspect,
    or_,
    select,
)

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.errors import ConfigurationError, SchemaMissing
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, from_micros, to_micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration.foreign.rows import (
    ForeignColumns,
    RowTranslator,
    Untranslatable,
    survey_rows,
)
from timeoutmgr.migration.levels.waiting_message import micros_of
from timeoutmgr.migration.ports import LedgerWrite, Source
from timeoutmgr.migration.runs import Batch, Item, KeyRange, Survey, Window, in_ranges
from timeoutmgr.resilience.after_fork import cached_property

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 1_000
_BODIES_AT_ONCE: Final = 20
_NAME_LENGTH: Final = 63


class ForeignTable(Source):
    """See :class:`timeoutmgr.migration.Source`; *table* in *schema*, laid out as *layout*."""

    def __init__(
        self,
        database: Database,
        layout: ForeignColumns,
        endpoint: str,
        clock: Clock,
        *,
        table: str | None = None,
        schema: str | None = None,
        renames: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._database = database
        self._layout = layout
        self._endpoint = endpoint
        self._clock = clock
        self._name = table or layout.table
        self._schema = schema
        self._translator = RowTranslator(layout, endpoint, dict(renames or {}), limits or Limits())

    def describe(self) -> str:
        """Return the database and the table, without secrets."""
        place = f"{self._schema}.{self._name}" if self._schema else self._name
        return f"{self._database.describe()} {self._layout.name} {place}"

    def now(self) -> Micros:
        """Return the database's time."""
        return self._database.now(self._clock)

    def survey(self, window: Window) -> Survey:
        """Return the survey of the rows that a run would move now, each row translated."""
        now = self.now()
        with self._database.read() as connection:
            everything = connection.execute(
                select(func.count()).select_from(self._rows)
            ).scalar_one()
            streamed = connection.execution_options(yield_per=_BODIES_AT_ONCE)
            rows = streamed.execute(
                select(*self._wanted(self._rows)).where(*self._within(window, now))
            )
            collected = 0

            def counted() -> Iterator[Mapping[str, Any]]:
                nonlocal collected
                for row in rows:
                    collected += 1
                    yield row._asdict()

            found = survey_rows(counted(), self._translator, left=0)
        return replace(found, left=everything - collected)

    def ranges(self, window: Window, size: int) -> Iterator[KeyRange]:
        """Yield ranges of at most *size* rows, nearest due first."""
        time, text = self._rows.c[self._column("Time")], _id_text(self._rows, self._id)
        many = func.coalesce(func.length(self._rows.c[self._column("State")]), 0)
        now = self.now()
        with self._database.read() as connection:
            rows = connection.execution_options(yield_per=_AT_ONCE).execute(
                select(time, text, many).where(*self._within(window, now)).order_by(time, text)
            )
            sized = ((Key(micros_of(when), str(one)), bytes_) for when, one, bytes_ in rows)
            yield from in_ranges(sized, size)

    def prepare(self, run_id: str) -> None:
        """Create the table for the run's rows; idempotent."""
        side = self._side(run_id)
        self._database.run(lambda connection: side.create(connection, checkfirst=True))

    def hide(self, run_id: str, batch: Batch, window: Window, write: LedgerWrite) -> None:
        """Move the batch's rows aside; count all rows aside, also those from before a crash.

        Its own timeout manager keeps unreadable rows, which would block the batch.
        """
        side, now = self._side(run_id), self.now()
        ours = and_(*self._within(window, now), self._in_range(self._rows, batch))

        def work(connection: Connection) -> int:
            # Lock first: rows that the other timeout manager deletes meanwhile belong to it.
            locked = select(*self._wanted(self._rows)).where(ours).with_for_update()
            rows = [row._asdict() for row in connection.execute(locked)]
            ids = [row["Id"] for row in rows if self._is_readable(row)]
            self._shift(connection, self._rows, side, ids)
            there = select(func.count()).select_from(side).where(self._in_range(side, batch))
            return connection.execute(there).scalar_one()

        count = self._database.run(work)
        reach("foreign.moved_aside")
        write(None, count)

    def read(self, run_id: str, batch: Batch) -> Sequence[Item]:
        """Return the rows of the batch that were moved aside."""
        side = self._side(run_id)
        statement = (
            select(*self._wanted(side))
            .where(self._in_range(side, batch))
            .order_by(side.c[self._column("Time")], _id_text(side, self._id))
        )
        with self._database.read() as connection:
            if not inspect(connection).has_table(side.name, schema=side.schema):
                return []  # the run ended before it was prepared
            return [self._item(row._asdict()) for row in connection.execute(statement)]

    def remove(self, run_id: str, batch: Batch, items: Sequence[Item], write: LedgerWrite) -> None:
        """Leave the rows aside, as an unread copy."""
        write(None, len(items))

    def restore(
        self,
        run_id: str,
        batch: Batch,
        items: Sequence[Item],
        there: Collection[str],
        write: LedgerWrite,
    ) -> None:
        """Move back the rows that are not *there*."""
        side = self._side(run_id)

        def work(connection: Connection) -> int:
            aside = select(*self._wanted(side)).where(self._in_range(side, batch))
            rows = [row._asdict() for row in connection.execute(aside)]
            ids = [row["Id"] for row in rows if self._item(row).timeout.id not in there]
            self._shift(connection, side, self._rows, ids)
            return len(ids)

        count = self._database.run(work)
        reach("foreign.moved_back")
        write(None, count)

    def close(self) -> None:
        """Close idle connections."""
        self._database.dispose()

    def _is_readable(self, row: Mapping[str, Any]) -> bool:
        """Return whether *row* can be moved; a row newer than the survey may be unreadable."""
        try:
            self._item(row)
        except Untranslatable as error:
            logger.warning(
                "row %.80r of %s stays there: %s",
                row["Id"],
                self._name,
                on_one_line(error),
                extra={"event": "row_not_moved", "endpoint": self._endpoint},
            )
            return False
        return True

    def _item(self, row: Mapping[str, Any]) -> Item:
        return Item(timeout=self._translator.timeout(row))

    def _shift(
        self, connection: Connection, source: Table, target: Table, ids: Sequence[Any]
    ) -> None:
        names = [column.name for column in source.c]
        for start in range(0, len(ids), _AT_ONCE):
            these = source.c[self._id].in_(ids[start : start + _AT_ONCE])
            connection.execute(insert(target).from_select(names, select(source).where(these)))
            reach("foreign.copied")
            connection.execute(delete(source).where(these))
            reach("foreign.shifted")

    def _within(self, window: Window, now: Micros) -> list[ColumnElement[bool]]:
        time = self._rows.c[self._column("Time")]
        conditions = [time >= _naive(window.first(now))]
        return conditions if window.until is None else [*conditions, time < _naive(window.end)]

    def _in_range(self, table: Table, batch: Batch) -> ColumnElement[bool]:
        time, text = table.c[self._column("Time")], _id_text(table, self._id)
        first, last = batch.range.first, batch.range.last
        return and_(
            time >= _naive(first.due),
            time <= _naive(last.due),
            or_(time > _naive(first.due), text >= first.id),
            or_(time < _naive(last.due), text <= last.id),
        )

    def _wanted(self, table: Table) -> list[ColumnElement[Any]]:
        return [table.c[self._column(name)].label(name) for name in self._layout.columns]

    @cached_property
    def _rows(self) -> Table:
        try:
            with self._database.read() as connection:
                return Table(self._name, MetaData(schema=self._schema), autoload_with=connection)
        except exc.NoSuchTableError as error:
            raise SchemaMissing(
                f"{self.describe()} does not exist; name it with --table and --from-schema"
            ) from error

    @cached_property
    def _columns(self) -> dict[str, str]:
        """The columns by the product's names: databases differ in how they spell them."""
        there = {column.name.lower(): column.name for column in self._rows.c}
        missing = [name for name in self._layout.columns if name.lower() not in there]
        if missing:
            raise ConfigurationError(
                f"{self.describe()} lacks the columns {', '.join(missing)}; is it of another "
                "--layout?"
            )
        return {name: there[name.lower()] for name in self._layout.columns}

    def _column(self, name: str) -> str:
        return self._columns[name]

    @property
    def _id(self) -> str:
        return self._column("Id")

    def _side(self, run_id: str) -> Table:
        columns: list[Column[Any]] = [
            Column(one.name, one.type, primary_key=one.primary_key, nullable=one.nullable)
            for one in self._rows.c
        ]
        # Databases truncate long names at the end, but the id of the run must stay.
        name = f"timeoutmgr_{run_id}_{self._name}"[:_NAME_LENGTH]
        side = Table(name, MetaData(schema=self._schema), *columns)
        # Delivered rows stay in the table: without the index, each batch would scan all of them.
        Index(f"timeoutmgr_{run_id}_time", side.c[self._column("Time")])
        return side


def _id_text(table: Table, name: str) -> ColumnElement[str]:
    return cast(table.c[name], String(200))


def _naive(instant: Micros) -> datetime:
    # The columns have no zone, and are in UTC. Some databases begin only in the year 1000.
    bounded = min(max(instant, _FIRST), LATEST)
    return from_micros(bounded).replace(tzinfo=None)


_FIRST: Final = max(EARLIEST, to_micros(datetime(1000, 1, 1, tzinfo=UTC)))

"""A timeout table of NServiceBus, its rows, and their translations into our store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    Uuid,
    insert,
    select,
)

from tests.migration.conftest import HOUR, Pair
from tests.persistence.making import NOW
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.database import Database
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros, to_wire
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import Participants, Report, Source, Terms, Window, begin
from timeoutmgr.migration.foreign.rows import LAYOUTS, ForeignColumns, RowTranslator
from timeoutmgr.migration.foreign.table import ForeignTable

SAGA: Final = UUID("9d0f1b9e-57ce-4a0f-9c3a-0a8f6c7c1a11")
AT: Final = from_micros(NOW + HOUR)


def row(**more: Any) -> dict[str, Any]:
    """A row of ``TimeoutData`` as its product writes it."""
    given = {
        headers.MESSAGE_ID: "m-1",
        headers.ENCLOSED_MESSAGE_TYPES: "Shop.PaymentOverdue",
        headers.CONTENT_TYPE: "text/xml",
        headers.EXPIRE: to_wire(NOW + HOUR + 250_000),
        headers.DESTINATION: "billing",
        headers.TIME_SENT: to_wire(NOW),
        "NServiceBus.NonDurableMessage": None,
    }
    return {
        "Id": uuid4(),
        "Destination": "billing",
        "SagaId": SAGA,
        "State": b"<overdue/>",
        "Time": AT.replace(tzinfo=None),
        "Headers": json.dumps(given),
        **more,
    }


class Foreign:
    """A timeout table of another product beside our store, and the migration into our store."""

    def __init__(self, pair: Pair, endpoint: str, kind: str) -> None:
        self.persistence = pair[1]
        self.endpoint = endpoint
        self.clock = SystemClock()
        self.url = pair[1].database.url.render_as_string(hide_password=False)
        self.store = self.persistence.timeouts(endpoint, self.clock)
        self.table = Table(
            f"{endpoint}_TimeoutData",
            MetaData(),
            Column("Id", Uuid() if kind == "postgres" else String(38), primary_key=True),
            Column("Destination", String(200)),
            Column("SagaId", Uuid() if kind == "postgres" else String(38)),
            Column("State", LargeBinary),
            Column("Time", DateTime),
            Column("Headers", JSON if kind == "mysql" else Text, nullable=False),
            Column("PersistenceVersion", String(23), nullable=False),
        )
        self._kind = kind

    def fill(self, rows: list[dict[str, Any]]) -> None:
        """Create the table, and store rows."""
        with self.persistence.database.begin() as connection:
            self.table.create(connection)
        self.add(rows)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Store rows as their product does."""
        given = [{**one, "PersistenceVersion": "6.6.5"} for one in rows]
        for one in given:
            if self._kind != "postgres":
                one |= {"Id": str(one["Id"]), "SagaId": str(one["SagaId"])}
            if self._kind == "mysql":
                one |= {"Headers": json.loads(one["Headers"])}
        with self.persistence.database.begin() as connection:
            connection.execute(insert(self.table), given)

    def left(self) -> list[str]:
        """The ids that its own timeout manager still sees."""
        with self.persistence.database.read() as connection:
            found = connection.execute(select(self.table.c.Id)).scalars()
            return sorted(str(one) for one in found)

    def source(self, limits: Limits | None = None) -> ForeignTable:
        """The table as a source."""
        return ForeignTable(
            Database(self.url),
            LAYOUTS["nservicebus"],
            self.endpoint,
            self.clock,
            table=self.table.name,
            limits=limits,
        )

    def parts(self, source: Source | None = None) -> Participants:
        """From the table, or another source, into our store."""
        return Participants(
            source=source or self.source(),
            target=self.persistence.migration_target(self.endpoint, self.clock),
            ledger=self.persistence.migration_ledger(self.endpoint, self.clock),
            runner=f"{self.endpoint}-{uuid4().hex}",
        )

    def terms(self, parts: Participants, window: Window | None = None) -> Terms:
        """Batches of three."""
        return Terms(
            endpoint=self.endpoint,
            source=parts.source.describe(),
            target=parts.target.describe(),
            window=window or Window(),
            batch=3,
        )

    def run(self, parts: Participants, window: Window | None = None) -> Report:
        """Move all."""
        run = begin(parts, self.terms(parts, window), lambda: f"{self.endpoint}r")
        made = parts.migrate(run)
        parts.close()
        return made

    def close(self) -> None:
        """Drop the tables."""
        database = self.persistence.database
        with database.begin() as connection:
            for name in (self.table.name, f"timeoutmgr_{self.endpoint}r_{self.table.name}"):
                Table(name, MetaData()).drop(connection, checkfirst=True)


def rows(amount: int) -> list[dict[str, Any]]:
    """Rows a second after each other."""
    return [
        row(
            Time=(AT + timedelta(seconds=number)).replace(tzinfo=None),
            Headers=json.dumps({headers.MESSAGE_ID: f"m-{number}"}),
        )
        for number in range(amount)
    ]


def translated(
    given: Mapping[str, Any],
    layout: ForeignColumns,
    endpoint: str,
    renames: Mapping[str, str],
    limits: Limits,
) -> Timeout:
    """Return the timeout that the row *given* is."""
    return RowTranslator(layout, endpoint, renames, limits).timeout(given)


def expected(given: list[dict[str, Any]], endpoint: str) -> list[Timeout]:
    """Return the rows as timeouts of our store."""
    return [translated(one, LAYOUTS["nservicebus"], endpoint, {}, Limits()) for one in given]

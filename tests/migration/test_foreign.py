"""What an NServiceBus endpoint has stored moves in: from its table, or from an export of it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest
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
    func,
    insert,
    select,
)

from tests.migration.conftest import HOUR, Pair, pending
from tests.persistence.making import NOW, SECOND, SetClock
from timeoutmgr import headers
from timeoutmgr.contracts import Timeout
from timeoutmgr.database import Database
from timeoutmgr.errors import ConfigurationError, MigrationRefused, SchemaMissing
from timeoutmgr.instants import from_micros, to_wire
from timeoutmgr.migration import (
    BatchState,
    Parts,
    Report,
    Source,
    Terms,
    Window,
    abort,
    begin,
    migrate,
)
from timeoutmgr.migration.foreign.rows import (
    LAYOUTS,
    Untranslatable,
    bytes_of,
    due_of,
    layout_called,
    read_headers,
    time_of,
    translated,
)
from timeoutmgr.migration.foreign.spool import ExportFile
from timeoutmgr.migration.foreign.table import ForeignTable
from timeoutmgr.migration.moving import hide
from timeoutmgr.routing import timeout_id

SAGA: Final = UUID("9d0f1b9e-57ce-4a0f-9c3a-0a8f6c7c1a11")
AT: Final = from_micros(NOW + HOUR)
XML: Final = (
    '<?xml version="1.0" encoding="utf-8"?><ArrayOfHeaderInfo>'
    "<HeaderInfo><Key>NServiceBus.MessageId</Key><Value>m-1</Value></HeaderInfo>"
    "<HeaderInfo><Key>NServiceBus.EnclosedMessageTypes</Key><Value>Häppy</Value></HeaderInfo>"
    "<HeaderInfo><Key>NServiceBus.Timeouts.Properties.At</Key><Value>x</Value></HeaderInfo>"
    "<HeaderInfo><Key>CorrId</Key></HeaderInfo></ArrayOfHeaderInfo>"
).encode()


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


# --- one row


def test_a_row_becomes_the_timeout_that_it_is() -> None:
    given = row()

    made = translated(given, LAYOUTS["nservicebus"], "sales", {})

    assert made.id == timeout_id("sales", str(given["Id"]))
    assert made.due == NOW + HOUR + 250_000  # what the column lost, the header has
    assert (made.destination, made.saga_id, made.created) == ("billing", str(SAGA), NOW)
    message = made.message
    assert (message.id, message.body, message.content_type) == ("m-1", b"<overdue/>", "text/xml")
    assert message.headers == {
        headers.MESSAGE_ID: "m-1",
        headers.ENCLOSED_MESSAGE_TYPES: "Shop.PaymentOverdue",
        headers.CONTENT_TYPE: "text/xml",
        headers.TIME_SENT: to_wire(NOW),
        headers.DELIVER_AT: to_wire(made.due),
        "NServiceBus.NonDurableMessage": "",
    }


def test_a_row_of_the_msmq_store_has_its_headers_in_xml() -> None:
    given = row(Id="guid\\42", Headers=XML + b"\0\0", Destination="billing@HOST")

    made = translated(given, LAYOUTS["msmq"], "sales", {"billing@HOST": "billing"})

    assert (made.destination, made.message.id, made.saga_id) == ("billing", "m-1", None)
    assert made.message.headers[headers.ENCLOSED_MESSAGE_TYPES] == "Häppy"
    assert made.message.headers["CorrId"] == ""
    assert not any(name.startswith(headers.PROPERTY_PREFIX) for name in made.message.headers)


def test_two_rows_of_one_message_are_two_timeouts() -> None:
    one, other = (translated(row(), LAYOUTS["nservicebus"], "sales", {}) for _ in "ab")

    assert one.message.id == other.message.id
    assert one.id != other.id


@pytest.mark.parametrize("spelled", ["{}", "{{{}}}"])
def test_a_row_has_one_id_however_an_export_spells_its_guid(spelled: str) -> None:
    given = row()
    text = spelled.format(given["Id"]).upper()

    of_table, of_export = (
        translated(each, LAYOUTS["nservicebus"], "sales", {}) for each in (given, row(Id=text))
    )

    assert of_table.id == of_export.id


def test_other_ids_that_differ_in_case_are_two() -> None:
    small, large = (translated(row(Id=each), LAYOUTS["msmq"], "sales", {}) for each in ("a1", "A1"))

    assert small.id != large.id


@pytest.mark.parametrize(
    ("column", "header", "due"),
    [
        (0, 250_000, 250_000),
        (0, SECOND, SECOND),
        (0, SECOND + 1, 0),  # moved on purpose
        (SECOND, 0, SECOND),
        (9 * SECOND, 0, 9 * SECOND),
        (5, None, 5),
    ],
)
def test_a_lost_fraction_is_taken_from_the_header_and_never_makes_it_early(
    column: int, header: int | None, due: int
) -> None:
    given = {} if header is None else {headers.EXPIRE: to_wire(NOW + header)}
    time = from_micros(NOW + column).replace(tzinfo=None)

    assert due_of(time, given) == NOW + due


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-31 09:00:00", datetime(2030, 1, 31, 9)),
        ("2030-01-31T09:00:00.1234567", datetime(2030, 1, 31, 9, 0, 0, 123457)),
        ("2030-01-31T09:00:00.1234560", datetime(2030, 1, 31, 9, 0, 0, 123456)),
        ("2030-01-31T09:00:00.9999991", datetime(2030, 1, 31, 9, 0, 1)),
        ("2030-01-31 09:00:00.1234567+01:00", datetime(2030, 1, 31, 9, 0, 0, 123457)),
        ("2030-01-31 09:00:00.5", datetime(2030, 1, 31, 9, 0, 0, 500000)),
    ],
)
def test_times_are_read_as_exports_spell_them(text: str, expected: datetime) -> None:
    zone = timezone(timedelta(hours=1)) if "+" in text else None

    assert time_of(text) == expected.replace(tzinfo=zone)


def test_bytes_are_read_as_exports_spell_them() -> None:
    assert [bytes_of(one) for one in (b"a", r"\x6162", "0x6162", "YWI=", None)] == [
        b"a",
        b"ab",
        b"ab",
        b"ab",
        b"",
    ]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"Destination": None, "Headers": "{}"}, "got ''"),
        ({"Destination": "sales.Timeouts"}, "belongs to"),
        ({"Headers": "{"}, "Expecting"),
        ({"Headers": "[]"}, "an object of texts"),
        ({"Headers": '{"a": 1}'}, "header 'a' is int"),
        ({"Headers": b"<!DOCTYPE a><ArrayOfHeaderInfo></ArrayOfHeaderInfo>"}, "no document type"),
        ({"Headers": b"<a></ArrayOfHeaderInfo>"}, "no XML"),
        ({"State": "no base64!"}, "no binary value"),
        ({"Time": "soon"}, "is no time"),
        ({"Headers": json.dumps({headers.MESSAGE_ID: "m" * 201})}, "more than 200 characters"),
        ({"Headers": json.dumps({headers.MESSAGE_ID: "ä" * 128})}, "or 255 bytes"),
        ({"Headers": json.dumps({headers.CONTENT_TYPE: "c" * 256})}, "the content type has more"),
        ({"SagaId": "s" * 201}, "the saga id has more than 200"),
        ({"SagaId": "a\0b"}, "has a NUL"),
    ],
)
def test_what_cannot_be_translated_says_why(more: dict[str, Any], why: str) -> None:
    with pytest.raises(Untranslatable, match=why):
        translated(row(**more), LAYOUTS["nservicebus"], "sales", {})


def test_a_layout_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nservicebus, msmq"):
        layout_called("hangfire")


# --- a table


class Foreign:
    """A timeout table of another product beside our store, and the way from one to the other."""

    def __init__(self, pair: Pair, endpoint: str, kind: str) -> None:
        self.persistence = pair[1]
        self.endpoint = endpoint
        self.clock = SetClock()
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

    def parts(self, source: Source | None = None) -> Parts:
        """From the table, or another source, into our store."""
        return Parts(
            source=source
            or ForeignTable(
                Database(self.url),
                LAYOUTS["nservicebus"],
                self.endpoint,
                self.clock,
                table=self.table.name,
            ),
            target=self.persistence.migration_target(self.endpoint, self.clock),
            ledger=self.persistence.migration_ledger(self.endpoint, self.clock),
            runner=f"{self.endpoint}-{uuid4().hex}",
        )

    def terms(self, parts: Parts, window: Window | None = None) -> Terms:
        """Batches of three."""
        return Terms(
            endpoint=self.endpoint,
            source=parts.source.describe(),
            target=parts.target.describe(),
            window=window or Window(),
            batch=3,
        )

    def run(self, parts: Parts, window: Window | None = None) -> Report:
        """Move all."""
        run = begin(parts, self.terms(parts, window), lambda: f"{self.endpoint}r")
        made = migrate(parts, run)
        parts.close()
        return made

    def close(self) -> None:
        """Drop the tables."""
        database = self.persistence.database
        with database.begin() as connection:
            for name in (self.table.name, f"timeoutmgr_{self.endpoint}r_{self.table.name}"):
                Table(name, MetaData()).drop(connection, checkfirst=True)


@pytest.fixture(params=("sqlite", "postgres", "mysql"))
def foreign(
    request: pytest.FixtureRequest, persistences_of: Callable[[str], Pair], unique: str
) -> Iterator[Foreign]:
    """A foreign table on every database that we speak."""
    made = Foreign(persistences_of(request.param), unique, request.param)
    yield made
    made.close()


def rows(amount: int) -> list[dict[str, Any]]:
    """Rows a second after each other."""
    return [
        row(
            Time=(AT + timedelta(seconds=number)).replace(tzinfo=None),
            Headers=json.dumps({headers.MESSAGE_ID: f"m-{number}"}),
        )
        for number in range(amount)
    ]


def expected(given: list[dict[str, Any]], endpoint: str) -> list[Timeout]:
    """What the rows are in our store."""
    return [translated(one, LAYOUTS["nservicebus"], endpoint, {}) for one in given]


def test_a_table_moves_in_and_its_own_manager_sees_it_no_more(foreign: Foreign) -> None:
    given = rows(7)
    foreign.fill(given)

    report = foreign.run(foreign.parts())

    assert pending(foreign.store) == expected(given, foreign.endpoint)
    assert foreign.left() == []
    assert (report.batches, report.taken, report.new, report.verified) == (3, 7, 7, True)


def test_an_abort_gives_the_table_back_what_is_not_here(foreign: Foreign) -> None:

    given = rows(7)
    foreign.fill(given)
    parts = foreign.parts()
    run = begin(parts, foreign.terms(parts), lambda: f"{foreign.endpoint}r")
    batch = next(parts.ledger.batches(run.id))
    hidden = hide(parts, run, batch)
    assert len(foreign.left()) == 4
    parts.ledger.move_batch(run.id, replace(hidden, state=BatchState.SENDING))
    parts.target.deliver(run.id, hidden, parts.source.read(run.id, hidden)[:1])

    report = abort(parts, run)

    parts.close()
    assert len(pending(foreign.store)) == 1
    assert foreign.left() == sorted(str(one["Id"]) for one in given[1:])
    assert (report.taken, report.new, report.returned, report.verified) == (3, 1, 2, True)


def test_every_row_that_cannot_be_read_is_a_problem_and_nothing_moves(foreign: Foreign) -> None:
    bad = row(Destination="sales.Timeouts")
    foreign.fill([*rows(3), bad])
    parts = foreign.parts()

    with pytest.raises(MigrationRefused, match="belongs to") as refused:
        foreign.run(parts)

    assert [f"row {bad['Id']}" in reason for reason in refused.value.reasons] == [True]
    assert len(foreign.left()) == 4
    parts.close()


def test_a_batch_that_is_aside_is_in_a_table_of_the_runs_own(foreign: Foreign) -> None:
    foreign.fill(rows(4))
    parts = foreign.parts()
    run = begin(parts, foreign.terms(parts), lambda: f"{foreign.endpoint}r")

    hide(parts, run, next(parts.ledger.batches(run.id)))

    aside = Table(f"timeoutmgr_{run.id}_{foreign.table.name}", MetaData())
    with foreign.persistence.database.read() as connection:
        assert connection.execute(select(func.count()).select_from(aside)).scalar_one() == 3
    abort(parts, run)
    parts.close()
    assert len(foreign.left()) == 4


def test_a_run_that_was_planned_and_no_more_is_aborted(foreign: Foreign) -> None:
    foreign.fill(rows(4))
    parts = foreign.parts()
    terms, ranges = foreign.terms(parts), parts.source.ranges(Window(), 3)
    run = parts.ledger.create(f"{foreign.endpoint}r", terms, ranges, parts.runner)

    report = abort(parts, run)

    parts.close()
    assert (report.state, report.taken) == ("aborted", 0)
    assert len(foreign.left()) == 4


def test_a_row_that_came_since_the_survey_and_cannot_be_read_stays_where_it_is(
    foreign: Foreign,
) -> None:
    given = rows(4)
    foreign.fill(given)
    parts = foreign.parts()
    run = begin(parts, foreign.terms(parts), lambda: f"{foreign.endpoint}r")
    bad = row(Destination="sales.Timeouts", Time=given[1]["Time"])
    foreign.add([bad])

    report = migrate(parts, run)

    parts.close()
    assert (report.taken, report.new, foreign.left()) == (4, 4, [str(bad["Id"])])


def test_a_table_that_is_not_there_is_named(foreign: Foreign) -> None:
    parts = foreign.parts()

    with pytest.raises(SchemaMissing, match="_TimeoutData does not exist; name it with --table"):
        parts.source.survey(Window())

    parts.close()


# --- a file


@pytest.fixture
def sqlite_foreign(persistences_of: Callable[[str], Pair], unique: str) -> Foreign:
    """Our store, on SQLite; the other product's rows come from a file."""
    return Foreign(persistences_of("sqlite"), unique, "sqlite")


def export(path: Path, given: list[dict[str, Any]]) -> Path:
    """Write rows as PostgreSQL's ``\\copy … csv header`` does, the columns in lower case."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([name.lower() for name in given[0]])
        for one in given:
            out.writerow([*({**one, "State": f"\\x{one['State'].hex()}"}.values())])
    return path


def test_an_export_moves_in_nearest_due_first_overdue_included(
    sqlite_foreign: Foreign, tmp_path: Path
) -> None:
    given = [*reversed(rows(5)), row(Time=datetime(2001, 1, 1), Headers="{}")]
    path = export(tmp_path / "timeouts.csv", given)
    source = ExportFile(path, LAYOUTS["nservicebus"], sqlite_foreign.endpoint, sqlite_foreign.clock)

    report = sqlite_foreign.run(sqlite_foreign.parts(source), Window(overdue=True))

    wanted = sorted(expected(given, sqlite_foreign.endpoint), key=lambda one: one.key)
    assert pending(sqlite_foreign.store) == wanted
    assert (report.batches, report.new) == (2, 6)


def test_a_parquet_export_moves_in(sqlite_foreign: Foreign, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    given = [{**one, "Id": str(one["Id"]), "SagaId": str(SAGA)} for one in rows(4)]
    parquet.write_table(pyarrow.Table.from_pylist(given), tmp_path / "timeouts.parquet")
    source = ExportFile(
        tmp_path / "timeouts.parquet",
        LAYOUTS["nservicebus"],
        sqlite_foreign.endpoint,
        sqlite_foreign.clock,
    )

    sqlite_foreign.run(sqlite_foreign.parts(source), Window(overdue=True))

    assert pending(sqlite_foreign.store) == expected(given, sqlite_foreign.endpoint)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    source = ExportFile(path, LAYOUTS["nservicebus"], "e", SetClock())

    with pytest.raises(ConfigurationError, match=r"pip install 'timeoutmgr\[parquet\]'"):
        source.survey(Window())
    source.close()


def test_a_run_goes_on_with_the_very_same_file_only(
    sqlite_foreign: Foreign, tmp_path: Path
) -> None:
    path = export(tmp_path / "timeouts.csv", rows(4))

    def parts() -> Parts:
        endpoint, clock = sqlite_foreign.endpoint, sqlite_foreign.clock
        return sqlite_foreign.parts(ExportFile(path, LAYOUTS["nservicebus"], endpoint, clock))

    first = parts()
    begin(first, sqlite_foreign.terms(first), lambda: "r")
    first.close()
    export(path, rows(4))
    second = parts()

    with pytest.raises(MigrationRefused, match=r"source was 'timeouts\.csv nservicebus sha256:"):
        begin(second, sqlite_foreign.terms(second), lambda: "r")

    second.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Id,Destination\n1,b\n", "lacks the columns SagaId, State, Time, Headers"),
        (None, "cannot be read: No such file"),
        ('Id,Destination,SagaId,State,Time,Headers\n1,"b\n', "behind row 0: unexpected end"),
        ("Id,Destination,SagaId,State,Time,Headers\n1,b\xff,,,2030-01-01,{}\n", "can't decode"),
    ],
)
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "a.csv"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    source = ExportFile(path, LAYOUTS["nservicebus"], "e", SetClock())

    with pytest.raises(ConfigurationError, match=why):
        _looked_at(source)
    source.close()


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"nonsense")
    source = ExportFile(path, LAYOUTS["nservicebus"], "e", SetClock())

    with pytest.raises(ConfigurationError, match="export it anew"):
        _looked_at(source)
    source.close()


def test_a_row_of_no_calendar_is_a_problem_and_no_row_that_stays(tmp_path: Path) -> None:
    path = export(tmp_path / "a.csv", [row(Time="9999-12-31T23:59:59-12:00", Headers="{}")])
    source = ExportFile(path, LAYOUTS["nservicebus"], "e", SetClock())

    found = source.survey(Window(overdue=True))

    assert "outside the years 1 to 9999" in str(found.problems[0])
    source.close()


def _looked_at(source: ExportFile) -> None:
    source.describe()
    source.survey(Window())


def test_an_id_that_is_there_twice_is_a_problem(tmp_path: Path) -> None:
    one = row()
    path = export(tmp_path / "a.csv", [one, one])
    source = ExportFile(path, LAYOUTS["nservicebus"], "e", SetClock())

    [problem] = source.survey(Window()).problems

    assert str(problem) == "a.csv: 1 ids are there twice; export the table once"
    source.close()


def test_headers_that_are_read_already_stay_as_they_are() -> None:
    assert read_headers({"a": "b"}) == {"a": "b"}
    assert read_headers(b'{"a": "b"}') == {"a": "b"}
    assert read_headers("\\x" + b'{"a": "b"}'.hex()) == {"a": "b"}
    assert read_headers("") == {}

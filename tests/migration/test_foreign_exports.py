"""An export of an NServiceBus table moves into the store, in any order of its rows."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.migration.conftest import Pair, pending
from tests.migration.foreign import SAGA, Foreign, expected, row, rows
from tests.persistence.making import SetClock
from timeoutmgr.errors import ConfigurationError, MigrationRefused
from timeoutmgr.migration import Participants, Window, begin
from timeoutmgr.migration import runs as cutting
from timeoutmgr.migration.foreign.rows import LAYOUTS
from timeoutmgr.migration.foreign.spool import ExportFile


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


def test_a_batch_of_an_export_is_bounded_by_its_bytes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "MOST_BYTES", 1_000)
    path = export(tmp_path / "timeouts.csv", [row(State=bytes(200)) for _ in range(5)])
    source = ExportFile(path, LAYOUTS["nservicebus"], "e", SetClock())

    # As the file spells them: two hexadecimal digits for a byte.
    assert [one.count for one in source.ranges(Window(overdue=True), 3)] == [2, 2, 1]
    source.close()


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


def test_parquet_without_pyarrow_names_the_package_to_install(
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

    def parts() -> Participants:
        endpoint, clock = sqlite_foreign.endpoint, sqlite_foreign.clock
        return sqlite_foreign.parts(ExportFile(path, LAYOUTS["nservicebus"], endpoint, clock))

    first = parts()
    begin(first, sqlite_foreign.terms(first), lambda: f"{sqlite_foreign.endpoint}r")
    first.close()
    export(path, rows(4))
    second = parts()

    with pytest.raises(MigrationRefused, match=r"source was 'timeouts\.csv nservicebus sha256:"):
        begin(second, sqlite_foreign.terms(second), lambda: "another")

    second.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Id,Destination\n1,b\n", "lacks the columns SagaId, State, Time, Headers"),
        (None, "cannot be read: No such file"),
        ('Id,Destination,SagaId,State,Time,Headers\n1,"b\n', "behind row 0: unexpected end"),
        ("Id,Destination,SagaId,State,Time,Headers\n1,b\xff,,,2030-01-01,{}\n", "can't decode"),
        ("Id,Destination,SagaId,State,Time,Headers\n1,b,,,2030-01-01,{},more\n", "more cells"),
        (
            "Id,Destination,SagaId,State,Time,Headers\n1,b,,,2030-01-01,{}\n2,b,,,2030-01-01,{},x\n",
            "behind row 1: a row has more cells",
        ),
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


def test_a_row_whose_headers_are_nested_too_deep_is_a_problem(tmp_path: Path) -> None:
    path = export(tmp_path / "a.csv", [row(Headers="[" * 200_000)])
    source = ExportFile(path, LAYOUTS["nservicebus"], "e", SetClock())

    found = source.survey(Window(overdue=True))

    assert "recursion" in str(found.problems[0])
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

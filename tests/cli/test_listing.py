"""list on a terminal of 80 columns, for programs, and counted; status again and again."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
from contextlib import closing
from typing import Any

import pytest

from tests.cli.programs import Folder, environment
from timeoutmgr import EndpointConfiguration, SendOptions, ToSend
from timeoutmgr.cli.output import cells, table_lines
from timeoutmgr.contracts import Timeout
from timeoutmgr.contracts.reports import COUNTED, LOOKED_AT
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.message import headers
from timeoutmgr.message.instants import distance, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import id_of_timeout
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.transport.sql import SqlTransport

ID = "5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55"
SECOND = 1_000_000
LATER = 4_000_000_000 * SECOND


def endpoint_of(folder: Folder) -> closing[Endpoint]:
    """Return the endpoint of *folder*, on the same file as its commands."""
    url = f"sqlite:///{folder.path / 'timeoutmgr.db'}"
    config = EndpointConfiguration(folder.endpoint)
    config.use_transport(SqlTransport(url))
    config.use_persistence(SqlPersistence(url))
    config.enable_feature(TimeoutManager())
    return closing(Endpoint(config))


@pytest.fixture
def ids(folder: Folder) -> list[str]:
    """Timeouts that are due in about an hour: two Reminders and a Ping."""
    found: list[str] = []
    with endpoint_of(folder) as endpoint:
        endpoint.install()
        endpoint.store_many(
            (
                ToSend(folder.endpoint, kind, {}, SendOptions(delay=3_600 + number))
                for number, kind in enumerate(("Reminder", "Reminder", "Ping"))
            ),
            on_sent=lambda sent: found.extend(str(each.id) for each in sent),
        )
    return found


def on_terminal(folder: Folder, columns: int, *arguments: str) -> list[str]:
    """Run a command on a terminal *columns* wide; return its lines."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "timeoutmgr", *arguments],
        cwd=folder.path,
        env=environment(**folder.variables, TERM="xterm", COLUMNS=str(columns)),
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=subprocess.PIPE,
    )
    os.close(end)
    shown = b""
    try:
        while chunk := os.read(terminal, 65_536):
            shown += chunk
    except OSError:  # Linux ends a terminal that nothing has open any more with EIO
        pass
    os.close(terminal)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    return shown.decode().splitlines()


def test_a_terminal_of_80_columns_shows_whole_ids_and_relative_due_times(
    folder: Folder, ids: list[str]
) -> None:
    header, *rows, total, waiting = on_terminal(folder, 80, "list")

    assert [row.split()[0] for row in rows] == ids
    assert all("in 60 min" in row or "in 59 min" in row for row in rows)
    assert header.split()[:2] == ["id", "due"]
    assert max(map(len, (header, *rows))) <= 80
    assert total == "3 pending"
    assert waiting.endswith("to be stored")


def test_a_narrow_terminal_drops_columns_and_keeps_the_id() -> None:
    columns = ["id", "due", "destination", "type"]
    row = [ID, "in 58 min", "billing", "Reminder"]
    drop = ["type", "destination"]

    def shown(width: int | None) -> list[str]:
        header, line = table_lines(columns, [row], width, drop)
        assert width is None or width < 49 or max(cells(header), cells(line)) <= width
        assert line.startswith(ID)
        return header.split()

    assert shown(None) == columns
    assert shown(70) == columns
    assert shown(69) == ["id", "due", "destination"]
    assert shown(59) == ["id", "due"]
    assert shown(20) == ["id", "due"]


def test_a_column_that_a_table_does_not_have_cannot_be_dropped_from_it() -> None:
    header, line = table_lines(["id", "due"], [[ID, "in 58 min"]], 40, ["failed with", "due"])

    assert (header, line) == ("id", ID)


def test_a_terminal_of_40_columns_lists_timeouts_of_which_none_failed(
    folder: Folder, ids: list[str]
) -> None:
    header, *rows, _total, _waiting = on_terminal(folder, 40, "list")

    assert [row.split()[0] for row in rows] == ids
    assert header.split() == ["id", "due"]


def test_a_long_cell_is_cut_if_no_column_may_be_dropped() -> None:
    header, line = table_lines(["id", "reason"], [[ID, "x" * 100]], 60)

    assert line == ID + "  " + "x" * 21 + "…"
    assert header.startswith("id")


def test_wide_and_combining_characters_keep_the_columns_in_line() -> None:
    lines = list(table_lines(["id", "type"], [["日本", "a"], ["e\u0301e\u0301xy", "b"]], None))

    assert lines == ["id    type", "日本  a", "e\u0301e\u0301xy  b"]


@pytest.mark.parametrize(
    ("due", "text"),
    [
        (0, "in 0 s"),
        (119 * SECOND, "in 119 s"),
        (58 * 60 * SECOND, "in 58 min"),
        (7_199 * SECOND, "in 119 min"),
        (7_200 * SECOND, "in 2 h"),
        (14 * 86_400 * SECOND, "in 14 d"),
        (-1, "0 s ago"),
        (-3 * 3_600 * SECOND, "3 h ago"),
    ],
)
def test_a_due_time_is_shown_as_its_distance_from_now(due: int, text: str) -> None:
    assert distance(1_000 * SECOND + due, 1_000 * SECOND) == text


def test_other_programs_get_tabs_or_json(folder: Folder, ids: list[str]) -> None:
    header, *rows = folder.run("list", "--format", "tsv").stdout.splitlines()
    as_json = folder.run("list", "--format", "json").json()
    both = folder.run("--json", "list", "--format", "tsv")

    assert header.split("\t") == ["id", "due", "destination", "type", "saga", "attempts", "bytes"]
    assert [row.split("\t")[0] for row in rows] == ids
    assert rows[0].split("\t")[1] == as_json["timeouts"][0]["due"]
    assert [each["id"] for each in as_json["timeouts"]] == ids
    assert both.returncode == 2


def test_timeouts_are_counted_by_type_and_by_destination(folder: Folder, ids: list[str]) -> None:
    by_type = folder.run("--json", "list", "--count-by", "type").json()
    by_destination = folder.run("list", "--count-by", "destination").stdout
    some = folder.run("list", "--count-by", "type", "--limit", "2").stdout

    assert by_type == {
        "total": len(ids),
        "counted": 3,
        "by": "type",
        "counts": [{"type": "Reminder", "count": 2}, {"type": "Ping", "count": 1}],
    }
    assert [line.split() for line in by_destination.splitlines()] == [
        ["destination", "count"],
        [folder.endpoint, "3"],
        ["3", "pending"],
    ]
    assert some.splitlines()[-1] == "3 pending, the earliest 2 counted (--limit)"


@pytest.fixture
def many(folder: Folder, ids: list[str]) -> int:
    """More timeouts for ``other`` than a search looks at, behind *ids*; return how many of all."""
    insert = """
        WITH RECURSIVE numbers (n) AS
            (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
        INSERT INTO timeoutmgr_timeouts
            (endpoint, due, id, destination, message_id, headers, body, content_type,
            content_encoding, created, version, attempts)
        SELECT :endpoint, :due + n, 'id' || n, 'other', 'm', '{}', x'', '', '', 0, 0, 0
        FROM numbers
    """
    given = {"count": LOOKED_AT, "endpoint": folder.endpoint, "due": LATER}
    with closing(sqlite3.connect(folder.path / "timeoutmgr.db")) as connection, connection:
        connection.execute(insert, given)
    return LOOKED_AT + len(ids)


def test_a_total_is_exact_only_on_count(folder: Folder, many: int) -> None:
    bounded = folder.run("--json", "list", "--limit", "1").json()
    exact = folder.run("--json", "list", "--limit", "1", "--count").json()
    shown = folder.run("list", "--limit", "1").stdout
    shown_exactly = folder.run("list", "--limit", "1", "--count").stdout

    assert (bounded["total"], bounded["total_is_exact"]) == (COUNTED, False)
    assert exact["total"] == many
    assert "total_is_exact" not in exact
    assert f"{COUNTED}+ pending, 1 shown (--limit)" in shown
    assert f"{many} pending, 1 shown (--limit)" in shown_exactly


def test_a_search_for_a_destination_ends_with_a_cursor_that_continues_it(
    folder: Folder, many: int
) -> None:
    nothing = folder.run("--json", "list", "--destination", "nobody").json()
    shown = folder.run("list", "--destination", "nobody").stdout
    cursor = shown.splitlines()[1].rpartition(" ")[2]
    rest: dict[str, Any] = {"searched_to": cursor}
    while "searched_to" in rest:
        after = ("--after", rest["searched_to"])
        rest = folder.run("--json", "list", "--destination", "nobody", *after).json()
    refused = folder.run("list", "--after", "nonsense")

    assert nothing["timeouts"] == rest["timeouts"] == []
    assert nothing["searched_to"]
    assert "0+ pending" in shown
    assert refused.returncode == 2
    assert "not a cursor" in refused.stderr


def test_status_is_shown_again_until_it_is_interrupted(folder: Folder, ids: list[str]) -> None:
    program = folder.start("--json", "status", "--watch", "--every", "10ms", "--min-processes", "0")
    program.wait_for('"endpoint"', times=3)

    code = program.stop(signal.SIGINT)

    first, _ = json.JSONDecoder().raw_decode("\n".join(program.out))
    assert code == 0, (first["alerts"], program.err)
    assert first["timeouts"]["pending"] == len(ids)


def test_status_before_install_names_the_command_and_makes_no_file(folder: Folder) -> None:
    ended = folder.run("status")
    folder.variables["TIMEOUTMGR_TRANSPORT"] = "amqp://guest:guest@127.0.0.1:1//"
    folder.variables["TIMEOUTMGR_PERSISTENCE"] = f"sqlite:///{folder.path / 'timeoutmgr.db'}"
    away = folder.run("status")

    assert ended.returncode == away.returncode == 4
    (line,) = ended.stderr.splitlines()
    assert line.endswith("run `timeoutmgr install`")
    assert "revision" not in line
    assert "ConnectionRefusedError" in away.stderr
    assert not (folder.path / "timeoutmgr.db").exists()


def test_a_message_that_waits_for_a_retry_is_listed_and_shown_with_its_failure(
    folder: Folder, ids: list[str]
) -> None:
    before = folder.run("list").stdout
    why = {headers.EXCEPTION_TYPE: "shop.NoCard", headers.EXCEPTION_MESSAGE: "order B8\nmore"}
    why[headers.RETRIES_TIMESTAMP] = to_wire(LATER)
    charge = Message(id="charge", headers=why)
    with endpoint_of(folder) as endpoint:
        store = endpoint.parts.features.store
        assert store is not None
        retry = Timeout(
            id=id_of_timeout(endpoint.name, charge),
            due=store.now() + 60 * SECOND,
            destination=endpoint.name,
            message=charge,
        )
        store.store_many([retry])

    listed = folder.run("list").stdout.splitlines()
    shown = folder.run("--json", "show", charge.id).json()
    document = folder.run("--json", "list").json()["timeouts"]

    assert "failed with" not in before
    assert listed[0].endswith("failed with")
    assert [line.endswith("NoCard: order B8") for line in listed[1:5]] == [True, *[False] * 3]
    assert (shown["id"], shown["waits_for"]) == (retry.id, "a retry")
    assert (shown["exception"], shown["reason"]) == ("shop.NoCard", "order B8\nmore")
    assert [each.get("exception") for each in document] == ["shop.NoCard", None, None, None]

"""errors list, show, retry, delete, export: the error queue by the errors that fill it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.programs import Folder, wait_until
from timeoutmgr.contracts import SendResult, TransportSession
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.sql import SqlTransport


def failed(number: int, exception: str, kind: str, queue: str) -> Message:
    return Message(
        id=f"m{number}",
        body=b'{"n": %d}' % number,
        headers={
            headers.ENCLOSED_MESSAGE_TYPES: kind,
            headers.FAILED_QUEUE: queue,
            headers.EXCEPTION_TYPE: exception,
            headers.EXCEPTION_MESSAGE: f"reason {number}\nmore",
            headers.EXCEPTION_STACK: f"Traceback\n  line {number}",
            headers.TIME_OF_FAILURE: f"2030-01-01 {number:02}:00:00:000000 Z",
            "own": "kept",
        },
    )


@pytest.fixture(params=["sqlite", "rabbitmq"])
def filled(request: pytest.FixtureRequest, folder: Folder, unique: str) -> Iterator[Folder]:
    """An endpoint with five messages in its error queue."""
    error_queue = f"{unique}.error"
    folder.variables["TIMEOUTMGR_ERROR_QUEUE"] = error_queue
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbitmq_url")
        folder.variables["TIMEOUTMGR_TRANSPORT"] = url
        folder.variables["TIMEOUTMGR_PERSISTENCE"] = f"sqlite:///{folder.path / 'store.db'}"
        transport: KombuTransport | SqlTransport = KombuTransport(url)
    else:
        transport = SqlTransport(f"sqlite:///{folder.path / 'timeoutmgr.db'}")
        transport.install()
    with closing(transport), closing(transport.session()) as session:
        session.create_queues([unique, error_queue])
        put(session, unique, error_queue)
        yield folder
        session.delete_queues([unique, error_queue])


def put(session: TransportSession, unique: str, error_queue: str) -> None:
    messages = [
        failed(1, "builtins.KeyError", "Order", unique),
        failed(2, "shop.errors.TooMany", "Order", unique),
        failed(3, "builtins.KeyError", "Order", unique),
        failed(4, "builtins.KeyError", "Ping", f"{unique}.elsewhere"),
        Message(id="stray", body=b"\xff"),
    ]
    sent = session.send([Outgoing(error_queue, each) for each in messages])
    assert sent == [SendResult.CONFIRMED] * len(messages)


def listed(folder: Folder, *filters: str) -> list[str]:
    ended = folder.run("--json", "errors", "list", *filters)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return [each["message_id"] for each in ended.json()["messages"]]


def test_messages_are_grouped_by_exception_and_message_type(filled: Folder) -> None:
    found = filled.run("--json", "errors", "list", "--groups").json()
    shown = filled.run("errors", "list").stdout

    groups = [(each["count"], each["exception"], each["type"]) for each in found["groups"]]
    assert groups == [
        (2, "builtins.KeyError", "Order"),
        (1, None, None),
        (1, "builtins.KeyError", "Ping"),
        (1, "shop.errors.TooMany", "Order"),
    ]
    assert found["groups"][0]["newest"] == "2030-01-01T03:00:00+00:00"
    assert (found["total"], "messages" in found) == (5, False)
    assert "shop.errors.TooMany" in shown
    assert shown.splitlines()[-1] == "5 in the error queue"


def test_filters_select_messages_and_a_list_changes_no_message(filled: Folder) -> None:
    unique = filled.endpoint

    assert listed(filled, "--exception", "KeyError") == ["m1", "m3", "m4"]
    assert listed(filled, "--exception", "shop.errors.TooMany") == ["m2"]
    assert listed(filled, "--type", "Ping", "--reason", "REASON 4") == ["m4"]
    assert listed(filled, "--queue", unique) == ["m1", "m2", "m3"]
    assert listed(filled, "--since", "2030-01-01T02:00Z", "--until", "2030-01-01T04:00Z") == [
        "m2",
        "m3",
    ]
    assert listed(filled, "--id", "m1", "--id", "stray") == ["m1", "stray"]
    assert listed(filled, "--exception", "KeyError", "--limit", "1") == ["m1"]
    assert listed(filled) == ["m1", "m2", "m3", "m4", "stray"]


def test_a_limit_above_any_number_of_messages_selects_all(filled: Folder) -> None:
    beyond = str(sys.maxsize + 1)

    exported = filled.run("errors", "export", "--limit", beyond)
    dry = filled.run("--json", "errors", "retry", "--dry-run", "--limit", beyond)

    assert (exported.returncode, len(exported.stdout.splitlines())) == (0, 5)
    assert len(dry.json()["messages"]) == 5


def test_a_message_is_shown_with_its_traceback_and_body(filled: Folder) -> None:
    shown = filled.run("errors", "show", "m2", "--body")
    (document,) = filled.run("--json", "errors", "show", "stray", "--body").json()["messages"]
    missing = filled.run("errors", "show", "m9")

    assert shown.returncode == 0
    assert "Traceback\n  line 2" in shown.stdout
    assert "  own: kept" in shown.stdout
    assert '{"n": 2}' in shown.stdout
    assert document["body_base64"] == "/w=="
    assert (missing.returncode, missing.stdout) == (3, "the error queue holds no message m9\n")


def test_chosen_messages_are_retried_after_a_dry_run_that_moves_nothing(filled: Folder) -> None:
    chosen = ("--exception", "KeyError", "--type", "Order")

    dry = filled.run("--json", "errors", "retry", *chosen, "--dry-run")
    untouched = listed(filled)
    done = filled.run("--json", "errors", "retry", *chosen)
    none = filled.run("errors", "retry", *chosen)

    assert [each["result"] for each in dry.json()["messages"]] == ["would_retry"] * 2
    assert untouched == ["m1", "m2", "m3", "m4", "stray"]
    assert (done.returncode, none.returncode) == (0, 3)
    assert [(each["message_id"], each["result"]) for each in done.json()["messages"]] == [
        ("m1", "retried"),
        ("m3", "retried"),
    ]
    assert listed(filled) == ["m2", "m4", "stray"]


def test_a_retry_that_fails_for_a_message_keeps_it_and_ends_with_1(filled: Folder) -> None:
    ended = filled.run("--json", "errors", "retry", "--all")

    results = {each["message_id"]: each["result"] for each in ended.json()["messages"]}
    assert ended.returncode == 1
    assert results == {
        **dict.fromkeys(("m1", "m2", "m3"), "retried"),
        "m4": "unroutable",
        "stray": "names_no_queue",
    }
    assert listed(filled) == ["m4", "stray"]


def test_chosen_messages_are_deleted_after_a_dry_run_that_deletes_nothing(filled: Folder) -> None:
    dry = filled.run("errors", "delete", "--type", "Order", "--dry-run")
    untouched = listed(filled)
    done = filled.run("errors", "delete", "--type", "Order", "--limit", "2")
    rest = filled.run("errors", "delete", "--all")

    assert dry.stdout.splitlines()[-1] == "3 would be deleted"
    assert untouched == ["m1", "m2", "m3", "m4", "stray"]
    assert done.stdout.splitlines()[-1] == "2 deleted"
    assert rest.stdout.splitlines()[-1] == "3 deleted"
    assert listed(filled) == []
    assert filled.run("errors", "delete", "--all").returncode == 3


@pytest.mark.parametrize("filled", ["sqlite"], indirect=True)
def test_a_retry_and_a_deletion_are_in_the_audit_and_a_dry_run_is_not(filled: Folder) -> None:
    chosen = ("--exception", "KeyError", "--type", "Order")
    assert filled.run("install").returncode == 0
    filled.run("errors", "retry", *chosen, "--dry-run")

    filled.run("errors", "retry", *chosen)
    filled.run("errors", "delete", "--exception", "TooMany")

    rows = filled.run("--json", "audit", "list").json()["audit"]
    changes = [(row["action"], row["outcome"], row["changed"], row["channel"]) for row in rows]
    assert changes == [
        *(("retry-failed", "started", None, "cli"), ("retry-failed", "done", 2, "cli")),
        *(("delete-failed", "started", None, "cli"), ("delete-failed", "done", 1, "cli")),
    ]
    exceptions = [row["selection"]["exception"] for row in rows]
    assert exceptions == ["KeyError"] * 2 + ["TooMany"] * 2


def test_messages_are_exported_whole_and_stay(filled: Folder, tmp_path: Path) -> None:
    target = tmp_path / "errors.jsonl"

    ended = filled.run("errors", "export", "--type", "Order", "--output", str(target))
    printed = filled.run("errors", "export", "--id", "m4").stdout

    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert ended.returncode == 0
    assert [each["message_id"] for each in lines] == ["m1", "m2", "m3"]
    assert lines[0]["headers"]["own"] == "kept"
    assert lines[0]["body_base64"] == "eyJuIjogMX0="
    assert json.loads(printed)["message_id"] == "m4"
    assert len(listed(filled)) == 5


def test_an_export_replaces_no_file_and_leaves_no_empty_file(
    filled: Folder, tmp_path: Path
) -> None:
    target, empty = tmp_path / "errors.jsonl", tmp_path / "empty.jsonl"
    filled.run("errors", "export", "--id", "m1", "--output", str(target))
    before = target.read_text()

    again = filled.run("errors", "export", "--output", str(target))
    without_any = filled.run("errors", "export", "--id", "m99", "--output", str(empty))

    assert (again.returncode, without_any.returncode) == (2, 3), again.stderr
    assert f"--output {target} is there" in again.stderr
    assert target.read_text() == before
    assert not empty.exists()


def test_an_export_into_a_folder_that_is_missing_is_a_usage_error(filled: Folder) -> None:
    ended = filled.run("errors", "export", "--output", "missing/errors.jsonl")

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "--output missing/errors.jsonl cannot be written (No such file" in ended.stderr


def test_an_export_into_a_device_or_to_standard_output_is_written(filled: Folder) -> None:
    device = filled.run("errors", "export", "--id", "m1", "--output", "/dev/null")
    printed = filled.run("errors", "export", "--id", "m1", "--output", "-")

    assert (device.returncode, printed.returncode) == (0, 0), device.stderr + printed.stderr
    assert json.loads(printed.stdout)["message_id"] == "m1"


def test_a_limited_retry_counts_the_selected_messages_alone(filled: Folder) -> None:
    ended = filled.run("retry", "--limit", "1")

    last = ended.stdout.splitlines()[-1]
    assert last.startswith("1 retried, 0 of the selected messages stay in ")
    assert len(listed(filled)) == 4


@pytest.mark.parametrize("command", ["retry", "delete"])
def test_a_change_needs_a_selection(filled: Folder, command: str) -> None:
    none = filled.run("errors", command)
    both = filled.run("errors", command, "--all", "--type", "Order")

    assert (none.returncode, both.returncode) == (2, 2)
    assert "select messages: --all" in none.stderr
    assert len(listed(filled)) == 5


def test_a_handler_that_fails_is_found_by_its_class_and_shown_with_its_traceback(
    folder: Folder,
) -> None:
    program = folder.start("run", "--app", "app:config")
    program.wait_for("runs")
    folder.run("send", folder.endpoint, "Fragile", "{}", "--id", "m1")
    wait_until(lambda: listed(folder, "--exception", "ValueError") == ["m1"], "it has failed")

    shown = folder.run("errors", "show", "m1").stdout
    program.stop()

    assert 'raise ValueError("broken as yet")' in shown
    assert any("ERROR" in line and "ValueError: broken as yet" in line for line in program.err)
    assert any(line.endswith('raise ValueError("broken as yet")') for line in program.err)

"""send, list, show, reschedule, send-now, cancel, status: the life of a timeout from the shell."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from tests.cli.programs import Folder, Program, wait_until
from timeoutmgr.clock import SystemClock
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.message.instants import LATEST
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import clear_timeouts
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.sql import SqlTransport


@pytest.fixture
def running(folder: Folder) -> Program:
    program = folder.start("run", "--app", "app:config")
    program.wait_for("runs")
    return program


def send(folder: Folder, *more: str) -> str:
    """Send a message that is due in an hour, wait until it is stored; return its timeout id."""
    sent = folder.run("--json", "send", folder.endpoint, "Hello", '{"n": 1}', *more)
    assert sent.returncode == 0, sent.stderr
    timeout_id: str = sent.json()["id"]
    wait_until(
        lambda: folder.run("--json", "show", timeout_id).returncode == 0, "the timeout is stored"
    )
    return timeout_id


def test_a_timeout_is_sent_listed_shown_moved_and_cancelled(
    folder: Folder, running: Program
) -> None:
    timeout_id = send(
        folder, "--at", "2090-01-31T10:00:00+01:00", "--saga", "s1", "--header", "a=b"
    )

    listed = folder.run("list", "--json", "--saga", "s1").json()
    first = folder.run("--json", "show", timeout_id, "--body")
    assert first.returncode == 0, first.stdout
    shown = first.json()
    moved = folder.run("--json", "reschedule", timeout_id, "--at", "2091-01-01T00:00Z")
    after = folder.run("--json", "show", timeout_id).json()
    status = folder.run("--json", "status").json()
    cancelled = folder.run("--json", "cancel", timeout_id)
    again = folder.run("--json", "cancel", timeout_id, "nobody")

    assert [(each["id"], each["due"]) for each in listed["timeouts"]] == [
        (timeout_id, "2090-01-31T09:00:00+00:00")
    ]
    assert (shown["body"], shown["saga"], shown["headers"]["a"]) == ('{"n": 1}', "s1", "b")
    assert (moved.returncode, moved.json()["result"]) == (0, "changed")
    assert after["due"] == "2091-01-01T00:00:00+00:00"
    assert status["timeouts"]["pending"] == 1
    assert status["queues"][folder.endpoint] == 0
    assert (cancelled.returncode, cancelled.json()) == (0, {"results": {timeout_id: "cancelled"}})
    assert again.returncode == 0
    assert again.json()["results"]["nobody"] == "will_be_cancelled"
    assert folder.run("--json", "list").json() == {"total": 0, "waiting": 0, "timeouts": []}
    assert running.out == []


def test_send_now_dispatches_at_once_and_a_second_send_now_is_too_late(
    folder: Folder, running: Program
) -> None:
    timeout_id = send(folder, "--delay", "1h")

    first = folder.run("send-now", timeout_id)

    running.wait_for("handled {'n': 1}")
    second = folder.run("send-now", timeout_id)
    assert (first.returncode, first.stdout.split()) == (0, [timeout_id, "changed"])
    assert (second.returncode, second.stdout.split()) == (3, [timeout_id, "too_late"])


def test_all_timeouts_of_a_saga_are_cancelled(folder: Folder, running: Program) -> None:
    send(folder, "--delay", "1h", "--saga", "s1")
    other = send(folder, "--delay", "1h")

    done = folder.run("cancel-saga", "s1")
    none = folder.run("cancel-saga", "s1")

    assert (done.returncode, done.stdout) == (0, "1 cancelled\n")
    assert none.returncode == 3
    left = folder.run("--json", "list").json()["timeouts"]
    assert [each["id"] for each in left] == [other]
    assert running.process.poll() is None


@pytest.mark.behaviour(138)
def test_pending_timeouts_are_rerouted(folder: Folder, running: Program) -> None:
    timeout_id = send(folder, "--delay", "1h")

    unsaid = folder.run("reroute", "stock")
    refused = folder.run("reroute", f"{folder.endpoint}.Timeouts", "--all")
    missing = folder.run("reroute", "stock", "--all")
    url = f"sqlite:///{folder.path / 'timeoutmgr.db'}"
    with closing(SqlTransport(url)) as transport, closing(transport.session()) as session:
        session.create_queues(["stock"], error_queue="error")
    looked = folder.run("--json", "reroute", "stock", "--all", "--dry-run")
    done = folder.run("--json", "reroute", "stock", "--destination", folder.endpoint)

    assert unsaid.returncode == 2
    assert "belongs to the broker or to a timeout manager" in refused.stderr
    assert "'stock'" in missing.stderr
    assert (looked.returncode, looked.json()["rerouted"], looked.json()["dry_run"]) == (0, 1, True)
    assert (done.returncode, done.json()["rerouted"], done.json()["left"]) == (0, 1, 0)
    listed = folder.run("--json", "list").json()["timeouts"]
    assert [(each["id"], each["destination"]) for each in listed] == [(timeout_id, "stock")]


def test_show_names_the_channel_of_a_cancel(folder: Folder, running: Program) -> None:
    by_command = send(folder, "--delay", "1h")
    by_saga = send(folder, "--delay", "1h", "--saga", "s1")
    by_message = send(folder, "--delay", "1h", "--saga", "s2")
    by_api = send(folder, "--delay", "1h")
    order = clear_timeouts("s2", f"{folder.endpoint}.Timeouts", "forged", LATEST)
    url = f"sqlite:///{folder.path / 'timeoutmgr.db'}"
    with closing(SqlTransport(url)) as transport, closing(transport.session()) as session:
        session.send([order])
    with closing(SqlPersistence(url)) as persistence:
        store = persistence.timeouts(folder.endpoint, SystemClock())
        Timeouts(store, lambda _due: None).cancel(by_api)

    folder.run("cancel", by_command)
    folder.run("cancel-saga", "s1")

    def channel(timeout_id: str) -> str | None:
        history = folder.run("--json", "show", timeout_id).json()["history"]
        found: str | None = history[-1]["channel"] if history else None
        return found

    wait_until(lambda: channel(by_message) is not None, "the saga is cleared")
    queue = f"queue '{folder.endpoint}.Timeouts', message 'forged'"
    assert channel(by_message) == queue
    assert (channel(by_command), channel(by_saga), channel(by_api)) == ("cli", "cli", "api")
    shown = folder.run("show", by_message).stdout
    assert "cancelled" in shown
    assert f"by {queue}" in shown
    assert running.process.poll() is None


def test_living_processes_are_shown_with_their_breakers(folder: Folder, running: Program) -> None:
    def processes() -> list[dict[str, object]]:
        found: list[dict[str, object]] = folder.run("--json", "status").json()["processes"]
        return found

    wait_until(lambda: bool(processes()), "a heartbeat")
    (process,) = processes()

    assert process["pid"] == running.process.pid
    breakers = process["breakers"]
    assert isinstance(breakers, dict)
    assert breakers["TimeoutStorageConnectivity"] == "disarmed"


def test_a_failed_message_is_retried_from_the_error_queue(folder: Folder, running: Program) -> None:
    sent = folder.run("--json", "send", folder.endpoint, "Fragile", '{"n": 2}', "--id", "m1")
    folder.run("send", folder.endpoint, "Fragile", '{"n": 3}', "--id", "m2")

    def errors() -> int:
        count: int = folder.run("--json", "status").json()["queues"]["error"]
        return count

    wait_until(lambda: errors() == 2, "two messages in the error queue")

    looked = folder.run("retry", "--all", "--dry-run", "--json").json()
    folder.write("mended", "")
    retried = folder.run("--json", "retry", "--id", "m1")

    assert sent.returncode == 0
    assert sorted(
        (each["message_id"], each["queue"], each["result"], each["failed_with"])
        for each in looked["messages"]
    ) == [
        ("m1", folder.endpoint, "would_retry", "broken as yet"),
        ("m2", folder.endpoint, "would_retry", "broken as yet"),
    ]
    assert retried.returncode == 0, retried.stderr
    running.wait_for("handled {'n': 2}")
    assert errors() == 1
    last = folder.run("retry", "--all").stdout.splitlines()[-1]
    assert last == "1 retried, 0 of the selected messages stay in error"
    running.wait_for("handled {'n': 3}")
    assert folder.run("retry", "--all").returncode == 3


def test_a_message_without_a_queue_name_stays_in_the_error_queue_and_is_reported(
    folder: Folder,
) -> None:
    folder.run("install")
    url = f"sqlite:///{folder.path / 'timeoutmgr.db'}"
    with closing(SqlTransport(url)) as transport, closing(transport.session()) as session:
        session.send([Outgoing("error", Message(id="stray"))])

    ended = folder.run("--json", "retry", "--all")

    assert ended.returncode == 1
    (message,) = ended.json()["messages"]
    assert (message["message_id"], message["result"]) == ("stray", "names_no_queue")
    assert folder.run("--json", "status").json()["queues"]["error"] == 1


def test_a_body_from_standard_input_arrives_byte_by_byte(folder: Folder, running: Program) -> None:
    body = b"\x00\xff not text"
    sent = folder.run(
        *("--json", "send", folder.endpoint, "Raw", "-"),
        *("--content-type", "application/octet-stream", "--delay", "1h"),
        stdin=body,
    )
    timeout_id = sent.json()["id"]
    wait_until(lambda: folder.run("show", timeout_id).returncode == 0, "it is stored")

    shown = folder.run("--json", "show", timeout_id, "--body").json()

    assert (shown["bytes"], shown["body_base64"]) == (len(body), "AP8gbm90IHRleHQ=")
    assert running.process.poll() is None


def test_a_body_of_an_argument_keeps_bytes_that_are_not_utf_8(
    folder: Folder, running: Program
) -> None:
    sent = folder.run(
        *("--json", "send", folder.endpoint, "Raw", "\udcffa"),
        *("--content-type", "text/plain", "--delay", "1h"),
    )
    timeout_id = sent.json()["id"]
    wait_until(lambda: folder.run("show", timeout_id).returncode == 0, "it is stored")

    assert folder.run("--json", "show", timeout_id, "--body").json()["body_base64"] == "/2E="


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["{endpoint}", "T", "{{}}", "--at", "2030-01-01T00:00:00"], 2, "has no time zone"),
        (["{endpoint}", "T", "{{}}", "--at", "tomorrow"], 2, "expected ISO 8601"),
        (["{endpoint}", "T", "{{}}", "--delay", "-1"], 2, "never negative"),
        (["{endpoint}", "T", "{{}}", "--delay", "1h", "--at", "2090-01-01T00Z"], 2, "exclude"),
        (["{endpoint}", "T", "not json"], 2, "BODY is not JSON"),
        (["{endpoint}", "T", "\udcff"], 2, "BODY is not JSON: 'utf-8' codec"),
        (["{endpoint}", "T", "[NaN]"], 2, "BODY is not JSON: it has no NaN"),
        (["{endpoint}", "T", "{{}}", "--header", "novalue"], 2, "expected NAME=VALUE"),
        (["{endpoint}", "T", "{{}}", *("--header", "a=1") * 2], 2, "--header gives 'a' twice"),
        (["{endpoint}", "T", "{{}}", "--content-type", ""], 2, "a content type is printable"),
        (["{endpoint}.Timeouts", "T", "{{}}"], 2, "belongs to the broker or to a timeout manager"),
        (["nowhere", "T", "{{}}"], 3, "there is no queue 'nowhere'"),
        (["nowhere", "T", "{{}}", "--delay", "1h"], 3, "there is no queue 'nowhere'"),
    ],
)
def test_bad_input_is_one_error_line_with_its_exit_code(
    folder: Folder, arguments: list[str], code: int, sentence: str
) -> None:
    folder.run("install")
    arguments = [each.format(endpoint=folder.endpoint) for each in arguments]

    ended = folder.run("send", *arguments)
    as_json = folder.run("--json", "send", *arguments)

    assert ended.returncode == as_json.returncode == code
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert sentence in errors[0]
    assert sentence in json.loads(as_json.stdout)["error"]
    assert as_json.json()["exit_code"] == code


def test_without_an_installation_the_error_names_the_command_and_creates_no_file(
    folder: Folder,
) -> None:
    ended = folder.run("list")

    assert ended.returncode == 4
    assert "run `timeoutmgr install`" in ended.stderr
    assert not (folder.path / "timeoutmgr.db").exists()

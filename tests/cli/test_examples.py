"""The examples of the help, which the pages of commands repeat, run as they stand there.

They run in a folder whose endpoint has what they name: a timeout, failed messages, dead letters,
journal copies, and a schedule. The jobs of the pipeline run in `tests/pipeline`, with Spark.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import closing
from inspect import cleandoc
from pathlib import Path
from typing import Final

import click
import pytest

from chaos.forkserver_client import ForkServer
from tests.cli.commands import COMMANDS
from tests.cli.programs import Folder, wait_until
from tests.deadletter.making import a_stored_copy
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.main import cli
from timeoutmgr.contracts import SendResult
from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass
from timeoutmgr.database import Database
from timeoutmgr.deadletter import DeadLetterStore
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing

TIMEOUT: Final = "5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55"
"""The id of a timeout in the examples; the timeout of the folder takes its place."""
COPY: Final = "6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11"
"""The id of copies in the examples and in the folder."""
SETTINGS: Final = """\
endpoint = "sales"
features = ["timeout-manager", "dead-letter-queues"]
check_destinations = false
error_queue = "sales.error"

[dead-letter-queues]
node = "n1"

[recurring.daily-report]
type = "Hello"
every = "1 day at 06:00 Europe/Berlin"
"""
TIMEOUT_OPTIONS: Final = ("--at", "2030-03-01T09:00Z", "--saga", "order-7")
OLD: Final[Micros] = 1_700_000_000_000_000
RUN_ELSEWHERE: Final = {
    ("run",): "tests/cli/test_run.py",
    ("status", "--watch"): "tests/cli/test_alerts.py",
    ("migrate",): "tests/cli/test_migrate.py",
    ("pipeline",): "tests/pipeline/spark",
    ("runs", "apply"): "tests/cli/test_changes.py",
    ("runs", "undo"): "tests/cli/test_changes.py",
    ("audit", "--heads"): "tests/cli/test_changes.py",
    ("web",): "tests/cli/test_web.py",
    ("top",): "tests/cli/test_top.py",
}
"""Examples that run until they are stopped, or need more than the folder has, and their tests."""
SAYS_NO: Final = {
    "timeoutmgr doctor": (Exit.FAILED, "no process of the endpoint runs"),
    "timeoutmgr --json doctor": (Exit.FAILED, "no process of the endpoint runs"),
    "timeoutmgr doctor --max-overdue 5m --max-errors 10 --min-processes 2": (
        *(Exit.FAILED, "no process of the endpoint runs"),
    ),
    "timeoutmgr --json status": (Exit.FAILED, "a message waits in the error queue"),
    "timeoutmgr --json status --max-overdue 5m --max-errors 10": (
        *(Exit.FAILED, "no process of the endpoint runs"),
    ),
    "timeoutmgr status": (Exit.FAILED, "a message waits in the error queue"),
    "timeoutmgr cancel --label tenant=acme": (Exit.NOT_FOUND, "no timeout has the label"),
    "timeoutmgr uninstall timeout-manager": (Exit.CONFIGURATION, "the feature is enabled here"),
    "timeoutmgr uninstall timeout-manager --dry-run": (
        *(Exit.CONFIGURATION, "the feature is enabled here"),
    ),
    'timeoutmgr resume --endpoint --reason "the freeze is over"': (
        *(Exit.NOT_FOUND, "it is not paused"),
    ),
    "timeoutmgr resume billing": (Exit.NOT_FOUND, "it is not paused"),
    "timeoutmgr recurring remove daily-report": (Exit.CONFIGURATION, "it is configured here"),
}
"""Examples that find something or are refused in this folder: exit code and reason."""


def _of(command: click.Command) -> Iterator[str]:
    """Yield the examples of a command and, of a group, those of its commands."""
    _, _, text = cleandoc(command.help or "").replace("\b\n", "").partition("Examples:\n")
    yield from (line.strip() for line in text.strip().splitlines())
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _of(inner)


EXAMPLES: Final = sorted(
    {example for command in (cli, *COMMANDS.values()) for example in _of(command)}
)


def _is_run_elsewhere(example: str) -> bool:
    words = example.split()
    return any(all(word in words for word in some) for some in RUN_ELSEWHERE)


@pytest.fixture(scope="session")
def prepared(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[Folder, str]]:
    """A folder with all that the examples name, and the id of its timeout; tests copy it."""
    folder = Folder(tmp_path_factory.mktemp("examples"), "sales", fork_server)
    folder.write("timeoutmgr.toml", SETTINGS)
    folder.write("sales.toml", SETTINGS)
    folder.write("report.csv", "a,b\n1,2\n")
    for command in (["install"], ["recurring", "pause", "daily-report"]):
        ended = folder.run(*command)
        assert ended.returncode == 0, ended.stderr
    timeout = _stored_timeout(folder)
    _put_failed_messages(folder)
    _put_copies(folder)
    yield folder, timeout
    folder.close()


def _stored_timeout(folder: Folder) -> str:
    """Store a timeout, and return its id."""
    sent = folder.run("--json", "send", "billing", "PaymentOverdue", "{}", *TIMEOUT_OPTIONS).json()
    worker = folder.start("run")
    wait_until(lambda: folder.run("show", sent["id"]).returncode == 0, "the timeout is stored")
    assert worker.stop() == 0
    return str(sent["id"])


def _put_failed_messages(folder: Folder) -> None:
    with (
        closing(transport_from_url(f"sqlite:///{folder.path / 'timeoutmgr.db'}")) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues(["billing", "billing-eu", "billing.old"])
        sent = session.send(
            [
                Outgoing("sales.error", _failed(COPY, "sales")),
                Outgoing("sales.error", _failed("m2", "billing")),
                Outgoing("billing.old", Message(id="m3", body=b"{}")),
            ]
        )
        assert sent == [SendResult.CONFIRMED] * 3


def _failed(message_id: str, queue: str) -> Message:
    return Message(
        id=message_id,
        body=b"{}",
        headers={
            headers.ENCLOSED_MESSAGE_TYPES: "Ping",
            headers.FAILED_QUEUE: queue,
            headers.EXCEPTION_TYPE: "builtins.KeyError",
            headers.EXCEPTION_MESSAGE: "'customer'",
            headers.EXCEPTION_STACK: "Traceback",
            headers.TIME_OF_FAILURE: "2029-12-31 09:00:00:000000 Z",
        },
    )


def _put_copies(folder: Folder) -> None:
    store = DeadLetterStore(Database(f"sqlite:///{folder.path / 'timeoutmgr.db'}"))
    manager = QueueManager(store=store, node="n1")
    normal = MessageClass.NORMAL
    sent = a_stored_copy(COPY, kept=OLD, message_class=normal, journal=JournalLevel.JOURNAL)
    manager.place(a_stored_copy(COPY, kept=OLD))
    manager.journal(sent, target=False)
    store.close()


@pytest.mark.parametrize("example", [one for one in EXAMPLES if not _is_run_elsewhere(one)])
def test_an_example_runs_as_it_stands(
    prepared: tuple[Folder, str], fork_server: ForkServer, tmp_path: Path, example: str
) -> None:
    folder, timeout = prepared
    shutil.copytree(folder.path, tmp_path, dirs_exist_ok=True)
    program, *words = shlex.split(example.replace(TIMEOUT, timeout))
    stdin = b""
    if "<" in words:
        words, [_, name] = words[: words.index("<")], words[words.index("<") :]
        stdin = (tmp_path / name).read_bytes()
    if ">" in words:
        words = words[: words.index(">")]

    ended = Folder(tmp_path, "sales", fork_server).run(*words, stdin=stdin)

    assert program == "timeoutmgr"
    assert "Traceback (most" not in ended.stderr
    expected, _reason = SAYS_NO.get(example, (Exit.OK, ""))
    assert ended.returncode == expected, ended.stdout + ended.stderr


@pytest.mark.parametrize("test", RUN_ELSEWHERE.values())
def test_an_example_that_runs_elsewhere_has_its_test(test: str) -> None:
    assert (Path(__file__).parents[2] / test).exists()

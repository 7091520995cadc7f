"""The commands on an endpoint whose delayed messages rest in a delayed message store."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.cli.programs import Folder, wait_until
from tests.persistence.making import timeout
from timeoutmgr import TransactionMode
from timeoutmgr.clock import SystemClock
from timeoutmgr.persistence import SqlDelayedMessageStore

SETTINGS = """\
endpoint = "{endpoint}"
[delayed_delivery]
store = "sqlite:///timeoutmgr.db"
number_of_retries = 1
"""


@pytest.fixture
def delayed(folder: Folder) -> Folder:
    folder.write("timeoutmgr.toml", SETTINGS.format(endpoint=folder.endpoint))
    return folder


def test_install_makes_the_doctor_accept_a_delayed_store(delayed: Folder) -> None:
    before = delayed.run("doctor")
    installed = delayed.run("--json", "install")
    after = delayed.run("--json", "doctor")

    assert before.returncode == 1
    assert "run `timeoutmgr install`" in before.stdout
    assert installed.json()["delayed message store"] == "sqlite"
    assert sorted(installed.json()["queues"]) == sorted(
        [delayed.endpoint, f"{delayed.endpoint}.timeouts", "error"]
    )
    assert after.returncode == 0, after.stdout
    checks = {each["check"]: each for each in after.json()["findings"]}
    assert checks["delayed message store"]["level"] == "ok"
    assert checks["clock"]["level"] == "ok"
    assert "differ by" in checks["clock"]["text"]
    assert checks["destinations"]["text"] == "all 0 of pending timeouts exist"


def test_the_printed_ddl_creates_the_table_of_the_store(delayed: Folder) -> None:
    ended = delayed.run("install", "--sql")

    assert ended.returncode == 0, ended.stderr
    connection = sqlite3.connect(delayed.path / "made.db")
    connection.executescript(ended.stdout)
    connection.execute(f'SELECT next_try, id FROM "{delayed.endpoint}.delayed"')
    connection.close()


def test_a_running_endpoint_stores_delayed_messages_and_status_counts_them(delayed: Folder) -> None:
    delayed.run("install")
    program = delayed.start("run")
    delayed.run("send", delayed.endpoint, "Hello", "{}", "--delay", "1h")

    wait_until(lambda: _pending(delayed) == 1, "one is pending")

    assert delayed.run("status").returncode == 0
    listed = delayed.run("list")
    assert listed.returncode == 4
    assert "cannot list or change" in listed.stderr
    assert program is not None


def test_the_doctor_checks_the_destinations_of_stored_messages(delayed: Folder) -> None:
    delayed.run("install")
    store = SqlDelayedMessageStore(f"sqlite:///{delayed.path / 'timeoutmgr.db'}")
    with closing(store):
        store.initialize(delayed.endpoint, TransactionMode.TRANSACTION_SCOPE)
        far = SystemClock().now() + 3_600_000_000
        undeliverable = [timeout(f"gone{n}", far, destination="gone") for n in range(2)]
        store.store_many([*undeliverable, timeout("fine", far, destination=delayed.endpoint)])

    ended = delayed.run("--json", "doctor")

    assert ended.returncode == 1
    [found] = [each for each in ended.json()["findings"] if each["check"] == "destinations"]
    assert found["level"] == "fail"
    assert found["text"] == "2 pending timeouts are for 'gone', which does not exist"


def _pending(folder: Folder) -> int | None:
    found: int | None = folder.run("--json", "status").json()["timeouts"]["pending"]
    return found

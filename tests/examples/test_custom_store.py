"""The example of a custom store, which has the single form only, keeps its promises."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.delayed import DelayedParty
from tests.acceptance.matrix import Pair
from tests.acceptance.place import Place, stopping
from tests.persistence.making import NOW, timeout
from tests.support.examples import EXAMPLES, custom_store
from tests.support.waiting import eventually
from timeoutmgr import TransactionMode
from timeoutmgr.errors import ConfigurationError, StorageUnavailable
from timeoutmgr.message import headers

ROOT = Path(__file__).parents[2]
FOLDER = EXAMPLES / "custom_store"
SECOND = 1_000_000
RECEIVE = TransactionMode.RECEIVE_ONLY


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = custom_store(tmp_path)
    made.initialize("sales", RECEIVE)
    return made


def test_it_runs() -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    ended = subprocess.run(
        [sys.executable, str(FOLDER / "run.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:3] == [
        "arrived: after 0.3 s",
        "arrived: after 0.6 s",
        "arrived: after 0.9 s",
    ]


@pytest.mark.behaviour(85, 86)
def test_a_fetched_message_is_locked_until_the_transaction_ends(store: Any) -> None:
    one, two = timeout("one", NOW - 2 * SECOND), timeout("two", NOW - SECOND)
    store.store(two)
    store.store(one)

    with store.transaction() as mine, store.transaction() as theirs:
        assert store.fetch_next_due_timeout(NOW, transaction=mine).id == "one"
        assert store.fetch_next_due_timeout(NOW, transaction=theirs).id == "two"
        assert store.fetch_next_due_timeout(NOW, transaction=theirs) is None
        assert not store.remove(one, transaction=theirs)
        assert store.remove(one, transaction=mine)

    with store.transaction() as again:
        assert store.fetch_next_due_timeout(NOW, transaction=again).id == "two"
    assert store.next() == two.due
    assert store.remove(two)
    assert store.next() is None


@pytest.mark.behaviour(90, 92)
def test_a_failure_puts_a_message_off(store: Any) -> None:
    store.store(timeout("one", NOW))

    assert store.increment_failure_count(timeout("one"), NOW + SECOND)
    assert not store.increment_failure_count(timeout("nobody"), NOW)

    with store.transaction() as transaction:
        assert store.fetch_next_due_timeout(NOW, transaction=transaction) is None
        later = store.fetch_next_due_timeout(NOW + SECOND, transaction=transaction)
    assert later.attempts == 1
    assert later.message == timeout("one").message


@pytest.mark.behaviour(84)
def test_it_refuses_a_message_that_it_cannot_keep_and_reports_an_outage(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="receive_only"):
        custom_store(tmp_path).initialize("sales", TransactionMode.TRANSACTION_SCOPE)
    with pytest.raises(StorageUnavailable):
        custom_store(tmp_path / "no such folder").initialize("sales", RECEIVE)


@pytest.mark.behaviour(45, 94)
def test_an_endpoint_sends_all_that_it_holds_and_each_once(tmp_path: Path, unique: str) -> None:
    pair = Pair("sqlite", "sqlite")
    urls = {"sqlite": f"sqlite:///{tmp_path / 'queues.db'}"}
    with stopping(Place(pair, urls, unique)) as place:
        store = custom_store(tmp_path)
        party = DelayedParty(place, store=store).start()
        deleted = place.queue(f"{unique}-gone")
        sent = [
            party.endpoint.send_local("Ping", n, delay=timedelta(seconds=1.5)) for n in range(40)
        ]
        lost = party.endpoint.send(deleted, "Ping", 1, delay=timedelta(seconds=1.5))
        place.session.delete_queues([deleted])

        party.inbox.wait_for(len(sent))
        copy = party.errors.wait_for_id(lost.message_id)

        assert sorted(one.id for one in party.inbox.arrived) == sorted(s.message_id for s in sent)
        assert min(one.lateness for one in party.inbox.arrived) >= 0
        assert copy.headers[headers.FAILED_QUEUE] == deleted
        eventually(lambda: store.next() is None, "nothing is left")

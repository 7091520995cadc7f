"""A process is killed in the middle of a batch of handlers, some of which fail; another goes on.

In one database no effect is lost and none is there twice. Elsewhere at most the batch of the crash
is repeated, under the same ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import text

from chaos.forkserver_client import ForkServer
from tests.crash.batch_worker import FAILING
from tests.crash.cases import Crash
from tests.crash.site import Worker
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import SendResult, TransactionMode
from timeoutmgr.database import as_database
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message, Outgoing

IN_EACH_MODE: Final = (
    *("pump.received:1", "handler.kept:1", "handler.kept:4", "handler.returned:1"),
    *("handler.sent:1", "pump.handled:1", "pump.acked:1", "work.committed:1"),
    *("pump.error_copy_sent:1", "pump.replaced:1", "pump.replaced:2"),
)
IN_ONE_DATABASE: Final = (
    *IN_EACH_MODE,
    *("leases.written:1", "leases.committed:1", "queues.inserted:1", "leases.settled:1"),
    *("leases.settled:2", "work.committed:2"),
)
SAMPLED: Final = (
    ("sqlite", "handler.kept:4", "single"),
    ("postgres", "pump.acked:1", "single"),
    ("mysql", "work.committed:1", "single"),
    ("rabbitmq", "handler.sent:1", "single"),
    ("sqlite", "pump.acked:1", "list"),
    ("postgres", "handler.kept:1", "sound list"),
    ("mysql", "handler.kept:4", "list"),
    ("rabbitmq", "pump.acked:1", "sound list"),
)
MATRIX: Final = (
    *((kind, at) for kind in ("sqlite", "postgres", "mysql") for at in IN_ONE_DATABASE),
    *(("rabbitmq", at) for at in IN_EACH_MODE),
)
SOUND: Final = ("handler.kept:1", "pump.handled:1", "pump.acked:1", "work.committed:1")
WHOLE: Final = (
    *((kind, at, "single") for kind, at in MATRIX),
    *((kind, at, "list") for kind, at in MATRIX),
    *((kind, at, "sound list") for kind, at in MATRIX if at in SOUND),
)
"""The handler gets single messages, lists that fail with two of their messages, or sound lists."""
CASES: Final = [
    pytest.param(*case, marks=[] if case in SAMPLED else pytest.mark.crash_full) for case in WHOLE
]
GOOD: Final = [f"good-{number}" for number in range(6)]
BAD: Final = [f"{FAILING}-{number}" for number in range(2)]
BATCH: Final = [*GOOD[:2], BAD[0], *GOOD[2:4], BAD[1], *GOOD[4:]]


class Site:
    """A queue of messages, and the places in which their handling leaves a trace."""

    def __init__(self, url: str, name: str, folder: Path, fork_server: ForkServer) -> None:
        self.stack: Final = ExitStack()
        self._folder, self._fork_server, self._workers = folder, fork_server, 0
        self._transport = self.stack.enter_context(closing(transport_from_url(url)))
        self._transport.install()
        self._session = self.stack.enter_context(closing(self._transport.session()))
        self.mode = TransactionMode.RECEIVE_ONLY
        self.table, self.name = f"{name}_noted".replace("-", "_"), name
        queues = self.done, self.errors = f"{name}.done", f"{name}.errors"
        self._session.create_queues(queues)
        self._session.create_queues([name], error_queue=self.errors)
        self.stack.callback(self._session.delete_queues, [name, *queues])
        if self._transport.database is not None:
            self.mode = TransactionMode.TRANSACTION_SCOPE
            self._execute(f"CREATE TABLE {self.table} (id VARCHAR(50))")
            self.stack.callback(self._execute, f"DROP TABLE {self.table}")
        self._given = {
            **{"worker": "tests.crash.batch_worker", "transport": url, "table": self.table},
            **{"name": name, "done": self.done, "errors": self.errors, "mode": self.mode.value},
        }

    def send(self, ids: Sequence[str]) -> None:
        sent = to_wire(SystemClock().now())
        own = {headers.ENCLOSED_MESSAGE_TYPES: "Work", headers.TIME_SENT: sent}
        batch = [Outgoing(self.name, Message(id=one, headers=own, body=b"{}")) for one in ids]
        assert set(self._session.send(batch)) == {SendResult.CONFIRMED}

    def worker(self, crash: Crash | None, *, lists: bool) -> Worker:
        self._workers += 1
        output = self._folder / f"worker-{self._workers}"
        given = {**self._given, "lists": lists}
        worker = Worker(self._fork_server, given, output, crash)
        self.stack.callback(worker.kill)
        return worker

    def noted(self) -> Counter[str]:
        """Return how often each message had its effect in the database."""
        assert self._transport.database is not None
        with as_database(self._transport.database).read() as connection:
            return Counter(connection.execute(text(f"SELECT id FROM {self.table}")).scalars())

    def messages(self, queue: str, expected: int) -> list[Message]:
        """Return the messages in *queue*, once there are as many as *expected* at least."""
        eventually(lambda: self._session.count(queue) >= expected, f"{expected} in {queue}", 30)
        with closing(self._session.receiver(queue, prefetch=100)) as receiver:
            found = receiver.receive(100, 5.0)
            while more := receiver.receive(100, 0.2):
                found += more
            return [received.message for received in found]

    def is_done(self) -> bool:
        return self._session.count(self.name) == 0

    def _execute(self, statement: str) -> None:
        assert self._transport.database is not None
        with as_database(self._transport.database).begin() as connection:
            connection.execute(text(statement))


@pytest.fixture
def site(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    unique: str,
    fork_server: ForkServer,
) -> Iterator[Site]:
    """A queue of the *kind*, with its own table for effects."""
    url = (
        f"sqlite:///{tmp_path / 'timeoutmgr.db'}"
        if kind == "sqlite"
        else request.getfixturevalue(f"{kind}_url")
    )
    made = Site(url, unique, tmp_path, fork_server)
    with made.stack:
        yield made


@pytest.mark.parametrize(("kind", "at", "handled"), CASES)
def test_a_crash_in_a_batch_of_handlers_loses_nothing(
    kind: str, at: str, handled: str, site: Site
) -> None:
    point, _, nth = at.partition(":")
    lists, bad = handled != "single", [] if handled == "sound list" else BAD
    site.send([each for each in BATCH if each in (*GOOD, *bad)])
    doomed = site.worker(Crash(point, int(nth)), lists=lists)
    doomed.wait_until_it_ends()
    assert doomed.was_killed, doomed.said

    last = site.worker(None, lists=lists)
    last.wait_until_it_runs()
    done = site.messages(site.done, len(GOOD))
    failed = Counter(message.id for message in site.messages(site.errors, len(bad)))
    assert last.terminate() == 0, last.said

    assert site.is_done()
    causes = Counter(json.loads(message.body)["cause"] for message in done)
    assert (sorted(causes), sorted(failed)) == (sorted(GOOD), sorted(bad))
    if site.mode is TransactionMode.TRANSACTION_SCOPE:
        assert site.noted() == Counter(GOOD)
        assert (causes, failed) == (Counter(GOOD), Counter(bad))
    else:
        assert max([*causes.values(), *failed.values()]) <= 2, "one batch is repeated, once"
        assert len({message.id for message in done}) == len(GOOD), "repeated under the same ids"

"""The site of a case: addresses, processes, and the actions of the test itself."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from sqlalchemy import MetaData, create_engine, func, select, text

from chaos.crash_command import VARIABLE
from chaos.forkserver_client import ForkServer, Streams
from tests.acceptance.error_queue import ErrorQueue
from tests.crash.cases import DELAYED_FENCED, Crash, Pair, more
from tests.crash.forked import ENTRY
from tests.persistence.making import timeout
from tests.persistence.ranging import coarsen
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Persistence, SendResult, TimeoutStore, Transport, TransportSession
from timeoutmgr.database import as_database
from timeoutmgr.deadletter import DeadLetterStore, NodeQueue, StoredCopyQueue
from timeoutmgr.deadletter.acknowledgements import ACKNOWLEDGEMENTS
from timeoutmgr.deadletter.feature import InstalledNode
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url
from timeoutmgr.errors import StorageConflict
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.routes import DELAYED, DISPATCHER, TIMEOUTS
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.persistence.sql.partitions import conversion as replacing
from timeoutmgr.persistence.sql.partitions.catalog import ALL, DAY, Change, Whole, fresh
from timeoutmgr.persistence.sql.tables import tables


def _prepared(whole: Whole, change: Change) -> bool:
    """Prepare copies; return false where a busy machine leaves it to another time."""
    try:
        replacing.prepare(whole, change)
    except StorageConflict:
        return False
    return True


class Worker:
    """A process with the endpoint."""

    def __init__(
        self, fork_server: ForkServer, given: Mapping[str, Any], output: Path, crash: Crash | None
    ) -> None:
        output.touch()
        self._output = output
        variables = {VARIABLE: str(crash)} if crash is not None else {}
        self._child: Final = fork_server.start(
            ENTRY, [json.dumps(given)], Streams(output), variables
        )

    @property
    def ended(self) -> bool:
        """Whether it has ended, however."""
        return self._child.poll() is not None

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL was its end."""
        return self._child.poll() == -signal.SIGKILL

    @property
    def said(self) -> str:
        """The end of its output."""
        return self._output.read_text(errors="replace")[-6000:]

    def wait_until_it_runs(self) -> None:
        """Return once it runs, or has ended."""
        eventually(lambda: self.ended or " runs (" in self.said, "the worker runs", 30)

    def wait_until_it_ends(self) -> None:
        """Return once it has ended."""
        eventually(lambda: self.ended, "the worker ends", 30)

    def terminate(self) -> int | None:
        """Send SIGTERM; return the exit code."""
        self._child.send_signal(signal.SIGTERM)
        self.wait_until_it_ends()
        return self._child.poll()

    def kill(self) -> None:
        """Send SIGKILL; fine if it has ended."""
        if not self.ended:
            self._child.kill()
            self.wait_until_it_ends()


class Site:
    """One pair of queue and store, with a name that no other test uses."""

    def __init__(
        self,
        pair: Pair,
        urls: Mapping[str, str],
        name: str,
        folder: Path,
        fork_server: ForkServer,
        *,
        fresh: bool,
    ) -> None:
        self.pair: Final = pair
        self.name: Final = name
        self.target: Final = f"{name}-target"
        self.missing: Final = f"{name}-missing"
        self.error_queue: Final = f"{name}.error"
        self.tasks: Final = f"{name}-tasks" if pair.destinations else self.target
        self.clock: Final = SystemClock()
        self.closing: Final = contextlib.ExitStack()
        self._urls = urls
        self._folder = folder
        self._fork_server = fork_server
        on_postgres = fresh and pair.store == "postgres"
        self._queue_schema = (
            {"schema": f"{name}q"} if on_postgres and pair.queue == "postgres" else {}
        )
        beside = self.pair.destinations
        self._options = self._queue_schema | ({"destinations": urls[beside]} if beside else {})
        self._store_schema = {"schema": f"{name}s"} if on_postgres else {}
        self._workers = 0

    def transport(self) -> Transport:
        """Return a transport of its own, as another process would have it."""
        return transport_from_url(self._urls[self.pair.queue], **self._options)

    def elsewhere(self) -> Transport:
        """Return a transport to the broker beside the database."""
        return transport_from_url(self._urls[self.pair.destinations])

    def persistence(self) -> Persistence:
        """Return a persistence of its own."""
        return persistence_from_url(self._urls[self.pair.store], **self._store_schema)

    def store(self, persistence: Persistence) -> TimeoutStore:
        """Return the endpoint's store in *persistence*."""
        return persistence.timeouts(self.name, self.clock, atomic_dispatch=self.pair.exactly_once)

    @cached_property
    def own(self) -> Persistence:
        """The test's own persistence; it lives to the end."""
        return self.closing.enter_context(contextlib.closing(self.persistence()))

    @cached_property
    def delayed(self) -> SqlDelayedMessageStore:
        """The test's own delayed message store."""
        made = SqlDelayedMessageStore(self._urls[self.pair.store])
        return self.closing.enter_context(contextlib.closing(made))

    @cached_property
    def session(self) -> TransportSession:
        """The test's own session."""
        transport = self.closing.enter_context(contextlib.closing(self.transport()))
        return self.closing.enter_context(contextlib.closing(transport.session()))

    def install(self) -> None:
        """Install all that the endpoint would."""
        self.closing.enter_context(contextlib.closing(transport := self.transport()))
        transport.install()
        if self.pair.delayed:
            self.delayed.setup_infrastructure(self.name)
            self.delayed.initialize(self.name, self.pair.mode)
        else:
            self.own.install()
        InstalledNode(self._dead_letters).install()
        self.session.create_queues([self.error_queue])
        self.session.create_queues(self.queues, error_queue=self.error_queue)

    def unlearn(self) -> None:
        """Leave tables as a MySQL has them whose installation was cut off: some indexes lack."""
        engine = create_engine(self._urls["sqlite"])
        with engine.begin() as connection:
            found = MetaData()
            found.reflect(connection)
            for name, table in found.tables.items():
                if name.endswith("_version"):
                    connection.execute(table.delete())
                for index in table.indexes if name.endswith("_timeouts") else ():
                    connection.execute(text(f"DROP INDEX {index.name}"))
        engine.dispose()

    def coarsen(self, point: str) -> None:
        """Leave all timeouts in one partition, and for one *point* copies of it."""
        database = self.own.database
        assert database is not None
        whole = Whole(as_database(database), tables(None, "timeoutmgr_").timeouts)
        coarsen(whole)
        # Timeouts of another endpoint, so that the case does not wait for them.
        others = self.own.timeouts(f"{self.name}-other", self.clock)
        now = others.now()
        ahead = [now + day * DAY for day in (20, 30, 400)]
        others.store_many([timeout(f"{self.name} {due}", due) for due in ahead])
        if point == "partitions.discarded":
            change = Change((ALL,), tuple(fresh(now)))
            eventually(lambda: _prepared(whole, change), "there are copies", 30)

    def watch(self) -> list[ErrorQueue]:
        """Return readers of the target, of the error queue, and of a queue of tasks beside them."""
        self.session.create_queues([self.target])
        target = self.closing.enter_context(ErrorQueue(self.transport(), self.target))
        errors = self.closing.enter_context(ErrorQueue(self.transport(), self.error_queue))
        if not self.pair.destinations:
            return [target, errors]
        with self._session_elsewhere() as session:
            session.create_queues([self.tasks])
        beside = self.closing.enter_context(ErrorQueue(self.elsewhere(), self.tasks))
        return [target, errors, beside]

    @contextlib.contextmanager
    def _session_elsewhere(self) -> Iterator[TransportSession]:
        with (
            contextlib.closing(self.elsewhere()) as transport,
            contextlib.closing(transport.session()) as session,
        ):
            yield session

    @property
    def queues(self) -> list[str]:
        """The queues that the endpoint consumes."""
        own = [DELAYED] if self.pair.delayed else [TIMEOUTS, DISPATCHER]
        return [self.name, *(self.name + each for each in (*own, ACKNOWLEDGEMENTS))]

    @property
    def acknowledgements(self) -> str:
        """The queue to which the endpoint's final acknowledgements come."""
        return self.name + ACKNOWLEDGEMENTS

    @cached_property
    def _dead_letters(self) -> QueueManager:
        schema = self._store_schema.get("schema")
        store = DeadLetterStore(self._urls[self.pair.store], schema=schema)
        return QueueManager(store=store, node=self.name)

    def lies_in(self, box: NodeQueue) -> list[str]:
        """Return the ids of the messages in *box* of the node."""
        queue = StoredCopyQueue(self._dead_letters, box)
        return [copy.message.id for copy in queue.every()]

    def kept(self) -> int:
        """Return how many messages await their final acknowledgement."""
        table = self._dead_letters.store.tables.awaiting
        with self._dead_letters.store.database.read() as connection:
            rows = connection.execute(table.select().where(table.c.node == self.name))
            return len(rows.all())

    @property
    def address(self) -> str:
        """The queue that delayed messages go to."""
        return self.name + (DELAYED if self.pair.delayed else TIMEOUTS)

    def send(self, outgoing: Sequence[Outgoing]) -> None:
        """Send all in one go, so that batches of many form."""
        assert set(self.session.send(outgoing)) == {SendResult.CONFIRMED}

    def worker(self, crash: Crash | None) -> Worker:
        """Start a process; it dies at *crash*, unless that is None."""
        self._workers += 1
        given = {
            "name": self.name,
            "target": self.target,
            "transport": self._urls[self.pair.queue],
            "transport_options": self._options,
            "store": self._urls[self.pair.store],
            "store_options": self._store_schema,
            "mode": self.pair.mode.value,
            "dead_letters": self.pair.dead_letters,
            "delayed": self.pair.delayed and ("single" if self.pair is DELAYED_FENCED else "all"),
            **(more(crash.point, self.name, self.target) if crash else {}),
        }
        made = Worker(self._fork_server, given, self._folder / f"worker-{self._workers}", crash)
        self.closing.callback(made.kill)
        return made

    def left(self) -> dict[str, int]:
        """Return the numbers of pending timeouts and of messages in each queue."""
        left = {queue: self.session.count(queue) for queue in self.queues}
        left["pending"] = (
            self.delayed.count() if self.pair.delayed else self.store(self.own).statistics().pending
        )
        left["kept"] = self.kept()
        left["labels"] = 0 if self.pair.delayed else self._labels()
        return {what: count for what, count in left.items() if count}

    def _labels(self) -> int:
        """Return the number of rows of labels."""
        labels = tables(self._store_schema.get("schema"), "timeoutmgr_").labels
        mine = select(func.count()).where(labels.c.endpoint == self.name)
        database = self.own.database
        assert database is not None
        with as_database(database).read() as connection:
            return int(connection.execute(mine).scalar_one())

    def clean_up(self) -> None:
        """Delete the queues of a broker, which the run's end does not."""
        if self.pair.destinations:
            with self._session_elsewhere() as session:
                session.delete_queues([self.tasks])
        if self.pair.queue != "rabbitmq":
            return
        with (
            contextlib.closing(self.transport()) as transport,
            contextlib.closing(transport.session()) as session,
        ):
            session.delete_queues([*self.queues, self.target, self.error_queue])

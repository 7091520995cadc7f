"""Dispatch rate of a delayed message store at a due instant, beside a timeout manager.

The dispatch rate of one process: on RabbitMQ with PostgreSQL, and on one SQLite file, where
fetching, sending and removing are one transaction. Then with a million more timeouts due later.
"""

import tempfile
import uuid
from contextlib import closing
from functools import partial
from pathlib import Path

from harness.figures import Sample, interleave, rate
from harness.messages import BODY, DAY, SECOND, micros
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, Worker, installed

from timeoutmgr import TransactionMode
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.message.message import Message
from timeoutmgr.persistence import SqlDelayedMessageStore

_AT_ONCE = 1000


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pending", type=int, help="due later (1,000,000; quick 5,000)")
    parser.add_argument("--only", choices=["broker", "file", "pending"], help="one question")
    given = parsed(parser, count=20_000, quick=3_000)
    many = given.pending or (5_000 if given.quick else 1_000_000)
    with servers("postgres", "rabbitmq") as running, tempfile.TemporaryDirectory() as folder:
        broker, database = running["rabbitmq"], running["postgres"]
        file = f"sqlite:///{Path(folder, 'timeoutmgr.db')}"
        settings = {"messages": given.count, "body": "512 B", "pending": many, **running.settings}
        report = Report("A delayed message store beside a timeout manager", settings)
        if given.only in (None, "broker"):
            _beside(report, given, "RabbitMQ + PostgreSQL", broker, database, 0.9)
        if given.only in (None, "file"):
            _beside(report, given, "one SQLite file", file, file, 1.5)
        if given.only in (None, "pending"):
            with (
                installed(broker, database, delayed=True) as empty,
                installed(broker, database, delayed=True) as full,
            ):
                load(full, many, micros() + 30 * DAY)
                samples = interleave(
                    {
                        "store, nothing else pending": partial(dispatched, empty, given.count),
                        f"store, {many:,} pending": partial(dispatched, full, given.count),
                    },
                    given.rounds,
                )
            report.runs(samples)
            alone, among = samples.values()
            report.faster(f"with {many:,} pending ÷ with none", among, alone, 0.9)
    report.give(given)


def _beside(
    report: Report, given: object, where: str, transport: str, storage: str, least: float
) -> None:
    count, rounds = given.count, given.rounds
    with (
        installed(transport, storage) as manager,
        installed(transport, storage, delayed=True) as store,
    ):
        samples = interleave(
            {
                f"timeout manager, {where}": partial(dispatched, manager, count),
                f"delayed message store, {where}": partial(dispatched, store, count),
            },
            rounds,
        )
    report.runs(samples)
    theirs, ours = samples.values()
    report.notes.append(f"{where}: {rate(ours):,.0f}/s, the timeout manager {rate(theirs):,.0f}/s.")
    report.faster(f"store ÷ timeout manager, {where}", ours, theirs, least)


def dispatched(spec: Spec, count: int) -> Sample:
    """Store *count* due timeouts; measure a new worker from its first batch to its last."""
    load(spec, count, micros() - SECOND)
    with Worker(spec) as worker:
        return worker.measure(
            "delayed_dispatched" if spec.delayed else "timeouts_dispatched", count
        )


def load(spec: Spec, count: int, due: int) -> None:
    """Store *count* messages that are due from *due* on, over half a second."""
    with closing(_storage(spec)) as storage:
        if isinstance(storage, SqlDelayedMessageStore):
            storage.initialize(spec.name, TransactionMode.RECEIVE_ONLY)
            store = storage
        else:
            store = storage.timeouts(spec.name, SystemClock())
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(count, start + _AT_ONCE))
            store.store_many([_timeout(spec, due + n * SECOND // 2 // count) for n in numbers])


def _storage(spec: Spec) -> object:
    if spec.delayed:
        return SqlDelayedMessageStore(spec.persistence)
    return persistence_from_url(spec.persistence)


def _timeout(spec: Spec, due: int) -> Timeout:
    name = str(uuid.uuid4())
    return Timeout(
        id=name, due=due, destination=spec.destination, message=Message(id=name, body=BODY)
    )


if __name__ == "__main__":
    main()

"""Reminders in a delayed message store; the process that dispatches them is killed half-way.

Everything is in one SQLite file, so that each step is one transaction. The last line counts
accepted, lost, early and repeated messages. Exit code 1: a promise was broken.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import create_engine

from timeoutmgr import DelayedDeliverySettings, Endpoint, EndpointConfiguration
from timeoutmgr.contracts import Receiver
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire
from timeoutmgr.persistence import SqlDelayedMessageStore

BOARD = "board"


def configuration(url: str) -> EndpointConfiguration:
    config = EndpointConfiguration("reminders")
    config.send_only()
    config.use_transport(url, delayed_delivery=DelayedDeliverySettings(SqlDelayedMessageStore(url)))
    return config


def main() -> int:
    given = _arguments()
    if given.worker:
        Endpoint(configuration(given.worker)).run()
        return 0
    folder = tempfile.mkdtemp(prefix="delayed-store-")
    try:
        return _demo(f"sqlite:///{Path(folder, 'timeoutmgr.db')}", given.messages, given.seconds)
    finally:
        shutil.rmtree(folder)


def _demo(url: str, messages: int, seconds: float) -> int:
    transport = transport_from_url(url)
    with closing(transport), closing(transport.session()) as session:
        transport.install()
        session.create_queues([BOARD])
        accepted = _send(url, messages, seconds)
        arrived: list[tuple[str, float]] = []
        with closing(session.receiver(BOARD, prefetch=500)) as board:
            first = _worker(url)
            _read(board, arrived, messages // 2, seconds + 60)
            first.kill()
            first.wait()
            print(f"{len(arrived)} of {messages} arrived; the process was killed, another goes on")
            second = _worker(url)
            _read(board, arrived, messages, seconds + 60)
            second.terminate()
            second.wait()
            _read(board, arrived, messages + 1, 0.5)
    return _verdict(accepted, arrived)


def _send(url: str, messages: int, seconds: float) -> set[str]:
    """Send all reminders in one transaction of the application."""
    begin = datetime.now(UTC) + timedelta(seconds=2)
    with closing(Endpoint(configuration(url))) as endpoint:
        endpoint.install()
        engine = create_engine(url)
        with engine.connect() as connection:
            sent = [
                endpoint.send(
                    BOARD,
                    "Reminder",
                    number,
                    deliver_at=begin + timedelta(seconds=seconds * number / messages),
                    session=connection,
                )
                for number in range(messages)
            ]
            connection.commit()
        engine.dispose()
    print(f"{messages} reminders are accepted, for the next {seconds + 2:g} seconds")
    return {each.message_id for each in sent}


def _worker(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--worker", url], stderr=subprocess.DEVNULL)


def _read(board: Receiver, arrived: list[tuple[str, float]], until: int, patience: float) -> None:
    deadline = time.monotonic() + patience
    while len(arrived) < until and time.monotonic() < deadline:
        batch = board.receive(500, 0.2)
        now = time.time_ns() // 1_000
        for each in batch:
            due = from_wire(each.message.headers[headers.DELIVER_AT])
            arrived.append((each.message.id, (now - due) / 1_000_000))
        board.ack(batch)


def _verdict(accepted: set[str], arrived: list[tuple[str, float]]) -> int:
    counts = Counter(message_id for message_id, _ in arrived)
    lost = len(accepted - set(counts))
    repeated = counts.total() - len(counts)
    late = [lateness for _, lateness in arrived]
    early = sum(lateness < 0 for lateness in late)
    print(
        f"{len(accepted)} accepted, {lost} lost, {early} early, {repeated} repeated; "
        f"half within {sorted(late)[len(late) // 2] * 1000:.0f} ms of their time, the last of "
        f"those that waited for the other process {max(late):.1f} s late"
    )
    return 1 if lost or early or repeated else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=8.0, help="over which they are due")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

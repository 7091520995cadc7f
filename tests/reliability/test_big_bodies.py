"""A queue of large bodies does not take a worker more memory than it may have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import SendResult, TimeoutFilter
from timeoutmgr.message import headers
from timeoutmgr.message.instants import LATEST, to_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.kombu_transport import KombuTransport

_ROOT = Path(__file__).parents[2]
_WORKER = _ROOT / "benchmarks" / "harness" / "bounded.py"

MIB = 1024 * 1024
SPARE = 256
"""MiB for data, above the worker's memory when it begins to consume."""
COUNT = 28


@pytest.fixture
def filled(rabbitmq_url: str, unique: str) -> Iterator[str]:
    """An endpoint whose delayed messages wait, with far more bytes than the worker may have."""
    transport = KombuTransport(rabbitmq_url)
    with closing(transport), closing(transport.session()) as session:
        session.create_queues([f"{unique}.error"])
        own = [unique, f"{unique}.Timeouts", f"{unique}.TimeoutsDispatcher"]
        session.create_queues(own, error_queue=f"{unique}.error")
        for number in range(COUNT):
            given = {headers.EXPIRE: to_wire(LATEST), headers.DESTINATION: unique}
            body = bytes([number]) * (16 * MIB)
            message = Message(id=f"b{number}", headers=given, body=body)
            sent = session.send([Outgoing(f"{unique}.Timeouts", message)])
            assert sent == [SendResult.CONFIRMED]
        yield unique
        session.delete_queues([*own, f"{unique}.error"])


def test_a_worker_with_256_mib_for_data_survives_a_queue_of_16_mib_bodies(
    rabbitmq_url: str, filled: str, tmp_path: Path
) -> None:
    assert COUNT * 16 > 1.5 * SPARE
    store_url = f"sqlite:///{tmp_path / 'store.db'}"
    worker = subprocess.Popen(
        [sys.executable, str(_WORKER), rabbitmq_url, filled, str(SPARE), store_url],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        with closing(SqlPersistence(store_url)) as persistence, worker.stdout, worker.stdin:
            started: dict[str, Any] = json.loads(worker.stdout.readline())
            store = persistence.timeouts(filled, SystemClock())
            eventually(lambda: store.count(TimeoutFilter()) == COUNT, "all bodies are stored", 50)
            worker.stdin.close()

            assert started["ready"]
            assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait(30)

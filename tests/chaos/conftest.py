"""A process and its fork server; a broker with empty delay levels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chaos.forkserver_client import ForkServer
from chaos.supervisor import SupervisedProcess
from timeoutmgr.native.infrastructure import delay_topology, unroutable_topology, with_exchanges
from timeoutmgr.native.names import OURS
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.fixture
def fork_server(tmp_path: Path) -> Iterator[ForkServer]:
    made = ForkServer(tmp_path / "forkserver.log")
    yield made
    made.close()


@pytest.fixture
def process(tmp_path: Path, fork_server: ForkServer) -> Iterator[SupervisedProcess]:
    made = SupervisedProcess(
        name="worker-1",
        fork_server=fork_server,
        entry="signal:pause",
        environment=tmp_path / "environment.json",
        log=tmp_path / "worker-1.log",
        ready=tmp_path,
    )
    made.start()
    made.wait_until_ready()
    yield made
    made.stop()


@pytest.fixture
def broker_with_empty_levels(rabbitmq_url: str) -> str:
    """This worker's broker; messages of other tests are removed from its delay levels."""
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        with_exchanges(session).remove(delay_topology(OURS) + unroutable_topology())
    return rabbitmq_url

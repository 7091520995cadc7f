"""A process and the nursery it is born in; a broker in whose delay levels nobody else is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from timeoutmgr.native.infrastructure import with_exchanges
from timeoutmgr.native.names import OURS
from timeoutmgr.native.topology import delay_topology, unroutable_topology
from timeoutmgr.testing.chaos.births import Nursery
from timeoutmgr.testing.chaos.troupe import Part
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path / "nursery.log")
    yield made
    made.close()


@pytest.fixture
def part(tmp_path: Path, nursery: Nursery) -> Iterator[Part]:
    made = Part(
        name="worker-1",
        nursery=nursery,
        entry="signal:pause",
        scene=tmp_path / "scene.json",
        log=tmp_path / "worker-1.log",
        ready=tmp_path,
    )
    made.start()
    made.wait_until_ready()
    yield made
    made.stop()


@pytest.fixture
def broker_with_empty_levels(rabbitmq_url: str) -> str:
    """This worker's broker without what other tests have left in its delay levels."""
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        with_exchanges(session).remove(delay_topology(OURS) + unroutable_topology())
    return rabbitmq_url

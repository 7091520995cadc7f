"""Places for outages: endpoints on servers that come and go, disks that fill, clocks that jump."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.matrix import Pair
from tests.acceptance.place import Place, stopping
from tests.outage.clocks import SettableClock, require_faketime
from tests.outage.disk import SmallDisk

MakePlace = Callable[..., Place]


@pytest.fixture
def make_place(unique: str) -> Iterator[MakePlace]:
    """Make the place of a transport and a store: ``make_place(transport=url, store=url)``.

    The end of the test closes all parts of the place.
    """
    with ExitStack() as stack:

        def make(*, transport: str, store: str) -> Place:
            pair = Pair(_kind(transport), _kind(store))
            urls = {pair.transport: transport, pair.store: store}
            return stack.enter_context(stopping(Place(pair, urls, unique)))

        yield make


def _kind(url: str) -> str:
    scheme = url.partition(":")[0].partition("+")[0]
    return {"postgresql": "postgres", "amqp": "rabbitmq"}.get(scheme, scheme)


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], SmallDisk]]:
    """Mount disks of so many megabytes; skip where that is not allowed.

    Ask for it before ``private_server``: a server on a disk must stop before the disk goes.
    """
    with ExitStack() as stack:

        def mount(megabytes: int) -> SmallDisk:
            return stack.enter_context(SmallDisk(megabytes))

        yield mount


@pytest.fixture
def faketime() -> None:
    """Skip the test where libfaketime is missing."""
    require_faketime()


@pytest.fixture
def clock(faketime: None, tmp_path: Path) -> SettableClock:
    """A clock for processes that can be set while they run."""
    return SettableClock(tmp_path / "clock")

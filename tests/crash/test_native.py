"""Killed between two side effects of native delayed delivery; another process then goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest

from chaos.forkserver_client import ForkServer
from tests.crash.cases import NATIVE, Crash
from tests.crash.native_worker import configuration, own_names
from tests.crash.site import Worker
from tests.support.makers import a_message
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import SendResult, TransportSession
from timeoutmgr.crashpoints import POINTS
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.endpoint.installation import uninstall_timeout_manager
from timeoutmgr.errors import SchemaMissing
from timeoutmgr.features.leftovers import find_leftovers
from timeoutmgr.message.message import Outgoing
from timeoutmgr.native.infrastructure import DelayLevels
from timeoutmgr.native.names import OURS, UNROUTABLE, to_levels
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.transport.kombu_transport import KombuTransport

INSTALLING: Final = (
    "topology.exchange_declared:7",
    "topology.queue_declared:9",
    "topology.bound:20",
    "topology.queue_bound:1",
)
SETTLING: Final = ("unroutable.sent_on", "unroutable.error_copies_confirmed")
REMOVING: Final = (
    "uninstall.queues_deleted",
    "uninstall.broker_unmarked",
    "forgetting.rows_deleted:2",
    "uninstall.rows_deleted",
    "forgetting.table_dropped:3",
)


class Site:
    """A broker, and names that no other test uses on it."""

    def __init__(
        self, url: str, stem: str, folder: Path, fork_server: ForkServer, stack: ExitStack
    ) -> None:
        self._folder, self._fork_server = folder, fork_server
        self.url: Final = url
        self.stem: Final = stem
        self.stack: Final = stack
        self.transport: Final = stack.enter_context(closing(KombuTransport(url)))
        self.session: Final[TransportSession] = stack.enter_context(
            closing(self.transport.session())
        )

    def queues(self, *names: str) -> list[str]:
        """Create queues that are deleted in the end."""
        made = [f"{self.stem}{name}" for name in names]
        self.session.create_queues(made)
        self.stack.callback(self.session.delete_queues, made)
        return made

    def kill(self, point: str, **given: Any) -> None:
        """Start a process with *given*; check that it dies at *point*, ``name`` or ``name:n``."""
        name, _, nth = point.partition(":")
        options = {
            "worker": "tests.crash.native_worker",
            "url": self.url,
            "stem": self.stem,
            **given,
        }
        crash = Crash(name, int(nth or 1))
        worker = Worker(self._fork_server, options, self._folder / f"{self.stem}-{crash}", crash)
        try:
            worker.wait_until_it_ends()
        finally:
            worker.kill()
        assert worker.was_killed, worker.said
        assert f"dies at crash point {point}" in worker.said

    def ids(self, queue: str, expected: int) -> set[str]:
        """Return the ids in *queue*, and leave the messages there; wait for *expected* of them."""
        eventually(lambda: self.session.count(queue) >= expected, f"{expected} are in {queue}")
        found: list[str] = []
        with closing(self.session.receiver(queue, prefetch=100)) as receiver:
            while len(found) < expected or self.session.count(queue):
                found += [one.message.id for one in receiver.receive(100, 10.0)]
        return set(found)


@pytest.fixture
def site(rabbitmq_url: str, unique: str, tmp_path: Path, fork_server: ForkServer) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(rabbitmq_url, unique, tmp_path, fork_server, stack)


def test_every_point_of_native_delivery_is_here() -> None:
    tried = {point.partition(":")[0] for point in (*INSTALLING, *SETTLING, *REMOVING)}

    assert tried == {point for point in POINTS if point.startswith(NATIVE)}


@pytest.mark.parametrize("point", INSTALLING)
def test_a_broken_off_declaration_is_finished_by_the_next_start(point: str, site: Site) -> None:
    bound = site.queues(".1", ".2")
    names = own_names(site.stem)
    levels = DelayLevels(transport=site.transport, names=names, queue_type="classic", bound=bound)
    site.stack.callback(levels.remove)

    site.kill(point, act="install")
    levels.install()

    levels.check()
    clock = SystemClock()
    for queue in bound:
        sent = to_levels(Outgoing(queue, a_message(queue)), clock.now(), names, clock)
        assert site.session.send([sent]) == [SendResult.CONFIRMED]
        assert site.ids(queue, 1) == {queue}


@pytest.mark.parametrize("point", SETTLING)
def test_the_next_process_settles_unroutable_messages(point: str, site: Site) -> None:
    *_, error, late = site.queues("", ".error", ".late")
    DelayLevels(transport=site.transport, names=OURS, queue_type="quorum").install()
    clock = SystemClock()
    wrong = [
        to_levels(Outgoing(f"{site.stem}.no", a_message(f"m{n}")), clock.now(), OURS, clock)
        for n in range(5)
    ]
    unbound = to_levels(Outgoing(late, a_message("late")), clock.now(), OURS, clock)
    assert set(site.session.send([*wrong, unbound])) == {SendResult.CONFIRMED}

    site.kill(point, act="run")
    with Endpoint(configuration({"url": site.url, "stem": site.stem})):
        eventually(lambda: site.session.count(error) >= 5, "all are in the error queue")
        eventually(lambda: site.session.count(late) >= 1, "the one that came too late arrived")
        eventually(lambda: site.session.count(UNROUTABLE) == 0, "none is left")

    assert site.ids(error, 5) == {f"m{n}" for n in range(5)}
    assert site.ids(late, 1) == {"late"}


@pytest.mark.parametrize("point", REMOVING)
def test_a_broken_off_uninstallation_is_finished_by_the_next(
    point: str, site: Site, sqlite_url: str
) -> None:
    site.queues("", ".error")
    before = EndpointConfiguration(site.stem)
    before.error_queue = f"{site.stem}.error"
    before.use_transport(site.url)
    before.use_persistence(sqlite_url)
    before.enable_feature(TimeoutManager())
    with closing(Endpoint(before)) as endpoint:
        endpoint.install()
    given = {"url": site.url, "stem": site.stem, "store": sqlite_url}

    site.kill(point, act="uninstall", store=sqlite_url)
    settings = configuration(given).settings()
    uninstall_timeout_manager(settings)

    assert find_leftovers(settings).queues == {}
    with closing(persistence_from_url(sqlite_url)) as persistence, pytest.raises(SchemaMissing):
        persistence.check()

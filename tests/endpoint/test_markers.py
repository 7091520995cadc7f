"""Store and broker of an endpoint know each other by a marker, under any name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, cast
from urllib.parse import urlsplit

import amqp
import pytest

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.contracts import BearsMarkers
from timeoutmgr.endpoint.assembly import AssembledEndpoint, assemble
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.endpoint.installation import (
    install,
    install_tables,
    prepare,
    uninstall_timeout_manager,
)
from timeoutmgr.errors import FeatureRefused, StorageUnavailable, WrongPair
from timeoutmgr.features.markers import check_pair, compare_markers
from timeoutmgr.persistence.sql import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.satellites.timeout_manager.feature import Readiness
from timeoutmgr.transport.amqp import topology
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.sql import SqlTransport

BROKERS = ["rabbitmq", "redis", "sqlite", "postgres", "mysql"]


class Scene:
    """One endpoint's name, and brokers and stores to give it."""

    def __init__(self, name: str, kind: str, url: str, folder: Path, stack: ExitStack) -> None:
        self.name = name
        self._kind = kind
        self._url = url
        self._folder = folder
        self._stack = stack

    def broker(self, number: int = 1) -> Any:
        """Return broker *number*: its own tables, or on a real broker a name of its own."""
        if self._kind in ("rabbitmq", "redis"):
            return self._stack.enter_context(
                closing(KombuTransport(self._url, queue_type="classic", accept_loss=True))
            )
        prefix = f"{self.name}q{number}_"
        return self._stack.enter_context(closing(SqlTransport(self._url, prefix=prefix)))

    def parts(self, broker: Any, store: str = "one", *, install: bool = True) -> AssembledEndpoint:
        """Return the endpoint on *broker* with the store in the file called *store*."""
        config = EndpointConfiguration(self.name)
        config.accept_loss()
        config.error_queue = f"{self.name}.error"
        config.install = install
        config.use_transport(broker)
        config.use_persistence(f"sqlite:///{self._folder / store}.db")
        config.enable_feature(TimeoutManager())
        parts = assemble(config.settings())
        self._stack.callback(parts.close_storage)
        return parts

    def settings(self, broker: Any, store: str = "one") -> EndpointSettings:
        """Return the settings of the same."""
        return self.parts(broker, store).settings

    def forget_broker(self, broker: Any) -> None:
        """Have *broker* be as another broker, which never heard of this endpoint."""
        with closing(broker.session()) as session:
            assert isinstance(session, BearsMarkers)
            session.drop_marker(self.name, None)


@pytest.fixture(params=BROKERS)
def scene(request: pytest.FixtureRequest, unique: str, tmp_path: Path) -> Iterator[Scene]:
    """An endpoint on each kind of broker."""
    kind = request.param
    with ExitStack() as stack:
        made = Scene(unique, kind, request.getfixturevalue(f"{kind}_url"), tmp_path, stack)
        yield made
        broker = made.broker()
        if broker.database is None:
            made.forget_broker(broker)
            with closing(broker.session()) as session:
                queues = [unique, f"{unique}.Timeouts", f"{unique}.TimeoutsDispatcher"]
                session.delete_queues([*queues, f"{unique}.error"])


def test_a_pair_is_marked_once_and_starts_again_and_again(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    first = compare_markers(scene.settings(broker), write=False)

    prepare(scene.parts(broker))
    prepare(scene.parts(broker, install=False))

    assert first is not None
    assert compare_markers(scene.settings(broker), write=False) == first


@pytest.mark.parametrize("scene", [each for each in BROKERS if each != "redis"], indirect=True)
def test_a_store_of_another_broker_is_refused_by_install_and_start(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    scene.forget_broker(broker)

    for refused in (install, prepare):
        with pytest.raises(WrongPair, match="install --new-marker") as refusal:
            refused(scene.parts(broker))

    assert scene.name in str(refusal.value)
    assert "bears none" in str(refusal.value)
    assert broker.describe() in str(refusal.value)


@pytest.mark.parametrize("scene", ["redis"], indirect=True)
def test_a_broker_that_keeps_nothing_over_a_restart_is_marked_again(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    marker = compare_markers(scene.settings(broker), write=False)
    scene.forget_broker(broker)

    prepare(scene.parts(broker))

    with closing(broker.session()) as session:
        assert session.borne_marker(scene.name, None) == marker


def test_a_broker_of_another_store_is_refused(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker, "one"))
    marker = compare_markers(scene.settings(broker, "one"), write=False)

    with pytest.raises(WrongPair, match="another store") as refusal:
        install(scene.parts(broker, "two"))

    assert str(marker) in str(refusal.value)
    assert "two.db" in str(refusal.value)


def test_two_pairs_that_are_crossed_are_refused_with_both_markers(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker, "one"))
    theirs = compare_markers(scene.settings(broker, "one"), write=False)
    install(scene.parts(broker, "two"), new_marker=True)
    mine = compare_markers(scene.settings(broker, "two"), write=False)

    with pytest.raises(WrongPair) as refusal:
        prepare(scene.parts(broker, "one"))

    assert mine != theirs
    assert str(mine) in str(refusal.value)
    assert str(theirs) in str(refusal.value)


def test_a_new_marker_admits_another_broker_on_purpose(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    before = compare_markers(scene.settings(broker), write=False)
    scene.forget_broker(broker)

    install(scene.parts(broker), new_marker=True)

    prepare(scene.parts(broker))
    assert compare_markers(scene.settings(broker), write=False) not in (None, before)


def test_a_new_marker_is_refused_while_a_process_uses_the_store(scene: Scene) -> None:
    broker = scene.broker()
    parts = scene.parts(broker)
    install(parts)
    before = compare_markers(parts.settings, write=False)
    store = parts.features.store
    assert store is not None
    store.heartbeat("a worker", {})

    with pytest.raises(FeatureRefused, match=r"run \(.+\); stop them first"):
        install(scene.parts(broker), new_marker=True)

    assert compare_markers(scene.settings(broker), write=False) == before


def test_tables_are_made_without_a_marker_beside_the_store_of_the_broker(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker, "one"))
    target = scene.parts(broker, "two", install=False)

    install_tables(target)

    assert target.settings.persistence is not None
    target.settings.persistence.check()
    prepare(scene.parts(broker, "one"))
    with pytest.raises(WrongPair, match="install --tables"):
        prepare(target)


def test_a_marking_that_was_cut_off_is_finished_by_the_next_start(scene: Scene) -> None:
    broker = scene.broker()
    parts = scene.parts(broker)
    store = cast(SqlPersistence, parts.settings.persistence)
    store.install()
    kept = store.propose_marker(scene.name, "word", broker.describe())

    install(scene.parts(broker))

    assert not kept.confirmed
    assert compare_markers(scene.settings(broker), write=False) == "word"
    found = store.marker(scene.name)
    assert found is not None
    assert found.confirmed


def test_many_starts_at_once_agree_on_one_marker(scene: Scene) -> None:
    broker = scene.broker()
    all_parts = [scene.parts(broker) for _ in range(4)]
    prepare(scene.parts(broker))
    scene.forget_broker(broker)
    store = cast(SqlPersistence, all_parts[0].settings.persistence)
    store.uninstall(scene.name, force=True)
    store.install()
    together = Barrier(4)
    failures: list[Exception] = []

    def start(parts: AssembledEndpoint) -> None:
        try:
            together.wait(10)
            prepare(parts)
        except Exception as error:
            failures.append(error)

    threads = [Thread(target=start, args=(parts,)) for parts in all_parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    assert compare_markers(scene.settings(broker), write=False) is not None


def test_a_start_that_installs_nothing_marks_nothing(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    store = cast(SqlPersistence, scene.parts(broker).settings.persistence)
    store.uninstall(scene.name, force=True)
    store.install()
    scene.forget_broker(broker)

    prepare(scene.parts(broker, install=False))

    assert store.marker(scene.name) is None
    assert compare_markers(scene.settings(broker), write=False) is None


def test_uninstalling_takes_the_marker_off_both(scene: Scene) -> None:
    broker = scene.broker()
    parts = scene.parts(broker)
    install(parts)

    uninstall_timeout_manager(parts.settings, force=True)

    with closing(broker.session()) as session:
        assert session.borne_marker(scene.name, None) is None
    install(scene.parts(broker, "two"))


def test_one_file_for_queues_and_timeouts_is_marked_too(sqlite_url: str, unique: str) -> None:
    config = EndpointConfiguration(unique)
    config.use_transport(sqlite_url)
    config.use_persistence(sqlite_url)
    config.enable_feature(TimeoutManager())
    with closing(Endpoint(config)) as endpoint:
        endpoint.install()
        endpoint.install()

        assert compare_markers(endpoint._parts.settings, write=False) is not None


def test_an_endpoint_without_a_store_needs_no_marker(rabbitmq_url: str, unique: str) -> None:
    config = EndpointConfiguration(unique)
    config.use_transport(rabbitmq_url)
    with closing(Endpoint(config)) as endpoint:
        assert compare_markers(endpoint._parts.settings, write=True) is None


def test_a_marker_is_recognised_without_the_configure_right(
    private_server: Callable[[str], Any], unique: str
) -> None:
    server = private_server("rabbitmq")
    with closing(KombuTransport(server.url)) as owner, closing(owner.session()) as session:
        assert isinstance(session, BearsMarkers)
        session.bear_marker(unique, "word", "the store")
    server.control("add_user", "worker", "secret")
    server.control("set_permissions", "-p", "/", "worker", "^$", ".*", ".*")
    url = urlsplit(server.url)._replace(netloc=f"worker:secret@127.0.0.1:{server.port}").geturl()

    with closing(KombuTransport(url)) as transport, closing(transport.session()) as session:
        assert isinstance(session, BearsMarkers)
        known = session.borne_marker(unique, "word")
        unknown = session.borne_marker(unique, "another")

    assert known == "word"
    assert unknown == topology.UNREADABLE


def test_reading_a_marker_that_is_not_there_makes_no_exchange(
    raw_channel: amqp.Channel, unique: str
) -> None:
    assert topology.read(raw_channel, unique, "word") is None

    with pytest.raises(amqp.NotFound):
        raw_channel.exchange_declare(f"timeoutmgr.marker.{unique}", "fanout", passive=True)


def test_a_wrong_pair_is_found_when_a_store_that_was_away_at_start_is_there(
    sqlite_url: str, unique: str, tmp_path: Path
) -> None:
    owner, stranger = (
        EndpointConfiguration(unique),
        EndpointConfiguration(unique),
    )
    for config, queues in ((owner, "one"), (stranger, "two")):
        config.use_transport(f"sqlite:///{tmp_path / queues}.db")
        config.use_persistence(sqlite_url)
        config.enable_feature(TimeoutManager())
    with closing(Endpoint(owner)) as endpoint:
        endpoint.install()
    parts = assemble(stranger.settings())
    parts.settings.transport.install()
    store = parts.features.store
    persistence = parts.settings.persistence
    assert store is not None
    assert persistence is not None
    # A start that met no storage has not compared them.
    ready = Readiness(persistence, store, True, check_pair=lambda: check_pair(parts.settings))

    with pytest.raises(StorageUnavailable, match="do not belong together"):
        ready()

    parts.settings.transport.close()
    parts.close_storage()

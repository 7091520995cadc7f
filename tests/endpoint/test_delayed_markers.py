"""Delayed message store and broker of an endpoint know each other by a marker of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from timeoutmgr import DelayedDeliverySettings, EndpointConfiguration
from timeoutmgr.contracts import BearsMarkers, DelayedMessageStore, TransactionMode
from timeoutmgr.endpoint.assembly import AssembledEndpoint, assemble
from timeoutmgr.endpoint.installation import install, prepare
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable, WrongPair
from timeoutmgr.features.delayed_delivery import StoreStart
from timeoutmgr.features.markers import check_pair, compare_markers
from timeoutmgr.message.routes import DELAYED
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.sql import SqlTransport

BROKERS = ["rabbitmq", "redis", "sqlite", "postgres", "mysql"]


class Scene:
    """An endpoint, and brokers and delayed message stores to give it."""

    def __init__(self, name: str, kind: str, url: str, folder: Path, stack: ExitStack) -> None:
        self.name = name
        self._kind = kind
        self._url = url
        self._folder = folder
        self._stack = stack

    def broker(self) -> Any:
        """Return the broker, as a transport of its own."""
        if self._kind in ("rabbitmq", "redis"):
            made: Any = KombuTransport(self._url, queue_type="classic", accept_loss=True)
        else:
            made = SqlTransport(self._url, prefix=f"{self.name}q_")
        return self._stack.enter_context(closing(made))

    def url(self, store: str) -> str:
        return f"sqlite:///{self._folder / store}.db"

    def parts(
        self, broker: Any, store: str | DelayedMessageStore = "one", *, install: bool = True
    ) -> AssembledEndpoint:
        """Return the endpoint on *broker* with the delayed messages in the file called *store*."""
        config = self._config(install)
        made = SqlDelayedMessageStore(self.url(store)) if isinstance(store, str) else store
        config.use_transport(broker, delayed_delivery=DelayedDeliverySettings(made))
        return self._assembled(config)

    def with_timeout_manager(self, broker: Any, store: str) -> AssembledEndpoint:
        """Return the endpoint on *broker* with a timeout manager whose store is called *store*."""
        config = self._config(True)
        config.use_transport(broker)
        config.use_persistence(self.url(store))
        config.enable_feature(TimeoutManager())
        return self._assembled(config)

    def forget_broker(self, broker: Any) -> None:
        """Have *broker* be as another broker, which never heard of this endpoint."""
        with closing(broker.session()) as session:
            assert isinstance(session, BearsMarkers)
            session.drop_marker(self.name, None)
            session.drop_marker(self.name + DELAYED, None)

    def _config(self, install: bool) -> EndpointConfiguration:
        config = EndpointConfiguration(self.name)
        config.accept_loss()
        config.error_queue = f"{self.name}.error"
        config.install = install
        return config

    def _assembled(self, config: EndpointConfiguration) -> AssembledEndpoint:
        parts = assemble(config.settings())
        self._stack.callback(parts.close_storage)
        return parts


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
                behind = ("", ".timeouts", ".Timeouts", ".TimeoutsDispatcher", ".error")
                session.delete_queues([unique + each for each in behind])


def test_a_pair_is_marked_once_and_starts_again_and_again(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    first = compare_markers(scene.parts(broker).settings, write=False)

    prepare(scene.parts(broker))
    prepare(scene.parts(broker, install=False))

    assert first is not None
    assert compare_markers(scene.parts(broker).settings, write=False) == first


@pytest.mark.parametrize("scene", [each for each in BROKERS if each != "redis"], indirect=True)
def test_a_store_of_another_broker_is_refused_by_install_and_start(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    scene.forget_broker(broker)

    for refused in (install, prepare):
        with pytest.raises(WrongPair, match="install --new-marker") as refusal:
            refused(scene.parts(broker))

    assert "bears none" in str(refusal.value)
    assert str(scene.url("one").removeprefix("sqlite:///")) in str(refusal.value)


def test_a_broker_of_another_store_is_refused(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker, "one"))

    with pytest.raises(WrongPair, match="another store"):
        install(scene.parts(broker, "two"))


def test_a_new_marker_admits_another_broker_on_purpose(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    before = compare_markers(scene.parts(broker).settings, write=False)
    scene.forget_broker(broker)

    install(scene.parts(broker), new_marker=True)

    prepare(scene.parts(broker))
    after = compare_markers(scene.parts(broker).settings, write=False)
    assert after not in (None, before)


def test_an_endpoint_changes_over_from_a_timeout_manager_and_back(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.with_timeout_manager(broker, "timeouts"))

    install(scene.parts(broker, "delayed"))

    prepare(scene.with_timeout_manager(broker, "timeouts"))
    prepare(scene.parts(broker, "delayed"))


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
def test_a_store_of_the_users_own_needs_no_marker(scene: Scene) -> None:
    class Own(SqlDelayedMessageStore):
        marker = None  # type: ignore[assignment]  # a store without this ability

    parts = scene.parts(scene.broker(), Own(scene.url("one")))

    install(parts)

    assert compare_markers(parts.settings, write=True) is None


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
def test_a_wrong_pair_is_found_when_a_store_that_was_away_at_start_is_there(scene: Scene) -> None:
    broker = scene.broker()
    install(scene.parts(broker))
    scene.forget_broker(broker)
    stranger = scene.parts(broker)
    assert stranger.features.delayed is not None

    # The endpoint started without the store, so that nothing was compared.
    with pytest.raises(StorageUnavailable, match="do not belong together"):
        stranger.features.delayed.ready()


def test_store_and_broker_are_compared_when_a_broker_that_was_away_is_there(
    sqlite_url: str,
) -> None:
    answers: list[Exception | None] = [TransportUnavailable("away"), None]
    asked: list[Exception | None] = []

    def check() -> None:
        asked.append(answers.pop(0))
        if asked[-1] is not None:
            raise asked[-1]

    with closing(SqlDelayedMessageStore(sqlite_url)) as store:
        mode = TransactionMode.RECEIVE_ONLY
        start = StoreStart(store, "sales", mode, install=True, check_pair=check)
        for _ in range(3):
            start.ready()

    assert len(asked) == 2


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
def test_a_pair_of_an_earlier_version_is_marked_by_the_next_start(scene: Scene) -> None:
    broker = scene.broker()
    parts = scene.parts(broker)
    install(parts)
    store = parts.settings.delayed_delivery
    assert store is not None
    assert isinstance(store.store, SqlDelayedMessageStore)
    database, table = store.store.database, f"{scene.name}.delayed"
    with database.begin() as connection:  # as the first revision left it
        connection.exec_driver_sql(f'DROP TABLE "{table}.marker"')
        connection.exec_driver_sql(f"UPDATE \"{table}.version\" SET version_num = '0001'")
    scene.forget_broker(broker)

    prepare(scene.parts(broker))

    assert compare_markers(scene.parts(broker).settings, write=False) is not None


def test_check_pair_marks_nothing_without_installers(unique: str, sqlite_url: str) -> None:
    config = EndpointConfiguration(unique)
    config.install = True
    store = DelayedDeliverySettings(SqlDelayedMessageStore(sqlite_url))
    config.use_transport(sqlite_url, delayed_delivery=store)
    parts = assemble(config.settings())
    parts.settings.transport.install()
    assert parts.features.delayed is not None
    parts.features.delayed.set_up()

    config.install = False
    check_pair(config.settings())

    assert compare_markers(parts.settings, write=False) is None
    parts.settings.transport.close()
    parts.close_storage()

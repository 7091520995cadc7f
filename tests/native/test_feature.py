"""The requirements of native delayed delivery, and the sentence of each refusal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.native.fleet import Fleet
from timeoutmgr import EndpointConfiguration, SendOptions
from timeoutmgr.endpoint.assembly import assemble
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    DelayedDeliveryDisabled,
    FeatureRefused,
    QueueMissing,
)
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.native.infrastructure import DelayLevels, check_broker
from timeoutmgr.native.names import OURS, UNROUTABLE, NameSet
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.settings.file import configuration_from
from timeoutmgr.transport.amqp.session import RabbitMQSession
from timeoutmgr.transport.kombu_transport import KombuTransport

BROKER = "amqp://guest:guest@127.0.0.1:1//"  # no broker listens there, and no test connects


def on_broker(name: str = "sales", **settings: object) -> EndpointConfiguration:
    config = EndpointConfiguration(name)
    config.use_transport(BROKER)
    config.enable_feature(NativeDelayedDelivery(**settings))  # type: ignore[arg-type]  # given
    return config


def on_sqlite(config: EndpointConfiguration) -> None:
    config.use_transport("sqlite:///never.db")


def external(config: EndpointConfiguration) -> None:
    config.use_external_timeout_manager("billing.Timeouts")


def with_store(config: EndpointConfiguration) -> None:
    store = SqlDelayedMessageStore("sqlite:///never.db")
    config.use_transport(BROKER, delayed_delivery=DelayedDeliverySettings(store))


def falling_back(config: EndpointConfiguration) -> None:
    config.enable_feature(NativeDelayedDelivery(fallback_to_store=True))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (on_sqlite, "Only RabbitMQ has the exchanges"),
        (external, "Use one of the two"),
        (with_store, "Leave delayed_delivery out"),
        (falling_back, "needs a store to fall back to"),
    ],
)
def test_a_setting_that_excludes_it_is_refused_with_the_reason(
    spoil: Callable[[EndpointConfiguration], None], sentence: str
) -> None:
    config = on_broker()
    spoil(config)

    with pytest.raises(FeatureRefused, match=sentence):
        assemble(config.settings())


@pytest.mark.behaviour(112)
def test_an_endpoint_whose_own_name_cannot_be_bound_is_refused() -> None:
    with pytest.raises(FeatureRefused, match="Choose another name"):
        assemble(on_broker("sales.*").settings())


@pytest.mark.behaviour(116)
@pytest.mark.parametrize(
    "levels",
    [
        {"queue_type": "classic"},
        {"names": "celery", "queue_type": "classic"},
        {"names": "nservicebus-v1"},
    ],
)
def test_levels_of_classic_queues_are_refused_until_their_loss_is_accepted(
    levels: dict[str, str],
) -> None:
    config = on_broker(**levels)

    with pytest.raises(FeatureRefused, match=r"at most once.*quorum queues.*accept_loss=True"):
        assemble(config.settings())
    config.accept_loss()

    assert assemble(config.settings()).features.levels


def test_unknown_names_and_queue_types_are_refused_when_they_are_given() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'celery'"):
        NativeDelayedDelivery(names="celary")
    with pytest.raises(ConfigurationError, match="quorum queues, got 'classic'"):
        NativeDelayedDelivery(names="nservicebus-v2", queue_type="classic")
    with pytest.raises(ConfigurationError, match="prefix"):
        NativeDelayedDelivery(prefix="shop")


@pytest.mark.behaviour(118)
def test_without_the_feature_a_delay_is_refused_and_nothing_is_declared() -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(BROKER)
    parts = assemble(config.settings())

    assert parts.features.installed == ()
    assert UNROUTABLE not in parts.queues
    with pytest.raises(DelayedDeliveryDisabled, match="NativeDelayedDelivery"):
        parts.composer.compose("billing", "Remind", {}, SendOptions(delay=1))


def test_a_send_only_endpoint_sends_delays_and_receives_nothing() -> None:
    config = on_broker()
    config.send_only()
    parts = assemble(config.settings())

    assert parts.queues == []
    assert parts.features.delays is not None


def test_a_settings_file_enables_it_and_disables_the_timeout_manager(tmp_path: Path) -> None:
    path = tmp_path / "sales.toml"
    path.write_text(
        f"""
        endpoint = "sales"
        transport = "{BROKER}"
        features = ["native-delayed-delivery"]
        disable_timeout_manager = true
        [native-delayed-delivery]
        names = "celery"
        prefix = "shop"
        queue_type = "classic"
        """
    )

    settings = configuration_from(path, {}).settings()

    [feature] = settings.features
    assert feature == NativeDelayedDelivery(names="celery", prefix="shop", queue_type="classic")
    assert settings.manager_disabled.value == "once drained"
    path.write_text(path.read_text().replace('delivery"]', 'delivery", "timeout-manager"]'))
    with pytest.raises(ConfigurationError, match="leave out one"):
        configuration_from(path, {})


# --- the broker -------------------------------------------------------------------------------


@pytest.mark.behaviour(116)
@pytest.mark.parametrize(
    ("version", "queue_type", "sentence"),
    [
        ((), "classic", "of another make.*Use TimeoutManager"),
        ((3, 9, 29), "quorum", "3.9.29.*queue_type='classic' and accept_loss=True"),
    ],
)
def test_a_broker_on_which_levels_lose_is_refused(
    version: tuple[int, ...], queue_type: str, sentence: str
) -> None:
    with pytest.raises(CombinationRefused, match=sentence):
        check_broker(version, "quorum" if queue_type == "quorum" else "classic")


@pytest.mark.behaviour(116)
def test_the_broker_is_checked_when_levels_are_installed_and_looked_for(
    transport: KombuTransport, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = DelayLevels(transport=transport, names=own_names(unique), queue_type="quorum")

    with monkeypatch.context() as patch:
        patch.setattr(RabbitMQSession, "server_version", (3, 9, 29))
        for step in (levels.install, levels.check):
            with pytest.raises(CombinationRefused, match=r"3\.9\.29"):
                step()

    assert levels.counts() == {}


@pytest.mark.behaviour(116)
def test_an_endpoint_is_not_started_on_a_broker_on_which_levels_lose(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RabbitMQSession, "server_version", ())

    for installs in (True, False):
        config = fleet.native(f"{fleet.stem}.sales")
        config.install = installs
        with pytest.raises(CombinationRefused, match="of another make"):
            fleet.start(config)


@pytest.mark.behaviour(116)
def test_newer_brokers_and_older_brokers_with_classic_queues_are_accepted() -> None:
    check_broker((3, 10, 0), "quorum")
    check_broker((4, 1, 0), "quorum")
    check_broker((3, 8, 0), "classic")


def own_names(stem: str) -> NameSet:
    return NameSet(
        name="own",
        level=f"{stem}.level-{{}}",
        delivery=f"{stem}.delivery",
        arguments=OURS.arguments,
    )


@pytest.mark.behaviour(115)
def test_a_start_that_may_not_declare_names_missing_levels(
    transport: KombuTransport, unique: str
) -> None:
    levels = DelayLevels(transport=transport, names=own_names(unique), queue_type="quorum")

    with pytest.raises(QueueMissing, match=r"level-27.*timeoutmgr install"):
        levels.check()
    levels.install()
    levels.check()
    assert set(levels.counts().values()) == {0}
    levels.remove()
    assert levels.counts() == {}


@pytest.mark.behaviour(113)
def test_whether_unroutable_messages_have_a_place_is_found_out(
    transport: KombuTransport, unique: str
) -> None:
    ours = DelayLevels(transport=transport, names=OURS, queue_type="quorum")
    without = DelayLevels(transport=transport, names=own_names(unique), queue_type="classic")
    for levels in (ours, without):
        levels.install()

    assert ours.has_alternate()
    assert not without.has_alternate()

    without.remove()


def test_a_start_without_installers_needs_the_levels_and_binds_nothing(
    fleet: Fleet, transport: KombuTransport, unique: str
) -> None:
    fleet.start(fleet.native(f"{fleet.stem}.first"))
    config = fleet.native(f"{fleet.stem}.second")
    config.install = False
    with pytest.raises(QueueMissing, match=f"{fleet.stem}.second"):
        fleet.start(config)

    with closing(transport.session()) as session:
        session.create_queues([f"{fleet.stem}.second"])
    fleet.start(config)

"""Where timeouts rest if nothing is named: the embedded file beside itself, nowhere else."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.ports import FakeTransport
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.contracts import Transport
from timeoutmgr.endpoint.configuration import DATA, embedded_path, transport_from_url
from timeoutmgr.endpoint.installation import host_file_beside_broker
from timeoutmgr.errors import CombinationRefused, FeatureRefused
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.settings.file import configuration_from

AMQP = "amqp://guest:guest@localhost//"
IN_MEMORY = transport_from_url("memory://", accept_loss=True)


@pytest.fixture(autouse=True)
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The embedded file, of this test alone."""
    monkeypatch.setenv(DATA, str(tmp_path / "timeoutmgr.db"))
    return tmp_path / "timeoutmgr.db"


def sales(transport: str | Transport) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(transport, accept_loss=True)
    config.enable_feature(TimeoutManager())
    return config


@pytest.mark.parametrize(
    ("transport", "line"),
    [
        (AMQP, 'persistence = "postgresql+psycopg://localhost/timeoutmgr"'),
        ("redis://localhost", 'persistence = "postgresql+psycopg://localhost/timeoutmgr"'),
        ("sqlite:///other.db", 'persistence = "sqlite:///other.db"'),
        (
            "postgresql+psycopg://u:secret@h/sales",
            'persistence = "postgresql+psycopg://u:***@h/sales"',
        ),
        (IN_MEMORY, 'persistence = "memory"'),
        (FakeTransport(), 'persistence = "postgresql+psycopg://localhost/timeoutmgr"'),
    ],
)
def test_an_unnamed_persistence_is_refused_with_the_line_to_add(
    transport: str | Transport, line: str, embedded: Path
) -> None:
    with pytest.raises(CombinationRefused) as refused:
        Endpoint(sales(transport))

    assert line in str(refused.value)
    assert "config.use_persistence(" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert not embedded.exists()


def test_options_do_not_name_a_persistence() -> None:
    config = configuration_from(
        environ={"TIMEOUTMGR_PERSISTENCE_OPTIONS_HISTORY": "full"},
        overrides={"endpoint": "sales", "transport": AMQP, "features": ["timeout-manager"]},
    )

    with pytest.raises(CombinationRefused, match="without a persistence"):
        config.settings()


def test_the_embedded_file_may_be_spelt_out_as_the_transport(embedded: Path) -> None:
    settings = sales(f"sqlite:///{embedded.parent}/./{embedded.name}").settings()

    assert settings.persistence is not None
    assert settings.persistence.database is settings.transport.database is not None


def test_endpoints_that_store_nothing_need_no_persistence() -> None:
    sends = EndpointConfiguration("sales")
    sends.use_transport(AMQP)
    sends.send_only()
    native = EndpointConfiguration("sales")
    native.use_transport(AMQP)
    native.enable_feature(NativeDelayedDelivery())

    assert sends.settings().persistence is native.settings().persistence is None


def test_a_timeout_manager_that_sends_only_is_refused_as_such() -> None:
    config = sales(AMQP)
    config.send_only()

    with pytest.raises(FeatureRefused, match="Send only endpoints"):
        Endpoint(config)


def test_a_named_file_beside_a_broker_is_allowed_and_warned_about(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    config = sales(FakeTransport("sales.Timeouts", "sales.TimeoutsDispatcher"))
    config.use_persistence(f"sqlite:///{tmp_path}/named.db")

    with caplog.at_level(logging.WARNING), Endpoint(config):
        pass

    [warning] = [
        each.getMessage() for each in caplog.records if "for one host" in each.getMessage()
    ]
    assert "named.db of this host, the queues at simulated://" in warning
    assert "name a database server" in warning


def test_a_file_is_not_doubted_where_other_hosts_reach_no_queue() -> None:
    in_memory = sales(IN_MEMORY)
    in_memory.use_persistence(f"sqlite:///{embedded_path()}")
    in_another_file = sales("sqlite:///other.db")
    in_another_file.use_persistence(f"sqlite:///{embedded_path()}")
    on_a_server = sales(AMQP)
    on_a_server.use_persistence("postgresql+psycopg://localhost/sales")

    for config in (in_memory, in_another_file, on_a_server):
        assert host_file_beside_broker(config.settings()) is None


def test_a_delayed_message_store_in_a_file_beside_a_broker_is_doubted(tmp_path: Path) -> None:
    config = EndpointConfiguration("sales")
    store = SqlDelayedMessageStore(f"sqlite:///{tmp_path}/delayed.db")
    config.use_transport(AMQP, delayed_delivery=DelayedDeliverySettings(store))

    assert "delayed.db of this host" in str(host_file_beside_broker(config.settings()))

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.clock import FakeClock
from tests.support.delayed import BatchStore, SingleStore
from tests.support.forks import ended_in_a_child
from tests.support.ports import FakeTransport
from timeoutmgr import (
    DelayedDeliverySettings,
    Endpoint,
    EndpointConfiguration,
    TransactionMode,
)
from timeoutmgr.contracts import Transport
from timeoutmgr.endpoint.assembly import AssembledEndpoint, assemble
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    FeatureRefused,
    InvalidMessage,
    SchemaMissing,
    StorageUnavailable,
    UnknownSetting,
)
from timeoutmgr.features.delayed_delivery import StoreStart
from timeoutmgr.features.parts import Satellite
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.settings.file import configuration_from

RECEIVE = TransactionMode.RECEIVE_ONLY


class Building(BatchStore):
    """A store that can set up its infrastructure."""

    def setup_infrastructure(self, endpoint_name: str) -> None:
        self.called("setup")


def a_config(store: object | None = None, **settings: Any) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(
        cast(Transport, FakeTransport()),
        delayed_delivery=DelayedDeliverySettings(
            cast(Any, store or BatchStore(FakeClock())), **settings
        ),
    )
    return config


def parts_of(config: EndpointConfiguration) -> AssembledEndpoint:
    return assemble(config.settings())


# --- settings


def test_one_attempt_and_half_a_minute_are_the_default() -> None:
    settings = DelayedDeliverySettings(BatchStore(FakeClock()))

    assert (settings.number_of_retries, settings.attempts) == (0, 1)
    assert settings.time_to_trigger_store_circuit_breaker == timedelta(seconds=30)
    assert settings.time_to_trigger_fetch_circuit_breaker == timedelta(seconds=30)
    assert settings.time_to_trigger_dispatch_circuit_breaker == timedelta(seconds=30)
    assert settings.maximum_recovery_failures_per_second == 1


@pytest.mark.behaviour(16)
@pytest.mark.parametrize(
    "wrong",
    [
        {"number_of_retries": -1},
        {"number_of_retries": 1.5},
        {"number_of_retries": True},
        {"time_to_trigger_store_circuit_breaker": timedelta(0)},
        {"time_to_trigger_fetch_circuit_breaker": timedelta(seconds=-1)},
        {"time_to_trigger_dispatch_circuit_breaker": 30},
        {"maximum_recovery_failures_per_second": 0},
        {"maximum_recovery_failures_per_second": float("nan")},
        {"maximum_recovery_failures_per_second": "1"},
        {"batch": 0},
        {"batch": 1001},
    ],
)
def test_a_wrong_value_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    [(name, value)] = wrong.items()

    with pytest.raises(ConfigurationError, match=name) as refused:
        DelayedDeliverySettings(BatchStore(FakeClock()), **wrong)

    assert repr(value) in str(refused.value)


def test_the_refusal_of_an_incomplete_store_names_the_missing_methods() -> None:
    with pytest.raises(ConfigurationError, match=r"no .*fetch_next_due_timeout"):
        DelayedDeliverySettings(cast(Any, object()))


def test_a_store_in_place_of_settings_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="DelayedDeliverySettings with the store"):
        EndpointConfiguration("sales").use_transport(
            "memory://", delayed_delivery=cast(Any, BatchStore(FakeClock()))
        )


# --- assembly


def test_the_feature_consumes_its_queue_and_drains_the_queue_of_an_existing_timeout_manager() -> (
    None
):
    parts = parts_of(a_config())

    consumed = {one.consumption.queue: one.optional_queue for one in parts.satellites}
    assert consumed == {"sales.timeouts": False, "sales.Timeouts": True}
    assert parts.queues == ["sales", "sales.timeouts", "error"]


def test_delays_go_to_the_queue_of_the_delayed_store() -> None:
    parts = parts_of(a_config())

    assert parts.features.delays is not None
    assert parts.features.manager_address == "sales.timeouts"


def test_an_endpoint_that_only_sends_keeps_its_delayed_messages_all_the_same() -> None:
    config = a_config()
    config.send_only()

    assert parts_of(config).queues == ["sales.timeouts", "error"]


def test_a_delayed_store_beside_a_timeout_manager_is_refused() -> None:
    config = a_config()
    config.enable_feature(TimeoutManager())
    config.use_persistence("memory", accept_loss=True)

    with pytest.raises(FeatureRefused, match=r"TimeoutManager is enabled too.*disable_feature"):
        parts_of(config)


def test_a_delayed_store_beside_an_external_timeout_manager_is_refused() -> None:
    config = a_config()
    config.use_external_timeout_manager("other.Timeouts")

    with pytest.raises(FeatureRefused, match="Use one of the two"):
        parts_of(config)


@pytest.mark.behaviour(95)
def test_a_delayed_store_without_an_error_queue_does_not_start() -> None:
    config = a_config()
    config.error_queue = ""

    with pytest.raises(ConfigurationError, match="error_queue"):
        config.settings()


@pytest.mark.behaviour(84)
def test_one_transaction_over_two_databases_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(
        f"sqlite:///{tmp_path / 'queues.db'}",
        delayed_delivery=DelayedDeliverySettings(SqlDelayedMessageStore(sqlite_url)),
    )
    config.transaction_mode = TransactionMode.TRANSACTION_SCOPE

    with pytest.raises(CombinationRefused, match="do not share one database"):
        parts_of(config)


def test_one_database_for_both_is_one_transaction(sqlite_url: str) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(
        sqlite_url, delayed_delivery=DelayedDeliverySettings(SqlDelayedMessageStore(sqlite_url))
    )

    assert parts_of(config).mode is TransactionMode.TRANSACTION_SCOPE


def test_the_store_satellite_has_one_attempt_and_the_retries() -> None:
    satellites: tuple[Satellite, ...] = parts_of(a_config(number_of_retries=2)).satellites

    assert {one.consumption.policy.immediate for one in satellites} == {3}


@pytest.mark.parametrize(
    ("breaker", "sentence"),
    [
        ("DelayedStore", "Failed to store delayed message"),
        ("DelayedFetch", "Failed to fetch due delayed messages from the storage"),
        ("DelayedDispatch", "Failed to dispatch delayed messages to destination"),
        (
            "DelayedRecovery",
            "Failed to execute error handling for delayed message forwarding",
        ),
    ],
)
@pytest.mark.behaviour(78, 93)
def test_each_breaker_has_its_own_sentence(breaker: str, sentence: str) -> None:
    parts = parts_of(a_config())
    [one] = [each for each in parts.breakers if each.name == breaker]

    one._on_trigger(RuntimeError("x"))

    assert parts.critical.raised is not None
    assert parts.critical.raised[0] == sentence


def test_clearing_a_saga_is_refused_at_the_door() -> None:
    endpoint = Endpoint(a_config())

    with pytest.raises(ConfigurationError, match="nothing to clear"):
        endpoint.clear_timeouts("saga")
    with pytest.raises(ConfigurationError, match="nothing to clear"):
        endpoint._parts.composer.clear("saga")
    with pytest.raises(ConfigurationError, match="cannot list or change"):
        _ = endpoint.timeouts


@pytest.mark.behaviour(96)
@pytest.mark.parametrize(
    "name", ["NServiceBus.Timeout.Destination", "NServiceBus.Timeouts.Properties.X"]
)
def test_headers_that_steer_the_delivery_are_refused(name: str) -> None:
    endpoint = Endpoint(a_config())

    with pytest.raises(InvalidMessage, match="set by the timeout manager"):
        endpoint.send("billing", "Ping", 1, delay=1, headers={name: "x"})


def test_the_queue_of_the_store_is_refused_as_destination_and_as_endpoint_name() -> None:
    with pytest.raises(InvalidMessage, match="belongs to"):
        Endpoint(a_config()).send("sales.timeouts", "Ping", 1)
    with pytest.raises(ConfigurationError, match=r"\.timeouts"):
        EndpointConfiguration("sales.timeouts")


# --- starting the store


@pytest.mark.behaviour(83)
def test_set_up_runs_once_before_initialize_runs_once() -> None:
    store = Building(FakeClock())
    start = StoreStart(store, "sales", RECEIVE, install=True)

    start.start()
    start.ready()

    assert store.journal == ["setup", "initialize"]
    assert store.initialized == [("sales", RECEIVE)]


@pytest.mark.behaviour(83)
@pytest.mark.parametrize(("form", "install"), [(Building, False), (SingleStore, True)])
def test_a_store_without_installers_or_infrastructure_is_initialized_only(
    form: type[SingleStore], install: bool
) -> None:
    store = form(FakeClock())

    StoreStart(store, "sales", RECEIVE, install=install).start()

    assert store.journal == ["initialize"]


@pytest.mark.behaviour(84)
def test_a_store_that_refuses_the_mode_ends_the_start() -> None:
    store = BatchStore(FakeClock())
    store.fail("initialize", ConfigurationError("no such mode here"))

    with pytest.raises(ConfigurationError, match="no such mode"):
        StoreStart(store, "sales", RECEIVE, install=True).start()


@pytest.mark.behaviour(76)
def test_a_store_that_is_away_is_started_when_it_is_back() -> None:
    store = Building(FakeClock())
    store.fail("setup", StorageUnavailable("away"), None)
    store.fail("initialize", SchemaMissing("not yet"))
    start = StoreStart(store, "sales", RECEIVE, install=True)

    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            start.probe()
    start.probe()

    assert store.journal == ["setup", "setup", "initialize", "setup", "initialize", "next"]


def test_a_child_starts_the_store_that_a_thread_of_its_parent_is_starting() -> None:
    begun, away = threading.Event(), threading.Event()

    class Hanging(BatchStore):
        def initialize(self, endpoint: str, mode: TransactionMode) -> None:
            begun.set()
            away.wait()

    start = StoreStart(Hanging(FakeClock()), "sales", RECEIVE, install=False)
    starts = threading.Thread(target=start.start)
    starts.start()
    begun.wait()

    def child() -> int:
        start.store = BatchStore(FakeClock())
        start.start()
        return 7

    ended = ended_in_a_child(child)
    away.set()
    starts.join()
    assert ended == 7


# --- from a file


def test_a_settings_file_can_set_all_options_of_the_feature(tmp_path: Path) -> None:
    file = tmp_path / "timeoutmgr.toml"
    file.write_text(
        f"""
        endpoint = "sales"
        transport = "sqlite:///{tmp_path / "q.db"}"
        [delayed_delivery]
        store = "sqlite:///{tmp_path / "q.db"}"
        table = "later"
        number_of_retries = 2
        time_to_trigger_fetch_circuit_breaker = "45s"
        maximum_recovery_failures_per_second = 0.5
        """
    )

    settings = configuration_from(file, {}).settings().delayed_delivery

    assert settings is not None
    assert isinstance(settings.store, SqlDelayedMessageStore)
    assert settings.attempts == 3
    assert settings.time_to_trigger_fetch_circuit_breaker == timedelta(seconds=45)
    assert settings.maximum_recovery_failures_per_second == 0.5


def test_the_environment_can_set_the_options_of_the_feature(tmp_path: Path) -> None:
    config = configuration_from(
        None,
        {
            "TIMEOUTMGR_ENDPOINT": "sales",
            "TIMEOUTMGR_TRANSPORT": f"sqlite:///{tmp_path / 'q.db'}",
            "TIMEOUTMGR_DELAYED_DELIVERY_STORE": f"sqlite:///{tmp_path / 'q.db'}",
        },
    )

    assert config.settings().delayed_delivery is not None


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('store = "mssql+pyodbc://host/db"', "SQL Server"),
        ("number_of_retries = 1", "names no store"),
        ('store = "sqlite:///x.db"\nnumber_of_retries = -1', "number_of_retries"),
        ('store = "oracle://x"', "oracle"),
    ],
)
def test_a_refusal_names_the_defect_in_the_file(tmp_path: Path, table: str, sentence: str) -> None:
    file = tmp_path / "timeoutmgr.toml"
    file.write_text(f'endpoint = "sales"\n[delayed_delivery]\n{table}\n')

    with pytest.raises(ConfigurationError, match=sentence):
        configuration_from(file, {}).settings()


def test_a_misspelt_key_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "timeoutmgr.toml"
    file.write_text('endpoint = "sales"\n[delayed_delivery]\nnumber_of_retry = 1\n')

    with pytest.raises(UnknownSetting, match="number_of_retries"):
        configuration_from(file, {})

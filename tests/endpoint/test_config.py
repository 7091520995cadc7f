from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.ports import FakeTransport
from timeoutmgr import EndpointConfiguration, TransactionMode
from timeoutmgr.deadletter import DeadLetterQueues
from timeoutmgr.endpoint.configuration import (
    DATA,
    embedded_url,
    persistence_from_url,
    transport_from_url,
)
from timeoutmgr.errors import ConfigurationError, UnknownPart, UnknownSetting
from timeoutmgr.message.validation import Limits
from timeoutmgr.persistence import MemoryPersistence
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.satellites import TimeoutManager


@pytest.fixture
def config() -> EndpointConfiguration:
    made = EndpointConfiguration("sales")
    made.use_transport(FakeTransport(), accept_loss=True)
    return made


@pytest.mark.parametrize("name", ["sales", "Sales.Eu", "ü" * 90, "x" * 180])
def test_a_printable_name_that_leaves_room_for_the_suffixes_is_an_endpoints(name: str) -> None:
    assert EndpointConfiguration(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        None,
        5,
        "x" * 181,
        "ü" * 91,
        "a\nb",
        "amq.sales",
        "sales.Timeouts",
        "sales.TimeoutsDispatcher",
        "\ud800",
    ],
)
def test_a_name_unfit_for_queues_is_refused_as_endpoint_name(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="endpoint"):
        EndpointConfiguration(name)


@pytest.mark.parametrize("given", [None, 5, FakeTransport])
def test_a_part_that_is_neither_a_url_nor_an_object_of_its_contract_is_refused(
    config: EndpointConfiguration, given: Any
) -> None:
    for use, contract in ((config.use_transport, "Transport"), (config.use_persistence, "Persist")):
        with pytest.raises(ConfigurationError, match=f"a URL, or an object .* {contract}"):
            use(given)


@pytest.mark.behaviour(7)
def test_a_second_timeout_manager_address_is_refused(config: EndpointConfiguration) -> None:
    config.use_external_timeout_manager("one.Timeouts")

    with pytest.raises(ConfigurationError, match="already set the timeout manager address"):
        config.use_external_timeout_manager("two.Timeouts")


def test_the_same_timeout_manager_address_may_be_said_twice(config: EndpointConfiguration) -> None:
    config.use_external_timeout_manager("one.Timeouts")
    config.use_external_timeout_manager("one.Timeouts")

    assert config.settings().external_timeout_manager == "one.Timeouts"


@pytest.mark.parametrize("address", ["", "  ", None])
def test_an_empty_timeout_manager_address_is_refused(
    config: EndpointConfiguration, address: Any
) -> None:
    with pytest.raises(ConfigurationError, match="queue name"):
        config.use_external_timeout_manager(address)


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_concurrency_below_1_is_refused(config: EndpointConfiguration, concurrency: int) -> None:
    config.concurrency = concurrency

    with pytest.raises(ConfigurationError, match="at least 1"):
        config.settings()


def test_the_refusal_of_an_unknown_transaction_mode_names_the_known_modes(
    config: EndpointConfiguration,
) -> None:
    config.transaction_mode = "receive-only"  # type: ignore[assignment]  # wrong on purpose

    with pytest.raises(ConfigurationError, match=r"'receive_only'.*got 'receive-only'"):
        config.settings()


def test_a_transaction_mode_may_be_named_by_text(config: EndpointConfiguration) -> None:
    config.transaction_mode = "none"

    assert config.settings().transaction_mode is TransactionMode.NONE


@pytest.mark.behaviour(81)
def test_the_refusal_of_an_unknown_critical_error_action_names_the_known_actions(
    config: EndpointConfiguration,
) -> None:
    config.critical_error_action = "explode"

    with pytest.raises(ConfigurationError, match=r"'stop', 'log'.*got 'explode'"):
        config.settings()


def test_a_send_only_endpoint_with_handlers_is_refused(config: EndpointConfiguration) -> None:
    config.send_only()
    config.add_handler("Bill", lambda *_: None)

    with pytest.raises(ConfigurationError, match="send-only and has handlers for Bill"):
        config.settings()


@pytest.mark.parametrize("queue", ["", "x" * 200, "sales.Timeouts"])
def test_an_error_queue_that_cannot_be_sent_to_is_a_configuration_error(
    config: EndpointConfiguration, queue: str
) -> None:
    config.error_queue = queue

    with pytest.raises(ConfigurationError):
        config.settings()


def test_a_second_feature_of_one_name_takes_the_place_of_the_first(
    config: EndpointConfiguration,
) -> None:
    config.use_persistence(MemoryPersistence(accept_loss=True))
    config.enable_feature(TimeoutManager(chunk=1))
    config.enable_feature(TimeoutManager(chunk=2))

    [feature] = config.settings().features
    assert isinstance(feature, TimeoutManager)
    assert feature.chunk == 2


def test_a_feature_is_off_until_it_is_enabled(config: EndpointConfiguration) -> None:
    assert config.settings().features == ()


def test_a_disabled_feature_is_off(config: EndpointConfiguration) -> None:
    config.enable_feature(TimeoutManager())
    config.disable_feature("timeout-manager")
    config.disable_feature("never-enabled")

    assert config.settings().features == ()


def test_the_decorator_registers_and_returns_the_handler(config: EndpointConfiguration) -> None:
    @config.handler("Bill")
    def bill(_body: object, _context: object) -> None: ...

    assert config.settings().handlers == {"Bill": (bill,)}


@pytest.mark.parametrize("kind", ["", None, 5])
def test_a_handler_needs_the_name_of_a_message_type(
    config: EndpointConfiguration, kind: Any
) -> None:
    with pytest.raises(ConfigurationError, match="message type"):
        config.add_handler(kind, lambda *_: None)


def test_a_hook_that_cannot_be_called_is_refused(config: EndpointConfiguration) -> None:
    with pytest.raises(ConfigurationError, match="hook"):
        config.define_critical_error_action("stop")  # type: ignore[arg-type]  # wrong on purpose


def test_hooks_keep_their_order(config: EndpointConfiguration) -> None:
    def first(_: object) -> None: ...
    def second(_: object) -> None: ...

    config.define_critical_error_action(first)
    config.define_critical_error_action(second)

    assert config.settings().hooks == (first, second)


def test_options_beside_an_object_are_refused(config: EndpointConfiguration) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        config.use_persistence(MemoryPersistence(accept_loss=True), prefix="x")


@pytest.mark.parametrize(
    "url", ["sqlite:///x.db", "postgresql+psycopg://h/d", "mysql+pymysql://h/d", "amqp://h//"]
)
def test_an_unknown_option_of_a_transport_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="prefetchh"):
        transport_from_url(url, prefetchh=1)


@pytest.mark.parametrize("url", ["sqlite:///x.db", "memory"])
def test_an_unknown_option_of_a_persistence_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="prefixx"):
        persistence_from_url(url, prefixx="a")


@pytest.mark.parametrize("url", ["nonsense", "oracle://h/d", "", "rabbit://h"])
def test_a_transport_of_no_known_name_is_refused(url: str) -> None:
    with pytest.raises(UnknownPart):
        transport_from_url(url)


@pytest.mark.parametrize("url", ["postgres://h/d", "mongodb://h/d", "", "ravendb"])
def test_a_persistence_of_no_known_name_is_refused(url: str) -> None:
    with pytest.raises(UnknownPart):
        persistence_from_url(url)


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_a_bare_name_of_a_database_is_refused_as_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match="URL"):
        persistence_from_url(name)


def test_the_embedded_file_is_here_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA, raising=False)

    assert embedded_url() == "sqlite:///timeoutmgr.db"


def test_the_environment_names_another_embedded_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DATA, str(tmp_path / "x.db"))

    assert embedded_url() == f"sqlite:///{tmp_path}/x.db"


def test_queues_and_timeouts_rest_in_the_embedded_file_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DATA, str(tmp_path / "x.db"))
    config = EndpointConfiguration("sales")
    config.enable_feature(TimeoutManager())

    settings = config.settings()

    assert settings.persistence is not None
    assert settings.transport.database is settings.persistence.database is not None


def test_an_endpoint_makes_no_store_if_no_feature_needs_it(config: EndpointConfiguration) -> None:
    assert config.settings().persistence is None


def test_delayed_retries_beyond_max_delay_are_refused() -> None:
    config = EndpointConfiguration("sales")
    config.limits = Limits(max_delay=timedelta(seconds=59))
    config.recoverability = RecoverabilitySettings(delayed=3, increase=timedelta(seconds=20))

    with pytest.raises(ConfigurationError, match=r"0:01:00, which is more than limits\.max_delay"):
        config.settings()

    config.limits = Limits(max_delay=timedelta(seconds=60))
    assert config.settings().limits.max_delay == timedelta(seconds=60)


@pytest.mark.parametrize(
    "every", ["25 hours", "cron: 0 6 * * 1-5", "1 hour from 9000-01-01T00:00Z"]
)
def test_schedules_beyond_max_delay_are_refused(every: str) -> None:
    config = EndpointConfiguration("sales")
    config.recurring("tick", "Tick", {}, every="1 day")
    config.limits = Limits(max_delay=timedelta(days=1))
    assert config.settings().recurring

    config.recurring("rare", "Tick", {}, every=every)
    with pytest.raises(ConfigurationError, match=r"'rare': .* more than limits\.max_delay"):
        config.settings()


@pytest.mark.parametrize("value", [0, 501])
def test_a_handler_batch_out_of_its_range_is_refused(value: int) -> None:
    config = EndpointConfiguration("sales")
    config.handler_batch = value

    with pytest.raises(ConfigurationError, match=f"from 1 to 500, got {value}"):
        config.settings()


def test_a_batch_of_a_handler_is_one_message_or_left_out() -> None:
    config = EndpointConfiguration("sales")

    with pytest.raises(ConfigurationError, match="batch of a handler is 1"):
        config.add_handler("X", lambda _body, _context: None, batch=2)  # type: ignore[call-overload]  # the mistake


def test_a_setting_of_a_file_that_code_gives_in_an_object_is_refused_with_that_object() -> None:
    config = EndpointConfiguration("sales")

    with pytest.raises(
        UnknownSetting, match=r"did you mean 'settings=SqlSettings\(clock=\.\.\.\)'"
    ):
        config.use_persistence("sqlite:///timeoutmgr.db", clock="host")


@pytest.mark.parametrize("url", ["sqlite:///timeoutmgr.db", "amqp://localhost"])
def test_settings_of_a_transport_that_are_no_such_settings_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"settings takes \w+Settings, got 5 of type int"):
        EndpointConfiguration("sales").use_transport(url, settings=5)


def test_settings_of_a_store_that_are_no_such_settings_are_refused() -> None:
    config = EndpointConfiguration("sales")

    with pytest.raises(ConfigurationError, match="settings takes SqlSettings, got 5 of type int"):
        config.use_persistence("sqlite:///timeoutmgr.db", settings=5)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("concurency", 3, "did you mean 'concurrency'"),
        ("middleware", ["x"], "did you mean 'add_middleware'"),
        ("use_transport", "amqp://", "use_transport is called"),
        ("name", "other", "keeps its name"),
        ("concurrency", "4", "concurrency takes int, got '4' of type str"),
        ("concurrency", True, "concurrency takes int, got True of type bool"),
        ("check_destinations", "false", "check_destinations takes bool"),
        ("limits", None, "limits takes Limits"),
        ("recoverability", {"immediate": 2}, "takes RecoverabilitySettings or None"),
        ("shutdown_timeout", 5, r"timedelta\(seconds=5\), got 5 of type int"),
    ],
)
def test_a_misspelt_setting_and_a_wrong_type_are_refused_where_they_are_written(
    name: str, value: object, text: str
) -> None:
    config = EndpointConfiguration("sales")

    with pytest.raises(ConfigurationError, match=text):
        setattr(config, name, value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TimeoutManager(poll_interval=cast("Any", 5)), "TimeoutManager.poll_interval"),
        (lambda: RecoverabilitySettings(immediate=cast("Any", "2")), "immediate takes int"),
        (lambda: Limits(max_delay=cast("Any", 5)), "Limits.max_delay takes a timedelta"),
        (lambda: DeadLetterQueues(node="n", sweep_interval=cast("Any", 60)), "sweep_interval"),
        (lambda: DeadLetterQueues(node="n", node_quota=cast("Any", "1")), "node_quota takes int"),
        (lambda: DeadLetterQueues(node="n", journal=cast("Any", "no")), "journal takes bool"),
    ],
)
def test_settings_of_a_wrong_type_name_the_field(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make()


def test_a_decorator_without_its_message_type_is_refused() -> None:
    config = EndpointConfiguration("sales")

    with pytest.raises(ConfigurationError, match="handler is called with a message type"):

        @cast("Callable[[object], Callable[..., None]]", config.handler)
        def remind(message: object, context: object) -> None: ...


@pytest.mark.parametrize("given", ["timeout-manager", None])
def test_a_feature_is_no_name(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"such as TimeoutManager\(\)"):
        EndpointConfiguration("sales").enable_feature(given)


def test_a_database_whose_port_is_no_number_is_refused(config: EndpointConfiguration) -> None:
    with pytest.raises(ConfigurationError, match="'postgresql://host:port/name' is no database"):
        config.use_transport("postgresql://host:port/name")


@pytest.mark.parametrize(
    ("message_type", "read"),
    [
        ("Shop.Placed, Shop, Version=1", "Shop.Placed"),
        ("A;B", "A"),
        (" Sp ", "Sp"),
        ("Pair[int,str]", "Pair[int"),
    ],
)
def test_a_handler_of_a_type_that_no_message_has_is_refused(
    config: EndpointConfiguration, message_type: str, read: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"register the handler for {read!r}")):
        config.add_handler(message_type, lambda _message, _context: None)


@pytest.mark.parametrize("message_type", ["", " ", ",", ", Shop", ";"])
def test_a_handler_of_a_type_without_a_name_is_refused(
    config: EndpointConfiguration, message_type: str
) -> None:
    with pytest.raises(ConfigurationError, match="a message type is a name"):
        config.add_handler(message_type, lambda _message, _context: None)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"destinations": 5}, "destinations is a URL or a transport, got 5"),
        ({"owner": 5}, "an owner is text of at most 64 characters, got 5"),
    ],
)
def test_an_option_of_sql_queues_of_another_type_is_refused_by_name(
    config: EndpointConfiguration, tmp_path: Path, option: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        config.use_transport(f"sqlite:///{tmp_path}/sales.db", **option)


@pytest.mark.parametrize("given", [None, 5, object()])
def test_a_clock_without_its_methods_is_refused(given: Any) -> None:
    config = EndpointConfiguration("sales")
    config.clock = given

    with pytest.raises(ConfigurationError, match="clock is an object with now and monotonic"):
        config.settings()


def test_a_telemetry_without_its_methods_is_refused() -> None:
    config = EndpointConfiguration("sales")
    config.telemetry = object()  # type: ignore[assignment]  # a mistake

    with pytest.raises(ConfigurationError, match="telemetry is an object with count and value"):
        config.settings()

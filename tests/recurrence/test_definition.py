"""Recurring timeouts in a configuration: refused values, refused parts, settings files."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.recurrence.fleet import Fleet
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.errors import CombinationRefused, ConfigurationError, UnknownSetting
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.persistence import MemoryPersistence, SqlDelayedMessageStore, memory
from timeoutmgr.persistence.memory_store import MemoryTimeoutStore
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.sender.composer import ToSend
from timeoutmgr.settings.file import configuration_from

TOML = """
endpoint = "sales"
transport = "memory://"
persistence = "memory"
accept_loss = true
features = ["timeout-manager"]

[recurring.daily-report]
type = "DailyReport"
body = { to = "all" }
every = "1 day at 06:00 Europe/Berlin"
destination = "reports"
catch_up = "none"
headers = { tenant = "t1" }

[recurring."every quarter"]
type = "Tick"
every = 900
"""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"name": ""}, "name of a recurring timeout"),
        ({"name": []}, "name of a recurring timeout"),
        ({"name": "a\nb"}, "name of a recurring timeout"),
        ({"name": "n" * 201}, "name of a recurring timeout"),
        ({"message_type": ""}, "'tick': a message type"),
        ({"destination": 7}, "'tick': a destination"),
        ({"destination": ""}, "'tick': a destination"),
        ({"catch_up": "some"}, "'tick': catch_up takes 'one', 'all', 'none', got 'some'"),
        ({"every": "often"}, "'tick': every is"),
        ({"headers": 5}, "'tick': headers are texts by their names, got 5"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_given(given: dict[str, Any], reason: str) -> None:
    whole: dict[str, Any] = {"name": "tick", "message_type": "Tick", "every": "1 hour", **given}
    config = EndpointConfiguration("sales")

    with pytest.raises(ConfigurationError, match=reason):
        config.recurring(whole.pop("name"), whole.pop("message_type"), {}, **whole)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"body": {"day": date(2024, 1, 1)}}, "'tick': the body .* of type date .* pass plain"),
        ({"body": {"x": float("nan")}}, "'tick': the body .* float values .* without NaN"),
        ({"headers": {"a": 1}}, "'tick': header 'a' is int 1; names and values are strings"),
    ],
)
def test_a_message_that_no_run_can_have_is_refused_at_the_start(
    memory_fleet: Fleet, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        memory_fleet.process(**given)


def test_a_run_to_a_satellite_of_the_endpoint_is_refused_at_the_start(memory_fleet: Fleet) -> None:
    with pytest.raises(ConfigurationError, match=r"'tick': destination '.*\.Timeouts' belongs"):
        memory_fleet.process(destination=f"{memory_fleet.name}.Timeouts")


def test_send_middleware_gets_no_message_before_a_run_and_may_mend_it(memory_fleet: Fleet) -> None:
    config, given = memory_fleet.configuration(), list[object]()

    def mend(message: ToSend) -> ToSend:
        given.append(message.body)
        return replace(message, body="today")

    config.add_send_middleware(mend)
    config.recurring("tick", "Tick", date(2024, 1, 1), every="1 hour")

    process = memory_fleet.of(config)

    assert given == []
    process.step()
    assert (given, len(memory_fleet.pending())) == ([date(2024, 1, 1)], 1)


def test_a_name_is_used_once(memory_fleet: Fleet) -> None:
    config = memory_fleet.configuration()
    config.recurring("tick", "Tick", {}, every="1 hour")

    with pytest.raises(ConfigurationError, match="two recurring timeouts are called 'tick'"):
        config.recurring("tick", "Tock", {}, every="1 hour")


def test_an_endpoint_sees_no_later_schedule(memory_fleet: Fleet) -> None:
    config = memory_fleet.configuration()
    memory_fleet.of(config)

    with pytest.raises(ConfigurationError, match="does not see later changes"):
        config.recurring("tick", "Tick", {}, every="1 hour")


def test_an_endpoint_without_a_timeout_manager_is_refused(memory_fleet: Fleet) -> None:
    config = memory_fleet.configuration()
    config.disable_feature("timeout-manager")
    config.recurring("tick", "Tick", {}, every="1 hour")

    with pytest.raises(CombinationRefused, match=r"without a timeout manager.*Enable TimeoutManag"):
        Endpoint(config)


def test_a_delayed_message_store_is_refused(tmp_path: Path) -> None:
    config = EndpointConfiguration("sales")
    store = SqlDelayedMessageStore(f"sqlite:///{tmp_path / 'delayed.db'}")
    config.use_transport(
        "memory://", accept_loss=True, delayed_delivery=DelayedDeliverySettings(store)
    )
    config.recurring("tick", "Tick", {}, every="1 hour")

    with pytest.raises(CombinationRefused, match="a delayed message store is refused"):
        Endpoint(config)


@pytest.mark.parametrize("fallback", [False, True])
def test_native_delays_need_the_fallback_to_the_store(fallback: bool) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport("amqp://localhost//")
    config.use_persistence(MemoryPersistence(accept_loss=True))
    config.accept_loss()
    config.enable_feature(TimeoutManager())
    config.enable_feature(NativeDelayedDelivery(fallback_to_store=fallback))
    config.recurring("tick", "Tick", {}, every="1 hour")

    if fallback:
        Endpoint(config).close()
        return
    with pytest.raises(CombinationRefused, match="native delayed delivery without a fallback"):
        Endpoint(config)


def test_native_delays_alone_are_refused() -> None:
    config = EndpointConfiguration("sales")
    config.use_transport("amqp://localhost//")
    config.enable_feature(NativeDelayedDelivery())
    config.recurring("tick", "Tick", {}, every="1 hour")

    with pytest.raises(CombinationRefused, match="an endpoint without a timeout manager"):
        Endpoint(config)


def test_a_store_that_keeps_no_schedules_is_refused_by_name(
    memory_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = memory_fleet.configuration()
    config.recurring("tick", "Tick", {}, every="1 hour")
    left_out = {"change_schedule", "__dict__", "__weakref__"}
    kept = {name: value for name, value in vars(MemoryTimeoutStore).items() if name not in left_out}
    made = type("MemoryTimeoutStore", (), kept)
    monkeypatch.setattr(memory, "MemoryTimeoutStore", made)

    with pytest.raises(CombinationRefused, match="store MemoryTimeoutStore is refused"):
        Endpoint(config)


def test_a_file_defines_recurring_timeouts(tmp_path: Path) -> None:
    path = tmp_path / "sales.toml"
    path.write_text(TOML)

    report, quarter = configuration_from(path, {}).settings().recurring

    assert (report.name, report.message_type, report.body) == (
        *("daily-report", "DailyReport"),
        {"to": "all"},
    )
    assert (report.every, report.destination) == ("1 day at 06:00 Europe/Berlin", "reports")
    assert (report.policy.value, report.headers) == ("none", {"tenant": "t1"})
    assert (quarter.name, quarter.every, quarter.body) == (
        *("every quarter", timedelta(minutes=15)),
        None,
    )


@pytest.mark.parametrize(
    ("table", "error", "reason"),
    [
        ("[recurring.a]\ntype='T'", ConfigurationError, r"\[recurring.a\] in .* has no every"),
        ("[recurring.a]\nevery='1 hour'", ConfigurationError, "has no type"),
        (
            "[recurring.a]\ntype='T'\nevry='1 hour'",
            UnknownSetting,
            "'recurring.a.evry'.*mean 'every'",
        ),
        ("[recurring.a]\ntype=7\nevery='1 hour'", ConfigurationError, "a.type in .*expected a tex"),
        ("[recurring.a]\ntype='T'\nevery='often'", ConfigurationError, "'a': every is"),
        ("[recurring]\na='1 hour'", ConfigurationError, r"expected a table \[recurring.a\]"),
        ("[[recurring]]\nname='a'", ConfigurationError, "expected a table for each name"),
        ("[recuring.a]\ntype='T'", UnknownSetting, "mean 'recurring'"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(
    tmp_path: Path, table: str, error: type[Exception], reason: str
) -> None:
    path = tmp_path / "sales.toml"
    path.write_text(f'endpoint = "sales"\n{table}\n')

    with pytest.raises(error, match=reason):
        configuration_from(path, {})


def test_an_endpoint_without_schedules_loads_nothing_of_them() -> None:
    program = (
        "import sys, timeoutmgr\n"
        "from timeoutmgr.satellites import TimeoutManager\n"
        "from timeoutmgr.persistence import SqlPersistence\n"
        "config = timeoutmgr.EndpointConfiguration('sales')\n"
        "config.use_transport('memory://', accept_loss=True)\n"
        "config.use_persistence(SqlPersistence('sqlite:///sales.db'))\n"
        "config.enable_feature(TimeoutManager())\n"
        "timeoutmgr.Endpoint(config).close()\n"
        "ours = ('timeoutmgr.recurrence', 'endpoint.recurrence', 'sql.schedules')\n"
        "print([name for name in sys.modules if name.endswith(ours)])\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ended.stdout == "[]\n"

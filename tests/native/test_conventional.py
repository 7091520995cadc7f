"""Endpoints beside peers of NServiceBus' conventional topology, which know exchanges alone."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import amqp
import pytest

from tests.native.fleet import Fleet
from timeoutmgr import Endpoint
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import Unroutable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_wire, to_wire
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.native.levels import routing_key, start_level
from timeoutmgr.native.names import NSERVICEBUS_V2
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.settings.file import configuration_from
from timeoutmgr.testing import Inbox
from timeoutmgr.transport.amqp.topology import has_exchange

pytestmark = pytest.mark.usefixtures("levels_of_others_go")

V2: Final = "nservicebus-v2"
PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "nservicebus.md"


def a_message(message_id: str, **properties: Any) -> amqp.Message:
    return amqp.Message(
        "{}", message_id=message_id, type="Remind", content_type="application/json", **properties
    )


@pytest.fixture
def sales(fleet: Fleet) -> tuple[Endpoint, Inbox]:
    return fleet.with_inbox(fleet.native(f"{fleet.stem}.sales", names=V2))


@pytest.fixture
def peer(fleet: Fleet, raw_channel: amqp.Channel) -> str:
    """A queue of a conventional endpoint, and behind its exchange a second queue."""
    name = f"{fleet.stem}.peer"
    raw_channel.exchange_declare(name, "fanout", durable=True, auto_delete=False)
    for queue in (name, f"{name}.tap"):
        raw_channel.queue_bind(fleet.queue(queue), name, "")
    return name


@pytest.mark.behaviour(109, 119)
def test_a_conventional_peer_sends_to_an_endpoint_at_once_and_delayed(
    fleet: Fleet, sales: tuple[Endpoint, Inbox], raw_channel: amqp.Channel
) -> None:
    _, inbox = sales
    name = f"{fleet.stem}.sales"

    raw_channel.basic_publish(a_message("at once"), exchange=name)
    raw_channel.exchange_bind(name, NSERVICEBUS_V2.delivery, f"#.{name}")
    noted = {headers.TIME_SENT: to_wire(0), headers.DELAY_IN_SECONDS: 1}
    raw_channel.basic_publish(
        a_message("delayed", application_headers=noted),
        NSERVICEBUS_V2.level_name(start_level(1)),
        routing_key(1, name),
    )

    inbox.wait_for_id("delayed")
    assert [one.id for one in inbox.arrived] == ["at once", "delayed"]
    assert not [key for one in inbox.arrived for key in one.headers if "RabbitMQ" in key]


def test_levels_bind_the_exchange_of_an_endpoint(
    fleet: Fleet, sales: tuple[Endpoint, Inbox], raw_channel: amqp.Channel
) -> None:
    _, inbox = sales
    name, tap = f"{fleet.stem}.sales", fleet.queue(f"{fleet.stem}.tap")
    raw_channel.queue_bind(tap, name, "")

    raw_channel.basic_publish(a_message("m"), NSERVICEBUS_V2.delivery, routing_key(0, name))

    with closing(fleet.session.receiver(tap, prefetch=1)) as receiver:
        assert [one.message.id for one in receiver.receive(1, 10.0)] == ["m"]
    assert [one.id for one in inbox.wait_for(1)] == ["m"]


def test_a_conventional_peer_delays_through_a_timeout_manager_of_ours(
    fleet: Fleet, raw_channel: amqp.Channel
) -> None:
    config = fleet.configure(f"{fleet.stem}.classic", TimeoutManager())
    config.use_transport(fleet.url, routing_topology="conventional")
    _, inbox = fleet.with_inbox(config)
    routed = {
        headers.EXPIRE: to_wire(SystemClock().now() + 500_000),
        headers.DESTINATION: config.name,
    }

    raw_channel.basic_publish(
        a_message("m", application_headers=routed), exchange=f"{config.name}.Timeouts"
    )

    [arrived] = inbox.wait_for(1)
    assert arrived.id == "m"
    assert arrived.at >= from_wire(routed[headers.EXPIRE])


@pytest.mark.behaviour(109, 119)
def test_an_endpoint_sends_to_the_exchange_of_a_peer_at_once_and_delayed(
    fleet: Fleet, sales: tuple[Endpoint, Inbox], peer: str
) -> None:
    endpoint, _ = sales

    sent = [
        endpoint.send(peer, "Remind", {}),
        endpoint.send(peer, "Remind", {}, delay=0),
        endpoint.send(peer, "Remind", {}, delay=1),
    ]

    for queue in (peer, f"{peer}.tap"):
        with closing(fleet.session.receiver(queue, prefetch=10)) as receiver:
            found: list[str] = []
            while len(found) < 3 and (received := receiver.receive(3, 10.0)):
                found += [one.message.id for one in received]
            assert found == [one.message_id for one in sent]
            assert receiver.receive(1, 0) == []


@pytest.mark.behaviour(119)
def test_a_delay_in_shared_levels_is_a_number_for_the_tools_of_the_others(
    fleet: Fleet, sales: tuple[Endpoint, Inbox], raw_channel: amqp.Channel
) -> None:
    endpoint, _ = sales
    queue = fleet.queue(f"{fleet.stem}.plain")

    sent = endpoint.send(queue, "Remind", {}, delay=2**20 + 0.5)

    level = NSERVICEBUS_V2.level_name(20)
    waiting = []
    while (found := raw_channel.basic_get(level)) is not None:
        waiting.append(found)
    raw_channel.basic_recover(requeue=True)
    [ours] = [one for one in waiting if one.properties["message_id"] == sent.message_id]
    assert ours.headers[headers.DELAY_IN_SECONDS] == 2**20 + 1


@pytest.mark.behaviour(110)
@pytest.mark.parametrize("delay", [None, 1])
def test_an_exchange_without_its_queue_is_no_destination(
    fleet: Fleet, sales: tuple[Endpoint, Inbox], raw_channel: amqp.Channel, delay: int | None
) -> None:
    endpoint, _ = sales
    name = f"{fleet.stem}.gone"
    raw_channel.exchange_declare(name, "fanout", durable=True, auto_delete=False)

    with pytest.raises(Unroutable, match="gone"):
        endpoint.send(name, "Remind", {}, delay=delay)

    raw_channel.exchange_delete(name)


@pytest.mark.behaviour(119)
@pytest.mark.parametrize(
    ("names", "topology", "is_there"),
    [
        (V2, None, True),
        ("nservicebus-v1", None, True),
        (V2, "direct", False),
        ("timeoutmgr", None, False),
        ("timeoutmgr", "conventional", True),
    ],
)
def test_each_own_queue_has_an_exchange_in_the_conventional_topology(
    fleet: Fleet, raw_channel: amqp.Channel, names: str, topology: str | None, is_there: bool
) -> None:
    config = fleet.native(f"{fleet.stem}.own", names=names)
    config.use_transport(fleet.url, routing_topology=topology, accept_loss=True)

    fleet.start(config)

    found = [has_exchange(raw_channel, name) for name in (config.name, config.error_queue)]
    assert found == [is_there, is_there]


def test_a_start_that_may_not_install_says_which_queue_peers_cannot_reach(
    fleet: Fleet, raw_channel: amqp.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    config = fleet.native(f"{fleet.stem}.sales", names=V2)
    fleet.start(config)
    raw_channel.exchange_delete(config.name)
    again = fleet.native(config.name, names=V2)
    again.install = False

    with caplog.at_level(logging.WARNING, "timeoutmgr"):
        fleet.start(again)

    [found] = [one for one in caplog.records if getattr(one, "event", "") == "exchange_missing"]
    assert f"queue '{config.name}' has no exchange" in found.getMessage()
    assert "timeoutmgr install" in found.getMessage()


# --- the page ---------------------------------------------------------------------------------


def test_the_program_of_the_page_does_what_the_page_says(
    fleet: Fleet, raw_channel: amqp.Channel, tmp_path: Path
) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for ours, theirs in (("amqp://guest:guest@localhost//", fleet.url), ("billing", fleet.stem)):
        assert ours in program
        program = program.replace(ours, theirs)
    fleet.note(fleet.configure(fleet.stem))

    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)

    assert answer.stdout.splitlines() == ["placed A7 shop-1", "overdue A7"], answer.stderr
    raw_channel.exchange_delete(fleet.stem)


def test_the_settings_of_the_page_are_understood(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "billing.toml"
    path.write_text(text, encoding="utf-8")

    settings = configuration_from(path, {}).settings()

    assert settings.features == (NativeDelayedDelivery(names=V2),)

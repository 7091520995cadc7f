"""A queue that refuses messages once it is full, and native delays that lead to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import amqp
import pytest

from tests.native.fleet import Fleet
from timeoutmgr import Endpoint
from timeoutmgr.cli.doctor.findings import own_queue_findings
from timeoutmgr.contracts.reports import Level
from timeoutmgr.endpoint.assembly import assemble
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.satellites import TimeoutManager

REFUSES = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}


@pytest.fixture
def refusing(raw_channel: amqp.Channel) -> Iterator[Callable[[str], str]]:
    """Declare queues that hold one message."""
    made: list[str] = []

    def declare(name: str) -> str:
        raw_channel.queue_declare(name, durable=True, auto_delete=False, arguments=REFUSES)
        made.append(name)
        return name

    yield declare
    for name in made:
        raw_channel.queue_delete(name)


def test_an_own_queue_that_refuses_is_refused_by_install_start_and_doctor(
    fleet: Fleet, refusing: Callable[[str], str]
) -> None:
    config = fleet.native(refusing(f"{fleet.stem}.sales"))

    for begin in (Endpoint.install, Endpoint.start):
        with pytest.raises(CombinationRefused, match="x-max-length is 1") as refused:
            begin(Endpoint(config))
        assert "a level delivers nothing" in refused.value.reason
    findings = list(own_queue_findings(assemble(config.settings())))

    [failed] = [each for each in findings if each.level is Level.FAIL]
    assert "x-max-length is 1, and its overflow is reject-publish" in failed.text


def test_a_timeout_manager_admits_a_queue_that_refuses(
    fleet: Fleet, refusing: Callable[[str], str]
) -> None:
    config = fleet.configure(refusing(f"{fleet.stem}.sales"), TimeoutManager())

    fleet.start(config)


def test_the_first_delayed_send_to_a_queue_that_refuses_is_a_warning(
    fleet: Fleet, refusing: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    sales = fleet.start(fleet.native(f"{fleet.stem}.sales"))
    full = refusing(f"{fleet.stem}.full")

    for delay in (3600, 3600):
        sales.send(full, "Remind", {}, delay=delay)
    sales.send_local("Remind", {}, delay=3600)

    found = [each for each in caplog.records if vars(each).get("event") == "queue_may_hold_up"]
    assert [full in each.getMessage() for each in found] == [True]

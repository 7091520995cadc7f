"""An endpoint on the SQL queue refuses an existing queue that drops accepted messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any

import kombu as kombu_package
import pytest

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.cli.doctor.findings import own_queue_findings
from timeoutmgr.contracts.reports import Level
from timeoutmgr.endpoint.assembly import assemble
from timeoutmgr.errors import LossyQueue

kombu: Any = kombu_package  # its annotations are too few to check against
DROPS = {"max_length": 5, "queue_arguments": {"x-overflow": "drop-head"}}
LOSS = "x-max-length is 5: a full queue drops its oldest message"


@pytest.fixture
def declared(sqlite_url: str) -> Callable[[str], None]:
    """Declare a queue that drops its oldest message, as a program of kombu's would."""

    def declare(name: str) -> None:
        with kombu.Connection(f"timeoutmgr+{sqlite_url}") as stranger:
            kombu.Queue(name, **DROPS)(stranger.default_channel).declare()

    return declare


@pytest.fixture
def config(sqlite_url: str) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(sqlite_url)
    config.install = True

    @config.handler("Bill")
    def bill(_body: object, _context: object) -> None:
        """Take the message."""

    return config


@pytest.mark.parametrize("queue", ["sales", "error"])
def test_a_queue_that_drops_messages_is_refused_by_install_start_and_doctor(
    config: EndpointConfiguration, declared: Callable[[str], None], queue: str
) -> None:
    declared(queue)

    for begin in (Endpoint.install, Endpoint.start):
        with closing(Endpoint(config)) as endpoint, pytest.raises(LossyQueue) as refused:
            begin(endpoint)
        assert [*refused.value.losses] == [queue]
    parts = assemble(config.settings())
    with closing(parts.settings.transport):
        findings = list(own_queue_findings(parts))

    [failed] = [each for each in findings if each.level is Level.FAIL]
    assert f"queue {queue!r}: {LOSS}" in failed.text


def test_accept_loss_admits_a_queue_that_drops_messages_with_a_warning(
    config: EndpointConfiguration,
    declared: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    declared("sales")
    config.accept_loss()

    with closing(Endpoint(config)) as endpoint, caplog.at_level(logging.WARNING):
        endpoint.install()

    found = [each for each in caplog.records if vars(each).get("event") == "queue_may_lose"]
    assert [LOSS in each.getMessage() for each in found] == [True]

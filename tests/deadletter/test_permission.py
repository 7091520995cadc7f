"""A source that the limits refuse is not acknowledged: a message names its source itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.dead_letter_node import DeadLetterNode, an_asking
from timeoutmgr.deadletter.service import DeadLetterService
from timeoutmgr.errors import MessageRejected
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import Limits


@pytest.fixture
def service(tmp_path: Path) -> Iterator[DeadLetterService]:
    """The service of node n1, whose endpoint sends to billing and itself alone."""
    node = DeadLetterNode(f"sqlite:///{tmp_path / 'letters.db'}", FakeClock())
    limits = Limits(allowed_destinations=("billing",)).of_endpoint("sales", "error")
    yield replace(node.service, limits=limits)
    node.close()


def of_source(queue: str) -> Message:
    """Return a message whose copy is kept at another node, for the endpoint *queue*."""
    asked = {"transactional": "True", "source_node": "n2", "source_queue": queue}
    return an_asking("m1", "sales", **asked).message


@pytest.mark.parametrize("queue", ["victim", "billing.Timeouts", "error", "amq.direct"])
def test_a_source_that_may_not_be_sent_to_is_not_acknowledged(
    service: DeadLetterService, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    rejected = MessageRejected("no")

    assert service.received(of_source(queue), "sales") == []
    assert service.dead_letter(of_source(queue), rejected, queue="sales") is None
    assert "does not acknowledge message 'm1'" in caplog.text


def test_an_allowed_source_is_acknowledged(service: DeadLetterService) -> None:
    [final] = service.received(of_source("billing"), "sales")
    request = service.dead_letter(of_source("billing"), MessageRejected("no"), queue="sales")

    assert request is not None
    [needed] = request.needed
    assert final.destination == needed.destination == "billing.Acknowledgements"

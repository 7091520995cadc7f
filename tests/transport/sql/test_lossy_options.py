"""The inspection of a queue that kombu declared finds the options that lose messages."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import kombu as kombu_package
import pytest

from tests.transport.sql.conftest import Maker
from timeoutmgr.contracts import InspectsQueues, QueueReport

kombu: Any = kombu_package  # its annotations are too few to check against
EXPIRES = "x-expires is 60000: the broker deletes the queue"
TTL = "x-message-ttl is 1000: the broker removes a message"
LENGTH = "x-max-length is 5"
DROPS = f"{LENGTH}: a full queue drops its oldest message (drop-head)"
AUTO_DELETE = "auto_delete is true: the queue goes with its last consumer"


def inspected(maker: Maker, names: list[str], **declared: Any) -> list[QueueReport]:
    """Declare the first of *names*, and report on all of them."""
    url, options = f"timeoutmgr+{maker.url}", {"prefix": maker.prefix}
    with kombu.Connection(url, transport_options=options) as stranger:
        kombu.Queue(names[0], **declared)(stranger.default_channel).declare()
        with closing(maker().session()) as session:
            assert isinstance(session, InspectsQueues)
            return session.inspect_queues(names)


@pytest.mark.parametrize(
    ("declared", "losses"),
    [
        pytest.param({"expires": 60}, [EXPIRES], id="expires"),
        pytest.param({"expires": 60, "durable": False}, [EXPIRES], id="transient"),
        pytest.param({"message_ttl": 1}, [TTL], id="ttl"),
        pytest.param(
            {"max_length": 5, "queue_arguments": {"x-overflow": "drop-head"}}, [DROPS], id="drops"
        ),
        pytest.param({"auto_delete": True}, [AUTO_DELETE], id="auto-delete"),
        pytest.param({"exclusive": True}, ["exclusive is true", AUTO_DELETE], id="exclusive"),
        pytest.param({"max_length": 5}, [], id="refuses"),
        pytest.param({"max_priority": 9}, [], id="priority"),
        pytest.param({}, [], id="plain"),
    ],
)
def test_each_option_that_loses_messages_is_reported(
    make_transport: Maker, declared: dict[str, Any], losses: list[str]
) -> None:
    [report] = inspected(make_transport, ["q"], **declared)

    assert report.queue == "q"
    for expected in losses:
        assert [each for each in report.losses if each.startswith(expected)]
    assert len(report.losses) == len(losses)


def test_a_full_queue_that_refuses_is_a_refusal_and_no_loss(make_transport: Maker) -> None:
    [report] = inspected(make_transport, ["q"], max_length=5)

    assert report.refusals == (f"{LENGTH}, and its overflow is reject-publish",)


def test_a_missing_queue_is_left_out(make_transport: Maker) -> None:
    reports = inspected(make_transport, ["q", "missing"])

    assert [each.queue for each in reports] == ["q"]

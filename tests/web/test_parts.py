"""Endpoints with other parts: dead-letter queues, and a delayed message store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.cli.programs import wait_until
from tests.web.site import HOUR, Site, configuration, pending, waiting
from timeoutmgr import DelayedDeliverySettings, Endpoint, EndpointConfiguration
from timeoutmgr._version import __version__
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass
from timeoutmgr.deadletter import DeadLetterQueues, StoredCopy
from timeoutmgr.deadletter.service import DeadLetterService
from timeoutmgr.message.message import Message
from timeoutmgr.persistence import SqlDelayedMessageStore


@pytest.fixture
def node(sqlite_url: str, unique: str) -> Iterator[Endpoint]:
    """An endpoint whose node keeps dead letters."""
    config = configuration(unique, sqlite_url)
    config.enable_feature(DeadLetterQueues(node=unique, store=sqlite_url))
    endpoint = Endpoint(config)
    endpoint.install()
    yield endpoint
    endpoint.close()


def place_dead(
    endpoint: Endpoint, count: int, of: MessageClass, *, reason: str = "no queue"
) -> None:
    """Put dead letters of a class into the node's queue."""
    service = endpoint.parts.features.dead_letters
    assert isinstance(service, DeadLetterService)
    for number in range(count):
        copy = StoredCopy(
            message=Message(id=f"{of.name}-{number}", body=b"{}"),
            destination=endpoint.name,
            message_class=of.value,
            kept=SystemClock().now(),
            journal=JournalLevel.DEADLETTER,
            reason=reason,
        )
        service.manager.place(copy)


def test_dead_letters_are_shown_by_class_and_retried(node: Endpoint) -> None:
    place_dead(node, 3, MessageClass.NACK_BAD_DST_Q, reason="<b>no queue</b>")
    place_dead(node, 2, MessageClass.NACK_RECEIVE_TIMEOUT)
    with Site(node) as site:
        groups = site.get("/dead-letters")
        (link,) = re.findall(r'href="(/dead-letters\?[^"]+)">NACK_BAD_DST_Q', groups)
        copies = site.get(link.replace("&amp;", "&"))
        retried = site.post(
            "/dead-letters",
            "/dead-letters/retry",
            **{"queue": "deadletter", "class": "0x8000", "expected": "3"},
        )
        after = site.get("/dead-letters")

    assert re.findall(r'>(NACK_\w+)</a></th><td class="right">(\d)<', groups) == [
        ("NACK_BAD_DST_Q", "3"),
        ("NACK_RECEIVE_TIMEOUT", "2"),
    ]
    assert "<b>no queue" not in groups + copies
    assert re.findall(r'<td class="id">(NACK_BAD\S+)</td>', copies) == [
        f"NACK_BAD_DST_Q-{n}" for n in range(3)
    ]
    assert "3 retried." in retried.text
    assert waiting(node, node.name) == 3
    rows = node.timeouts.audit()
    assert [(row.action, row.outcome, row.changed) for row in rows] == [
        ("retry-dead-letters", "started", None),
        ("retry-dead-letters", "done", 3),
    ]
    assert rows[0].run_id == rows[1].run_id
    assert "NACK_BAD_DST_Q" not in after


def test_an_unknown_class_of_dead_letters_is_named(node: Endpoint) -> None:
    with Site(node) as site:
        for text in ("x", "99999999999999999999"):
            refusal = site.get(f"/dead-letters?class={text}", 400)
            assert "is not a message class" in refusal
        assert "no dead letters" in site.get("/dead-letters?queue=x", 400)


def test_a_delayed_message_store_says_its_number_and_why_no_more(
    sqlite_url: str, unique: str
) -> None:
    config = EndpointConfiguration(unique)
    store = SqlDelayedMessageStore(sqlite_url)
    config.use_transport(sqlite_url, delayed_delivery=DelayedDeliverySettings(store))
    endpoint = Endpoint(config)
    endpoint.install()
    with closing(SqlDelayedMessageStore(sqlite_url)) as other:
        other.initialize(unique, endpoint.parts.mode)
        other.store_many([pending("t1", SystemClock().now() + HOUR)])
    with Site(endpoint) as site:
        text = site.get("/pending")
    endpoint.close()

    assert "holds 1 messages, which it cannot list" in text


def test_a_live_process_shows_its_version_and_breakers(sqlite_url: str, unique: str) -> None:
    with Endpoint(configuration(unique, sqlite_url)) as endpoint, Site(endpoint) as site:
        wait_until(lambda: __version__ in table(site.get("/processes")), "the process is shown")
        text = table(site.get("/processes"))

    assert "breaker-disarmed" in text
    assert "timeoutmgr run" not in text


def table(text: str) -> str:
    """The rows of the table of a page."""
    return "".join(re.findall(r"<tbody>.*?</tbody>", text, re.DOTALL))

"""Routes in the SQL queue lead where a broker's exchanges would lead."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.foreign import KOMBU, Foreign, QueueDeclaration, Route
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlTransport
from timeoutmgr.transport.sql.foreign import matching_queues
from timeoutmgr.transport.sql.kombu_channel import to_kombu

words = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=5).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=5).map(".".join)


def as_regular_expression(pattern: str) -> re.Pattern[str]:
    """*pattern* as an expression over words that each end with a dot."""
    kinds = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    return re.compile("".join(kinds.get(word, f"{word}\\.") for word in pattern.split(".")))


@given(patterns, words)
@example("a.#", "a")
@example("#", "")
@example("*.#.b", "a.b")
@example("#.#", "a")
def test_a_topic_leads_by_words(pattern: str, key: str) -> None:
    expected = as_regular_expression(pattern).fullmatch(key + ".") is not None

    assert (matching_queues([(pattern, "q", "topic")], key) == {"q"}) is expected


def test_many_wildcards_of_a_topic_need_few_steps() -> None:
    calls = count()

    def limit(_frame: object, event: str, _argument: object) -> None:
        if event == "call" and next(calls) > 10_000:
            raise AssertionError("more than 10,000 calls")

    sys.setprofile(limit)
    try:
        matched = matching_queues([(".".join(["#"] * 12 + ["x"]), "q", "topic")], "w." * 13 + "w")
    finally:
        sys.setprofile(None)

    assert matched == set()


@pytest.mark.parametrize(
    ("kind", "bound", "key", "leads"),
    [
        ("direct", "a", "a", True),
        ("direct", "a", "b", False),
        ("direct", "#", "b", False),
        ("fanout", "a", "b", True),
    ],
)
def test_each_type_of_exchange_leads_by_its_rule(
    kind: str, bound: str, key: str, leads: bool
) -> None:
    assert (matching_queues([(bound, "q", kind)], key) == {"q"}) is leads


def routed(
    declared: QueueDeclaration, number: int = 0, properties: Mapping[str, Any] | None = None
) -> Outgoing:
    """Return a message of kombu's on its route to the queue that it declares."""
    route = Route("", declared.queue, (declared,))
    payload = json.dumps({"headers": {}, "properties": {**(properties or {})}}).encode()
    foreign = Foreign(route, KOMBU, payload, b"%d" % number)
    message = Message(id=f"m{number}", headers=foreign.as_headers(), body=foreign.body)
    return Outgoing(declared.queue, message, route)


def received(transport: SqlTransport, queue: str) -> list[bytes]:
    """Return the bodies that a consumer of kombu's gets, who obeys priorities."""
    front = transport.lease_statements.by_priority
    rows = transport.make_receiver(queue, 0, front).poll_rows(10)
    return [to_kombu(queue, row)["body"] for row in rows]


def test_a_routed_message_keeps_its_priority_and_its_queue_the_declared_options(
    transport: SqlTransport,
) -> None:
    arguments = {"x-max-priority": 9, "x-message-ttl": 60_000, "x-max-length": 3}
    declared = QueueDeclaration("tasks", arguments=arguments, auto_delete=True, exclusive=True)
    priorities = [1, 9, 5]

    sent = [routed(declared, one, {"priority": one}) for one in priorities]
    results = transport.session().send(sent)

    assert results == [SendResult.CONFIRMED] * 3
    assert received(transport, "tasks") == [b"9", b"5", b"1"]
    options = transport.queues.options("tasks")
    assert (options.max_priority, options.message_ttl, options.max_length) == (9, 60_000_000, 3)
    assert options.auto_delete
    assert options.exclusive


def test_a_routed_message_ends_with_its_own_time_to_live(transport: SqlTransport) -> None:
    transport.session().send([routed(QueueDeclaration("tasks"), properties={"expiration": "0"})])

    assert transport.queues.count("tasks") == 1
    assert transport.queues.count_unexpired("tasks") == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_no_message_expires_early_beside_a_routed_message_with_a_priority(
    transport: SqlTransport, messages: Callable[[int], list[Outgoing]], is_first: bool
) -> None:
    lasting = [replace(one, time_to_live=3_600_000_000) for one in messages(5)]
    task = routed(QueueDeclaration("tasks"), properties={"priority": 9})

    results = transport.session().send([task, *lasting] if is_first else [*lasting, task])

    assert results == [SendResult.CONFIRMED] * 6
    assert transport.remove_expired(10, lambda *_: None) == 0
    assert transport.queues.count("q") == 5


@pytest.mark.parametrize(
    "declared",
    [
        QueueDeclaration("tasks", "x" * 251, routing_key="k"),
        QueueDeclaration("tasks", "x", routing_key="k" * 251),
        QueueDeclaration("tasks", "x\0", routing_key="k"),
        QueueDeclaration("tasks", "x", routing_key="half \ud800"),
        QueueDeclaration("tasks", "x", "x-delayed-message", "k"),
        QueueDeclaration("t" * 251),
        QueueDeclaration("tasks", arguments={"x-max-priority": 1000}),
        QueueDeclaration("tasks", arguments={"x-overflow": ["drop-head"]}),
        QueueDeclaration("tasks", arguments=["x-expires"]),  # type: ignore[arg-type]  # a stranger's
    ],
)
def test_a_route_that_the_tables_cannot_keep_is_an_invalid_message(
    transport: SqlTransport, declared: QueueDeclaration
) -> None:
    with pytest.raises(InvalidMessage, match="the route of a message"):
        transport.session().send([routed(declared)])

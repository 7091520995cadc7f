"""Every message leaves by an exit that asks where it may go: read from the source of every module.

The one function is ``validation.check_destination``, or ``is_allowed`` on top of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.house import trees

ROOT = Path(__file__).parent.parent
MAKERS = {"Outgoing", "outgoing_to", "finally_to"}
"""An ``Outgoing`` is made by its class, or with the route of its message."""
QUESTIONS = {"check_destination", "is_allowed", "check"}

ASKS = {
    "timeoutmgr.sender.composer.Composer.compose": "the door, replies, retries of sends",
    "timeoutmgr.transport.error_queue_retry._Move.__call__": "by ``EndpointErrorQueue.judge``",
    "timeoutmgr.deadletter.retry.retried_message": "a retry of a dead letter, by ``_permission``",
    "timeoutmgr.deadletter.acknowledgements.acknowledgement": "by its makers",
    "timeoutmgr.migration.levels.target.LevelsTarget.deliver": "a migration into delay levels",
    "satellites.delivery.forwarder.Forwarder.prepare": "due timeouts of all kinds",
    "satellites.delivery.unroutable.SettleUnroutable.__call__": "out of levels, by ``_parted``",
}
"""Makers of an ``Outgoing`` whose module asks, and the messages that pass there."""
OWN = {
    "timeoutmgr.message.routes.to_timeout_manager": "wraps a message that was asked about",
    "timeoutmgr.message.routes.to_delayed_store": "wraps a message that was asked about",
    "timeoutmgr.message.routes.clear_timeouts": "a control message to an own satellite",
    "timeoutmgr.message.routes.wake_manager": "a control message to an own satellite",
    "timeoutmgr.native.names.to_levels": "wraps what was asked about",
    "timeoutmgr.message.foreign.outgoing_to": "called by makers that are listed here",
    "timeoutmgr.message.foreign.finally_to": "called by makers that are listed here",
    "timeoutmgr.transport.sql.foreign.RoutedRows.of": "takes a route's header off",
    "timeoutmgr.transport.foreign.moved_to": "reads a foreign message, and sends nothing",
    "timeoutmgr.contrib.celery.delays._foreign_of": "reads a foreign message, and sends nothing",
    "timeoutmgr.sender.composer._with_conflict_headers": "adds headers to what was asked about",
    "timeoutmgr.endpoint.handlers.retry_later": "back to the own queue of the endpoint",
    "timeoutmgr.transport.error_queue.ErrorQueue._outgoing": "to the own error queue",
    "satellites.poller.PollTimeouts._send": "a control message to an own satellite",
}
"""Makers of an ``Outgoing`` that goes where only the product's configuration says."""
OTHERS = {
    "persistence.sql.store": ("mover", "rows moved inside the database"),
    "satellites.timeout_manager.feature": ("is_allowed", "gives the mover its question"),
    "satellites.timeout_manager.timeouts": ("check_destination", "what is stored out of a queue"),
    "timeoutmgr.migration.levels.target": (
        "check",
        "messages relayed from level to level, or stored",
    ),
    "timeoutmgr.migration.foreign.rows": ("check_destination", "rows of another program"),
    "timeoutmgr.deadletter.service": ("check_destination", "queues that ask to be told"),
}
"""Modules that let messages out, or in to be sent later, without an ``Outgoing``."""


@cache
def modules() -> Mapping[str, ast.Module]:
    """Return the source of each module by its name, without test tools."""
    found = {}
    for folder in ("timeoutmgr", "persistence", "satellites"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if not name.startswith("timeoutmgr.testing"):
                found[name] = trees()[path]
    return found


def called(node: ast.AST) -> set[str]:
    """Return the names that are called anywhere in *node*."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            match each.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    found.add(name)
    return found


def makers(tree: ast.AST, above: str) -> Iterator[str]:
    """Yield the functions and methods in which an ``Outgoing`` is made."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from makers(node, f"{above}.{node.name}")
        elif isinstance(node, ast.FunctionDef) and MAKERS & called(node):
            yield f"{above}.{node.name}"


def test_every_maker_of_an_outgoing_message_is_known() -> None:
    found = {maker for name, tree in modules().items() for maker in makers(tree, name)}

    assert found == {*ASKS, *OWN}


@pytest.mark.parametrize("maker", ASKS)
def test_a_maker_that_a_stranger_can_steer_asks_where_the_message_may_go(maker: str) -> None:
    module = max((name for name in modules() if maker.startswith(f"{name}.")), key=len)

    assert called(modules()[module]) & QUESTIONS


@pytest.mark.parametrize("module", OTHERS)
def test_exits_without_an_outgoing_message_are_asked_about_as_well(module: str) -> None:
    wanted, _why = OTHERS[module]
    defined = {
        node.name for node in ast.walk(modules()[module]) if isinstance(node, ast.FunctionDef)
    }

    assert wanted in called(modules()[module]) | defined


def test_only_two_modules_write_publishings_of_a_strangers_message() -> None:
    relays = {name for name, tree in modules().items() if "publishing" in called(tree)}

    assert relays == {"timeoutmgr.migration.levels.target"}

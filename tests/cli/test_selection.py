"""--type and --id-prefix select the same timeouts in each command, and --reason is kept."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from tests.cli.programs import Folder
from tests.persistence.making import SECOND, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.headers import ENCLOSED_MESSAGE_TYPES
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.sql import SqlTransport

TYPES = {
    "eu-1": "Shop.Order",
    "eu-2": "Shop.Order, Shop, Version=2.0",
    "eu-3": "Shop.Orders",
    "us-1": "Shop.Order",
}
BY_TYPE = ("--type", "Shop.Order")
BY_PREFIX = ("--id-prefix", "eu-")
SELECTIONS = [
    pytest.param(BY_TYPE, ["eu-1", "eu-2", "us-1"], id="type"),
    pytest.param(BY_PREFIX, ["eu-1", "eu-2", "eu-3"], id="prefix"),
    pytest.param((*BY_TYPE, *BY_PREFIX), ["eu-1", "eu-2"], id="both"),
    pytest.param(("--type", "Shop"), [], id="no whole type"),
]


@pytest.fixture
def url(folder: Folder) -> str:
    """A store with a timeout of each id of TYPES, all due tomorrow, and the queue ``stock``."""
    assert folder.run("install").returncode == 0
    found = f"sqlite:///{folder.path / 'timeoutmgr.db'}"
    clock = SystemClock()
    due = clock.now() + 86_400 * SECOND
    with closing(SqlPersistence(found)) as persistence:
        made = [timeout(name, due, destination=folder.endpoint) for name in TYPES]
        persistence.timeouts(folder.endpoint, clock).store_many(
            [
                replace(one, message=replace(one.message, headers={ENCLOSED_MESSAGE_TYPES: kind}))
                for one, kind in zip(made, TYPES.values(), strict=True)
            ]
        )
    with closing(SqlTransport(found)) as transport, closing(transport.session()) as session:
        session.create_queues(["stock"])
    return found


def listed(folder: Folder, *options: str) -> list[str]:
    found = folder.run("--json", "list", *options).json()
    assert found["total"] == len(found["timeouts"])
    return [each["id"] for each in found["timeouts"]]


@pytest.mark.parametrize(("options", "ids"), SELECTIONS)
def test_each_command_selects_the_same(
    folder: Folder, url: str, options: tuple[str, ...], ids: list[str]
) -> None:
    why = ("--reason", "a look")
    seen = listed(folder, *options)
    planned = folder.run("--json", "change", "cancel", *options, "--dry-run", *why)
    rerouted = folder.run("--json", "reroute", "stock", *options)

    assert seen == ids
    assert planned.returncode == (0 if ids else 3)
    assert [each["id"] for each in planned.json()["samples"]] == ids
    assert rerouted.json()["rerouted"] == len(ids)
    assert listed(folder, "--destination", "stock") == ids


def test_a_cancel_or_a_run_that_finds_nothing_ends_with_3(folder: Folder, url: str) -> None:
    cancelled = folder.run("cancel", "--label", "tenant=nobody")
    applied, undone = (
        folder.run(*form, "runs", verb, "nosuch", "--reason", "x")
        for form, verb in (((), "apply"), (("--json",), "undo"))
    )

    assert (cancelled.returncode, cancelled.stdout.split()) == (3, ["0", "cancelled"])
    assert (applied.returncode, "there is no run 'nosuch'" in applied.stderr) == (3, True)
    assert (undone.returncode, undone.json()) == (3, {"id": "nosuch", "state": "unknown"})


def test_a_pause_tells_how_many_timeouts_it_holds_back(folder: Folder, url: str) -> None:
    known = folder.run("--json", "pause", folder.endpoint, "--reason", "x").json()
    mistyped = folder.run("--json", "pause", "billling", "--reason", "x").json()

    assert (known["pending"], mistyped["pending"]) == (len(TYPES), 0)


def test_a_change_of_a_type_leaves_all_other_timeouts(folder: Folder, url: str) -> None:
    done = folder.run("--json", "change", "cancel", *BY_TYPE, "--expect", "3", "--reason", "sold")

    assert (done.returncode, done.json()["changed"]) == (0, 3), done.stdout
    assert listed(folder) == ["eu-3"]
    rows = folder.run("--json", "audit", "list").json()["audit"]
    assert {row["reason"] for row in rows} == {"sold"}
    assert {row["selection"]["message_type"] for row in rows} == {"Shop.Order"}


@pytest.mark.parametrize(
    "command",
    [
        ("change", "cancel", "--all"),
        ("runs", "apply", "4f3c0f8d2c7a4d5e9b1a6d0c3e2f1a90"),
        ("runs", "undo", "4f3c0f8d2c7a4d5e9b1a6d0c3e2f1a90"),
        ("pause", "billing"),
        ("restored", "--at", "2030-01-31T09:00Z"),
    ],
    ids=" ".join,
)
def test_a_change_of_many_needs_a_reason(folder: Folder, command: tuple[str, ...]) -> None:
    refused = folder.run(*command)

    assert refused.returncode == 2
    assert "--reason" in refused.stderr

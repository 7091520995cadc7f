"""The disk of PostgreSQL is full: its tables' first, then that of its write-ahead log."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.acceptance.place import Party
from tests.outage.alarm import Alarm
from tests.outage.conftest import MakePlace
from tests.outage.disk import SmallDisk
from tests.services.private import PrivateServer
from tests.support.waiting import eventually
from timeoutmgr.errors import DeliveryUnknown, TransportUnavailable
from timeoutmgr.satellites import TimeoutManager

MakeDisk = Callable[[int], SmallDisk]
MakeServer = Callable[[str], PrivateServer]


@pytest.mark.behaviour(32, 56, 75)
@pytest.mark.parametrize("transport", ["rabbitmq", "postgres"])
@pytest.mark.slow
def test_full_tables_delay_messages_and_lose_none(
    make_place: MakePlace,
    small_disk: MakeDisk,
    private_server: MakeServer,
    transport: str,
    request: pytest.FixtureRequest,
) -> None:
    disk, server = small_disk(24), private_server("postgres")
    store = database_on(disk, server)
    broker = store if transport == "postgres" else request.getfixturevalue("rabbitmq_url")
    party, alarm = started(make_place, broker, store)
    ids = [f"{party.name}-{number}" for number in range(40)]
    first = party.endpoint.send_local("Ping", a_body(), delay=1)
    party.wait_until_stored(first.id)

    disk.fill()
    refused = [message_id for message_id in ids if not is_sent(party, message_id)]
    failed = "storage_failures" if transport == "rabbitmq" else "transport_failures"
    if transport == "rabbitmq":
        party.telemetry.wait_for(failed, 1, timeout=30)
    disk.free()
    for message_id in refused:
        eventually(partial(is_sent, party, message_id), f"{message_id} is sent")

    for message_id in (first.message_id, *ids):
        party.inbox.wait_for_id(message_id, timeout=30)
    assert bool(refused) is (transport == "postgres")
    assert {a.id for a in party.inbox.arrived} == {first.message_id, *ids}
    assert len(party.inbox.arrived) == 1 + len(ids)
    assert party.telemetry.counted("moved_to_error") == 0
    assert party.telemetry.counted("immediate_retries") == 0
    assert alarm.reported == []


@pytest.mark.behaviour(32, 75)
@pytest.mark.slow
def test_a_full_log_ends_the_server_and_loses_nothing_that_was_accepted(
    make_place: MakePlace, small_disk: MakeDisk, private_server: MakeServer
) -> None:
    disk, server = small_disk(64), private_server("postgres")
    move_log(disk, server)
    party, alarm = started(make_place, server.url, server.url)
    first = party.endpoint.send_local("Ping", a_body(), delay=1)
    party.wait_until_stored(first.id)
    sent = [first.message_id]

    disk.fill()
    while is_sent(party, f"{party.name}-{len(sent)}"):
        sent.append(f"{party.name}-{len(sent)}")
        assert len(sent) < 5_000, "the log does not get full"
    sent.append(f"{party.name}-{len(sent)}")  # its outcome is unknown: it is sent again
    assert "No space left on device" in (server.folder / "output.txt").read_text()
    server.stop()
    disk.free()
    server.start()
    eventually(lambda: is_sent(party, sent[-1]), "a message is sent again", timeout=30)

    for message_id in sent:
        party.inbox.wait_for_id(message_id, timeout=30)
    assert {a.id for a in party.inbox.arrived} == set(sent)
    assert party.telemetry.counted("moved_to_error") == 0
    assert alarm.reported == []


def started(make_place: MakePlace, transport: str, store: str) -> tuple[Party, Alarm]:
    """Return a running endpoint and the alarm at its critical errors."""
    party = Party(
        make_place(transport=transport, store=store),
        manager=TimeoutManager(poll_interval=timedelta(seconds=1)),
    )
    alarm = Alarm()
    party.config.define_critical_error_action(alarm)
    party.start()
    party.telemetry.wait_for("polls", 1)
    return party, alarm


def is_sent(party: Party, message_id: str) -> bool:
    """Return whether it was accepted."""
    try:
        party.endpoint.send_local("Ping", a_body(), delay=0.5, message_id=message_id)
    except (TransportUnavailable, DeliveryUnknown):
        return False
    return True


def a_body() -> str:
    """Return 40 KB that cannot be compressed to much less than half."""
    return secrets.token_hex(20_000)


def database_on(disk: SmallDisk, server: PrivateServer) -> str:
    """Return the URL of a new database of *server* whose tables are on *disk*."""
    space = theirs(disk.folder / "tables", server)
    with psycopg.connect(plain(server.url), autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{space}'".encode())
        connection.execute("CREATE DATABASE small TABLESPACE small")
    return make_url(server.url).set(database="small").render_as_string(hide_password=False)


def move_log(disk: SmallDisk, server: PrivateServer) -> None:
    """Move the write-ahead log of *server* to *disk*."""
    server.stop()
    log = server.folder / "data" / "pg_wal"
    moved = theirs(disk.folder / "log", server)
    shutil.copytree(log, moved, copy_function=_copy_theirs, dirs_exist_ok=True)
    theirs(moved / "archive_status", server)
    shutil.rmtree(log)
    log.symlink_to(moved)
    server.start()


def theirs(folder: Path, server: PrivateServer) -> Path:
    """Return *folder*, made for the user of *server*."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    shutil.chown(folder, server.folder.owner(), server.folder.group())
    return folder


def _copy_theirs(source: str, target: str) -> str:
    shutil.copy2(source, target)
    shutil.chown(target, Path(source).owner(), Path(source).group())
    return target


def plain(url: str) -> str:
    """Return *url* as psycopg itself reads it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

"""Connections that kombu's consumers hold: one listener, one lock session and a pool a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import kombu as kombu_package
import pytest
from sqlalchemy import Row, text
from sqlalchemy.engine import make_url

from tests.services.private import PrivateServer
from tests.support.session_locks import end_session_of
from timeoutmgr.database import Database
from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.errors import CombinationRefused, ConfigurationError
from timeoutmgr.message.message import Outgoing
from timeoutmgr.transport.sql import SqlTransport, register
from timeoutmgr.transport.sql.kombu_transport import pool_settings

register()
kombu: Any = kombu_package  # its annotations are too few to check against
Make = Callable[..., list[Outgoing]]
_ROOT: Final = Path(__file__).parents[3]
_WORKERS: Final = ("13", "13", "12", "12")
_COUNTS: Final = text(
    "SELECT count(*) AS connections, count(*) FILTER (WHERE query LIKE 'LISTEN%') AS listeners, "
    "count(DISTINCT locks.pid) AS lock_sessions, sum(locks.held) AS session_locks "
    "FROM pg_stat_activity LEFT JOIN (SELECT pid, count(*) AS held FROM pg_locks "
    "WHERE locktype = 'advisory' GROUP BY pid) AS locks USING (pid) "
    "WHERE application_name = :name"
)
_SAMPLES: Final = 10


def _sampled(parent: subprocess.Popen[str], url: str, name: str) -> list[Row[Any]]:
    """Return numbers of connections while all consumers of *parent* work; then end them."""
    assert parent.stdin is not None
    assert parent.stdout is not None
    for _process in _WORKERS:
        assert parent.stdout.readline() == "all received\n"
    with Database(url).apart.connect() as connection:
        samples = [connection.execute(_COUNTS, {"name": name}).one() for _ in range(_SAMPLES)]
    parent.stdin.close()
    return samples


def test_fifty_workers_of_four_processes_have_at_most_sixty_connections(
    private_server: Callable[[str], PrivateServer], prefix: str, unique: str
) -> None:
    # Beside other tests so many connections could be too many for a shared server.
    server = private_server("postgres")
    url = make_url(server.url).update_query_dict({"application_name": unique})
    given = f"timeoutmgr+{url.render_as_string(hide_password=False)}"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.transport.sql.workers", given, prefix, *_WORKERS],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            samples = _sampled(parent, server.url, unique)
        except BaseException:
            parent.kill()  # to wait for the end of workers that failed would take for ever
            raise

    assert parent.returncode == 0
    assert max(sample.connections for sample in samples) <= 60
    found = {(sample.listeners, sample.lock_sessions, sample.session_locks) for sample in samples}
    assert found == {(4, 4, 50)}, samples


def test_each_owner_of_a_lost_session_has_a_lock_again_before_it_leases(
    postgres_url: str, prefix: str, messages: Make
) -> None:
    database, elsewhere = Database(postgres_url), Database(postgres_url)
    with ExitStack() as stack:
        transports = [SqlTransport(database, prefix=prefix) for _ in range(2)]
        for transport in transports:
            stack.callback(transport.close)
        transports[0].install()
        session = transports[0].session()
        session.create_queues(["q"])
        receivers = [transport.session().receiver("q", prefetch=1) for transport in transports]
        owners = {transport.owner for transport in transports}
        end_session_of(database, transports[0].owner)
        session.send(messages(2))

        for transport, receiver in zip(transports, receivers, strict=True):
            assert len(receiver.receive(1, 5)) == 1
            assert transport.owner not in SessionLocks(elsewhere).dead_owners(owners)
        assert SessionLocks(elsewhere).dead_owners(owners) == set()
    elsewhere.dispose()


@pytest.mark.parametrize("size", [0, True, "6", 1.5])
def test_a_pool_of_no_size_is_refused(size: object) -> None:
    with pytest.raises(ConfigurationError, match=r"pool_size (must be positive|takes int)"):
        pool_settings({"pool_size": size})


def test_a_pooler_that_keeps_sessions_is_admitted_by_an_option_of_kombu(
    pooler: Callable[[str], str], prefix: str
) -> None:
    url, tables = f"timeoutmgr+{pooler('session')}", {"prefix": prefix}
    with (
        kombu.Connection(url, transport_options={"pooler": "session", **tables}) as connection,
        closing(connection.SimpleQueue("q")) as queue,
    ):
        queue.put("kept")
        received = queue.get(timeout=30)
        received.ack()

    assert received.payload == "kept"
    with (
        kombu.Connection(f"timeoutmgr+{pooler('session')}", transport_options=tables) as connection,
        pytest.raises(CombinationRefused, match="pooler of kombu's transport options"),
    ):
        connection.connect()

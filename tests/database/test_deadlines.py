from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from sqlalchemy.engine import make_url

from tests.support.limits import no_descriptor
from timeoutmgr.clock import SystemClock
from timeoutmgr.database import Database, DatabaseSettings, deadlines
from timeoutmgr.errors import StorageUnavailable


class Silencer:
    """A TCP relay that can stop passing data on, while it still reads both sides."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._silent = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._server]
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        self._silent.set()

    def close(self) -> None:
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            target = socket.create_connection(self._target)
            self._open += [client, target]
            for one, other in ((client, target), (target, client)):
                threading.Thread(target=self._relay, args=(one, other), daemon=True).start()

    def _relay(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                if not self._silent.is_set():
                    other.sendall(data)
        except OSError:
            return


@pytest.fixture(params=["postgres", "mysql"])
def silencer_and_url(request: pytest.FixtureRequest) -> Iterator[tuple[Silencer, str]]:
    url = make_url(request.getfixturevalue(f"{request.param}_url"))
    port = url.port or {"postgres": 5432, "mysql": 3306}[request.param]
    if url.host is None or url.query.get("unix_socket") or urlsplit(str(url)).hostname is None:
        pytest.skip("this server is reached by a socket file, which cannot be relayed")
    relay = Silencer(url.host, port)
    yield relay, url.set(host="127.0.0.1", port=relay.port).render_as_string(hide_password=False)
    relay.close()


def test_a_server_that_never_answers_a_statement_is_unavailable(
    silencer_and_url: tuple[Silencer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ANSWER", 0.5)
    relay, url = silencer_and_url
    database = Database(url)
    database.ping()

    relay.fall_silent()

    with pytest.raises(StorageUnavailable):
        database.ping()
    database.dispose()


@pytest.mark.parametrize(("pooler", "is_named"), [("session", True), (None, False)])
def test_an_answer_that_does_not_come_through_a_pooler_names_its_pool_as_a_cause(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, pooler: str | None, is_named: bool
) -> None:
    monkeypatch.setattr(deadlines, "ANSWER", 0.1)
    database = Database(postgres_url, DatabaseSettings(pooler=pooler))

    with (
        pytest.raises(StorageUnavailable, match="no answer from the server") as silent,
        database.read() as connection,
    ):
        connection.exec_driver_sql("SELECT pg_sleep(10)")

    assert ("default_pool_size" in str(silent.value)) is is_named
    database.dispose()


def test_a_slow_answer_within_the_bound_is_waited_for(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ANSWER", 5.0)
    database = Database(postgres_url)

    with database.read() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(0.3)")

    assert database.now(SystemClock()) > 0
    database.dispose()


@pytest.mark.parametrize(("server", "sleep"), [("postgres", "pg_sleep"), ("mysql", "SLEEP")])
def test_a_patient_connection_waits_beyond_the_bound(
    server: str, sleep: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ANSWER", 0.1)
    with Database(request.getfixturevalue(f"{server}_url")).apart.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        deadlines.be_patient(connection)

        found = connection.exec_driver_sql(f"SELECT {sleep}(0.5), 'well'").one()

    assert found[1] == "well"


@pytest.mark.parametrize(("free", "reason"), [(0, "free file descriptor"), (1, "Too many open")])
def test_a_connection_without_a_descriptor_is_an_outage_that_names_them(
    postgres_url: str, free: int, reason: str
) -> None:
    database = Database(postgres_url)
    database.now(SystemClock())
    database.dispose()

    with no_descriptor(but=free), pytest.raises(StorageUnavailable, match=reason):
        database.now(SystemClock())

    database.now(SystemClock())
    database.dispose()

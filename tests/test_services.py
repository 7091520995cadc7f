"""The servers of the tests themselves: own databases, private servers, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import amqp
import pytest
import redis
from sqlalchemy import create_engine, make_url, text

from tests.services import catalog, run
from tests.services.private import PrivateServer

pytestmark = pytest.mark.timeout(300)  # a server may have to be installed first


@pytest.mark.parametrize("fixture", ["postgres_url", "mysql_url"])
def test_a_worker_has_a_database_of_its_own(
    fixture: str, request: pytest.FixtureRequest, worker_id: str
) -> None:
    url = make_url(request.getfixturevalue(fixture))

    engine = create_engine(url)
    with engine.connect() as connection:
        answer = connection.execute(text("SELECT 1")).scalar()
    engine.dispose()

    assert answer == 1
    assert str(url.database).endswith(f"_{worker_id}")


def test_a_worker_has_a_virtual_host_of_its_own(rabbitmq_url: str, worker_id: str) -> None:
    host, _, vhost = rabbitmq_url.rpartition("@")[2].partition("/")

    with amqp.Connection(host=host, virtual_host=vhost) as connection:
        connection.channel().queue_declare("a", durable=True, auto_delete=False)

    assert vhost.endswith(f"_{worker_id}")


def test_a_worker_has_a_redis_database_that_was_empty(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        # The marker of an endpoint outlives its queues; other tests of this worker leave theirs.
        left = [key for key in client.scan_iter() if not key.startswith(b"timeoutmgr.marker.")]
        assert left == []


@pytest.mark.slow
@pytest.mark.parametrize("name", list(catalog.SERVICES))
def test_a_private_server_comes_back_after_a_kill(
    name: str, private_server: Callable[[str], PrivateServer]
) -> None:
    refusal = catalog.SERVICES[name].refusal
    server = private_server(name)
    seen = [refusal(server.url)]

    server.kill()
    seen.append(refusal(server.url))
    server.start()
    seen.append(refusal(server.url))
    server.stop()
    seen.append(refusal(server.url))

    assert [reason is None for reason in seen] == [True, False, True, False], seen


@pytest.mark.parametrize(
    ("name", "owned"),
    [
        ("tmtest_1700000000_abcdef_gw0", True),
        ("tmtest_1700000000_abcdef_master", True),
        ("tmtest_1699999999_123456_gw0", False),  # another run, not yet an hour old
        ("tmtest_1699990000_123456_gw0", True),
        ("tmtest_someone_else", False),
        ("postgres", False),
    ],
)
def test_a_run_drops_its_own_databases_and_the_leftovers_of_an_old_crash(
    name: str, owned: bool
) -> None:
    mine = run.Run(folder=Path("unused"), started=1_700_000_000, id="abcdef")

    assert mine.owns(name) is owned


def test_a_run_of_more_than_an_hour_keeps_its_databases_while_it_is_controlled(
    private_server: Callable[[str], PrivateServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, service = private_server("redis"), catalog.SERVICES["redis"]
    now = int(time.time())
    long = run.Run(folder=tmp_path, started=now - 4000, id="abcdef")
    other = run.Run(folder=tmp_path, started=now, id="123456")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"timeoutmgr-tests-{long.started}-{long.id}-{os.getpid()}"
    name = long.name("gw0")

    folder.mkdir()
    first = service.create(server.url, name)
    seen = [(other.owns(name), service.create(server.url, other.name("gw0")) == first)]
    folder.rmdir()
    seen.append((other.owns(name), service.create(server.url, other.name("gw1")) == first))

    assert seen == [(False, False), (True, True)]


def test_a_process_that_outlives_the_run_fails_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(
        "import subprocess, sys\n"
        "def test_it(tmp_path):\n"
        "    program = 'import time; print(flush=True); time.sleep(30)'\n"
        "    words = [sys.executable, '-c', program]\n"
        "    process = subprocess.Popen(words, stdout=subprocess.PIPE)\n"
        "    process.stdout.readline()  # before, the system may not show its environment\n"
        "    (tmp_path / 'pid').write_text(str(process.pid))\n"
        "    process.returncode = 0\n"
    )
    root = Path(__file__).parent.parent

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"),
            *("--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "base"), str(tmp_path)),
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    os.kill(int((tmp_path / "base" / "test_it0" / "pid").read_text()), signal.SIGKILL)

    assert "1 passed" in done.stdout
    assert "LEFT BEHIND" in done.stdout
    assert done.returncode == 1

"""Redis for the tests."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from tests.services.private import PrivateServer
from tests.services.run import has_crashed

APT = ["redis-server"]

_LEASE = "tmtest:lease:{}"

_CLAIM_DATABASE = """
-- Take an empty database, or the database that the crashed holder ARGV[3] has left.
local holder = redis.call('GET', KEYS[1])
redis.call('SELECT', ARGV[1])
local size = redis.call('DBSIZE')
redis.call('SELECT', ARGV[4])
if holder and holder ~= ARGV[3] or not holder and size > 0 then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SELECT', ARGV[1])
redis.call('FLUSHDB')
return 1
"""


def candidates() -> list[str]:
    """Return the URLs where a local server would answer without a password."""
    return ["redis://127.0.0.1:6379/0"]


def refusal(url: str) -> str | None:
    """Return why the server at *url* will not do, or None if it will."""
    try:
        with _connect(url) as client:
            client.ping()
    except redis.RedisError as error:
        return str(error)
    return None


def create(url: str, name: str) -> str:
    """Take an empty database for *name* and return its URL; the lease stands in that of *url*."""
    with _connect(url) as client:
        own = _number(client)
        for number in range(int(client.config_get("databases")["databases"])):
            if number == own:
                continue
            lease = _LEASE.format(number)
            if client.eval(_CLAIM_DATABASE, 1, lease, number, name, _crashed(client, lease), own):
                return f"{url.rpartition('/')[0]}/{number}"
    raise RuntimeError(f"all databases of {url} are in use; give Redis more by `databases`")


def sweep(url: str, ours: Callable[[str], bool]) -> None:
    """Empty the databases that are *ours* and give them back."""
    with _connect(url) as client:
        for lease in list(client.scan_iter(_LEASE.format("*"))):
            holder = client.get(lease)
            if holder is not None and ours(holder.decode()):
                number = lease.decode().rpartition(":")[2]
                with _connect(f"{url.rpartition('/')[0]}/{number}") as leased:
                    leased.flushdb()
                client.delete(lease)


def _crashed(client: Any, lease: str) -> bytes:
    """Return the holder of *lease* if the holder has crashed.

    A benchmark's name has no time: nothing tells whether the benchmark still runs.
    """
    holder: bytes = client.get(lease) or b""
    return holder if has_crashed(holder.decode(), int(time.time())) else b""


def _connect(url: str) -> Any:
    return redis.Redis.from_url(url, socket_connect_timeout=5)


def _number(client: Any) -> int:
    return int(client.connection_pool.connection_kwargs.get("db") or 0)


class PrivateRedis(PrivateServer):
    """A Redis server of our own; a kill loses at most its last second."""

    @classmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""
        return [] if shutil.which("redis-server") else ["redis-server"]

    @property
    def url(self) -> str:
        """Where it answers once it is started."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        """Nothing: the command line says it all."""

    def _command(self) -> list[str]:
        return [
            *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--dir", str(self.folder), "--appendonly", "yes", "--databases", "64"),
        ]

    def _answers(self) -> bool:
        return refusal(self.url) is None


_WATCH = """\
port {port}
bind 127.0.0.1
sentinel monitor {name} 127.0.0.1 {watched} 1
"""


class PrivateSentinel(PrivateServer):
    """A sentinel that names the server at port *watched* as the master of NAME."""

    NAME = "shop"

    def __init__(self, folder: Path, watched: int) -> None:
        self._watched = watched
        super().__init__(folder)

    @classmethod
    def missing_programs(cls) -> list[str]:
        """Return the programs that are needed and not installed."""
        return PrivateRedis.missing_programs()

    @property
    def url(self) -> str:
        """Where it answers once it is started."""
        return f"sentinel://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        text = _WATCH.format(port=self.port, name=self.NAME, watched=self._watched)
        (self.folder / "sentinel.conf").write_text(text)

    def _command(self) -> list[str]:
        return ["redis-server", str(self.folder / "sentinel.conf"), "--sentinel"]

    def _answers(self) -> bool:
        return refusal(f"redis://127.0.0.1:{self.port}/0") is None

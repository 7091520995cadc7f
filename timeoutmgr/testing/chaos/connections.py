"""Cutting the connections of one process, from the server's side or on the way."""

import contextlib
from pathlib import Path
from typing import Final, Protocol

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from timeoutmgr.testing.chaos.scene import scheme
from timeoutmgr.testing.faultproxy import FaultProxy

_TCP_TABLES: Final = ("net/tcp", "net/tcp6")
_UNKNOWN_THREAD: Final = 1094


class Cutter(Protocol):
    """Cuts connections to one server, and only those of this run's processes."""

    def url(self, process: str) -> str:
        """Return the URL that *process* is to use."""
        ...

    def cut(self, process: str, pid: int) -> int:
        """Cut all connections of *process*; return how many were (about)."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...


def cutter(url: str) -> Cutter | None:
    """Return what cuts connections to the server of *url*; None where there are none to cut.

    Those to a database are known by their ports, which needs a /proc, and TCP.
    """
    has_ports = Path("/proc/self/net/tcp").exists()
    match scheme(url):
        case "postgresql" if has_ports:
            return PostgresCutter(url)
        case "mysql" | "mariadb" if has_ports:
            return MySqlCutter(url)
        case "amqp" | "pyamqp" | "redis" if ";" not in url:
            return ProxyCutter(url)
        case _:
            return None


class PostgresCutter:
    """Finds connections by the client's port, and has the server terminate them."""

    def __init__(self, url: str) -> None:
        self._original = url
        self._engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def url(self, process: str) -> str:
        """Return the URL as it is."""
        return self._original

    def cut(self, process: str, pid: int) -> int:
        """Terminate the backends whose client is a port of the process *pid*."""
        statement = text(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE client_port = ANY(:ports)"
        )
        with self._engine.connect() as connection:
            found = connection.execute(statement, {"ports": sorted(ports_of(pid))})
            return int(found.scalar_one())

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.dispose()


class MySqlCutter:
    """Finds connections by the client's port, and has the server kill them."""

    def __init__(self, url: str) -> None:
        self._original = url
        self._engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def url(self, process: str) -> str:
        """Return the URL as it is."""
        return self._original

    def cut(self, process: str, pid: int) -> int:
        """Kill the connections that come from a port of the process *pid*."""
        ports = ports_of(pid)
        cut = 0
        with self._engine.connect() as connection:
            statement = text("SELECT id, host FROM information_schema.processlist")
            for number, host in connection.execute(statement).all():
                _, colon, port = str(host).rpartition(":")
                if colon and port.isdigit() and int(port) in ports:
                    cut += _kill(connection, int(number))
        return cut

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.dispose()


def _kill(connection: Connection, number: int) -> bool:
    try:
        connection.execute(text(f"KILL {number}"))
    except OperationalError as error:
        if error.orig is not None and error.orig.args[0] == _UNKNOWN_THREAD:
            return False  # it has gone meanwhile
        raise
    return True


class ProxyCutter:
    """Stands between each process and the server, and resets what goes through it."""

    def __init__(self, url: str) -> None:
        self._original = url
        self._proxies: dict[str, FaultProxy] = {}

    def url(self, process: str) -> str:
        """Return the URL of the proxy for *process*, made now if need be."""
        if process not in self._proxies:
            self._proxies[process] = FaultProxy.before(self._original)
        return self._proxies[process].url(self._original)

    def cut(self, process: str, pid: int) -> int:
        """Reset the connections of *process*, at both ends."""
        proxy = self._proxies[process]
        proxy.reset()
        return 1

    def close(self) -> None:
        """Close the proxies."""
        for proxy in self._proxies.values():
            proxy.close()


def ports_of(pid: int) -> set[int]:
    """Return the local TCP ports of the process *pid*; empty if it is gone. Needs a /proc."""
    here = Path(f"/proc/{pid}")
    sockets = set()
    try:
        for link in (here / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                sockets.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    except OSError:
        return set()
    ports = set()
    for table in _TCP_TABLES:
        path = here / table
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        for fields in map(str.split, lines):
            if fields[9] in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports

"""Cutters, which cut connections of a process, and lose a server's answers to it."""

import secrets
from typing import Final, Protocol
from urllib.parse import urlsplit

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from chaos.environment import scheme
from timeoutmgr.testing.faultproxy import FaultProxy

_COMMIT: Final = b"COMMIT"
_PUBLISH: Final = b"\x00\x3c\x00\x28"  # Basic.Publish
_PUSH: Final = b"PUSH"


class Cutter(Protocol):
    """Breaks connections of this run's processes to a server, and no other connections."""

    def url(self, process: str) -> str:
        """Return the URL for *process* to use."""
        ...

    def cut(self, process: str) -> int:
        """Cut all connections of *process*; return about how many."""
        ...

    def lose_reply(self, process: str) -> None:
        """Let the next commit or publish of *process* happen, and lose the answer."""
        ...

    def lost(self, process: str) -> int:
        """Return how many answers to *process* were lost so far."""
        ...

    def heal(self) -> None:
        """Lose no more answers."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def cutter(url: str) -> Cutter | None:
    """Return a cutter of connections to the server of *url*; None for a file.

    A proxy needs a host and a port.
    """
    if ";" in url or not urlsplit(url).hostname:
        return None
    match scheme(url):
        case "postgresql":
            return PostgresCutter(url)
        case "mysql" | "mariadb":
            return ProxyCutter(url, losing=_COMMIT)
        case "amqp" | "pyamqp":
            return ProxyCutter(url, losing=_PUBLISH)
        case "redis":
            return ProxyCutter(url, losing=_PUSH)
        case _:
            return None


class ProxyCutter:
    """Proxies between each process and the server, which reset the connections of a process.

    *losing* are bytes of the requests whose answers are to be lost.
    """

    def __init__(self, url: str, *, losing: bytes) -> None:
        self._original = url
        self._losing = losing
        self._proxies: dict[str, FaultProxy] = {}

    def url(self, process: str) -> str:
        """Return the URL of the proxy for *process*, which is created at the first call."""
        if process not in self._proxies:
            self._proxies[process] = FaultProxy.before(self._original)
        return self._proxies[process].url(self._original)

    def cut(self, process: str) -> int:
        """Reset the connections of *process*, at both ends."""
        self._proxies[process].reset()
        return 1

    def lose_reply(self, process: str) -> None:
        """Let the next commit or publish of *process* happen, and lose the answer."""
        self._proxies[process].lose_reply(containing=self._losing)

    def lost(self, process: str) -> int:
        """Return how many answers to *process* were lost so far."""
        return self._proxies[process].fired

    def heal(self) -> None:
        """Lose no more answers."""
        for proxy in self._proxies.values():
            proxy.heal()

    def close(self) -> None:
        """Close the proxies."""
        for proxy in self._proxies.values():
            proxy.close()


class PostgresCutter(ProxyCutter):
    """Makes the server terminate connections, which it identifies by the application's name."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        # The proxy finds a commit by its bytes, so the connection is not encrypted.
        readable = {"sslmode": "allow", "gssencmode": "disable", **parsed.query}
        original = parsed.set(query=readable).render_as_string(hide_password=False)
        super().__init__(original, losing=_COMMIT)
        self._application = f"chaos_{secrets.token_hex(4)}"
        self._engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    def url(self, process: str) -> str:
        """Return the URL of the proxy for *process*, with the name of an application."""
        named = make_url(super().url(process)).update_query_dict(
            {"application_name": self._name(process)}
        )
        return named.render_as_string(hide_password=False)

    def cut(self, process: str) -> int:
        """Terminate the backends of *process*."""
        statement = text(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE application_name = :name"
        )
        with self._engine.connect() as connection:
            found = connection.execute(statement, {"name": self._name(process)})
            return int(found.scalar_one())

    def close(self) -> None:
        """Close the proxies and the engine."""
        super().close()
        self._engine.dispose()

    def _name(self, process: str) -> str:
        return f"{self._application}_{process}"

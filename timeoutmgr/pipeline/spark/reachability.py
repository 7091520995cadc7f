"""A check for the server before Spark starts, which itself would try for minutes."""

import socket
from typing import Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import PipelineUnavailable

_PATIENCE: Final = 5.0
_STANDALONE: Final = "spark://"
_CONNECT: Final = "sc://"
_CONNECT_PORT: Final = 15002

Address = tuple[str, int]


def require_answer(url: str, patience: float = _PATIENCE) -> None:
    """Raise PipelineUnavailable if *url* takes no connection within *patience* seconds.

    *url* names a standalone master (of several, any will do) or a Spark Connect server; other
    masters report errors themselves.
    """
    reasons = []
    for host, port in addresses(url):
        try:
            socket.create_connection((host, port), timeout=patience).close()
        except OSError as error:
            reasons.append(f"{host}:{port} ({error})")
        else:
            return
    if reasons:
        raise PipelineUnavailable(
            f"no Spark answers at {shown(url)}: {', '.join(reasons)}. Start it, or name where it "
            "runs; without --master and --remote Spark runs on this machine"
        )


def shown(url: str) -> str:
    """Return *url* without the parameters behind it, which may hold a token."""
    return url.partition("/;")[0]


def addresses(url: str) -> list[Address]:
    """Return the hosts and ports that *url* names; none where it is of another kind."""
    for scheme, default in ((_STANDALONE, None), (_CONNECT, _CONNECT_PORT)):
        if url.startswith(scheme):
            places = url.removeprefix(scheme).partition("/")[0]
            return [_address(url, place, default) for place in places.split(",")]
    return []


def _address(url: str, place: str, default: int | None) -> Address:
    host, colon, port = place.rpartition(":")
    if not colon and default is not None:
        host, port = place, str(default)
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigurationError(
            f"{shown(url)!r} names no host and port; expected such as host:7077"
        )
    return host.strip("[]"), int(port)

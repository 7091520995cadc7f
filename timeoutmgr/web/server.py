"""The dashboard as a separate program, served by uvicorn; it refuses unsafe addresses."""

import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.silence import hurrying
from timeoutmgr.web.open_streams import OpenStreams

_LOCAL: Final = ("127.0.0.1", "localhost", "[::1]")
_GRACE: Final = 8
"""Seconds that requests get when the server stops: by then, reads of hanging servers time out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The address at which the dashboard is served; port 0 is any free port."""

    host: str = "127.0.0.1"
    port: int = 8642
    names: tuple[str, ...] = ()
    """Additional host names that browsers and proxies may use."""

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def require_authentication(self, has_authentication: bool) -> None:
        """Raise ConfigurationError if other machines can reach the address unauthenticated."""
        if not (self.is_local or has_authentication):
            raise ConfigurationError(
                f"--host {self.host} can be reached by other machines; give --tokens FILE, or "
                "--proxy ADDRESS for a proxy that names its users, or serve 127.0.0.1"
            )


class DashboardServer(uvicorn.Server):
    """A server whose streams end when it stops.

    The server calls *announce* once it handles signals, and stops inside the context *ending*.
    """

    def __init__(
        self,
        app: ASGIApp,
        streams: OpenStreams,
        *,
        announce: Callable[[], None] = lambda: None,
        ending: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        # proxy_headers is off, so that the client's address is that of the proxy, to compare.
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE,
                lifespan="off",
            )
        )
        self._streams = streams
        self._announce = announce
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call *announce*."""
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, and stop."""
        with self._ending():
            self._streams.end()
            await super().shutdown(sockets)


def serve(app: Starlette, address: ServerAddress, announce: Callable[[str], None]) -> None:
    """Serve *app* until a signal; *announce* is called with its URL once it can be opened."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address.host, address.port))
        except (OSError, TypeError) as error:  # TypeError: a name that IDNA refuses
            raise ConfigurationError(
                f"the dashboard cannot listen on {address.host}:{address.port} "
                f"({on_one_line(error)}); choose another --port, or a --host of this machine"
            ) from error
        listening.listen()
        port = listening.getsockname()[1]
        host = f"[{address.host}]" if family is socket.AF_INET6 else address.host
        server = DashboardServer(
            _named(app, address),
            app.state.streams,
            announce=lambda: announce(f"http://{host}:{port}"),
            ending=lambda: _ending(app),
        )
        # Python's default handler raises; if that happens in a weakref callback, it is swallowed.
        with server.capture_signals():
            server.run([listening])


@contextmanager
def _ending(app: Starlette) -> Iterator[None]:
    """Wait for the requests of the block, the reads and the runs, but not for hanging servers."""
    with hurrying(app.state.servers):
        yield
        app.state.readings.close(wait=True)
        app.state.operations.close()


def _named(app: ASGIApp, address: ServerAddress) -> ASGIApp:
    """Refuse requests for other host names: a foreign site could point its name here."""
    if not address.is_local and not address.names:
        return app
    return TrustedHostMiddleware(
        app, [*_LOCAL, address.host, f"[{address.host}]", *address.names], www_redirect=False
    )

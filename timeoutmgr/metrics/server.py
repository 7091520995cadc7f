"""The HTTP server for metrics and probes: one page and three probes."""

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Final, TypeAlias

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.metrics.exposition import Exposition
from timeoutmgr.metrics.memory import CountMemory
from timeoutmgr.metrics.probes import PROBES
from timeoutmgr.resilience.thread_task import begin_thread

logger = logging.getLogger(__name__)

_TEXT: Final = "text/plain; charset=utf-8"
_PATIENCE: Final = 5.0
"""Seconds that a client may take for its request and for its answer."""
Answer: TypeAlias = tuple[HTTPStatus, str, bytes]
Respond: TypeAlias = Callable[[str, str], Answer]
"""Answers a path, given what the client accepts."""


class _Server(ThreadingTCPServer):
    # ThreadingHTTPServer looks up the host's name, so the start would wait for a name server.
    allow_reuse_address = daemon_threads = True

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        self.respond = respond
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a failed answer; mostly the client has closed its connection."""
        fields = {"event": "metrics_not_answered"}
        logger.debug(
            "server of metrics could not answer %s", client_address, exc_info=True, extra=fields
        )


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """Answer with a page, a probe or 404."""
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        """Answer like GET, but without the page."""
        self._respond(with_body=False)

    def _respond(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        status, content_type, body = self.server.respond(path, self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the name of the server, without versions."""
        return "timeoutmgr"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: there are many requests, and all are alike."""


@contextmanager
def serving(host: str, port: int, memory: CountMemory, endpoint: str) -> Iterator[None]:
    """Serve metrics and probes of *endpoint* until the block ends.

    Raises ConfigurationError if the address cannot be used.
    """
    exposition = Exposition(memory, endpoint)

    def respond(path: str, accept: str) -> Answer:
        probe = PROBES.get(path)
        if probe is not None:
            reasons = probe(memory.sections, time.monotonic())
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            return status, _TEXT, "".join(f"{line}\n" for line in reasons or ["ok"]).encode()
        if path == "/metrics":
            page, content_type = exposition.render(accept)
            return HTTPStatus.OK, content_type, page
        return HTTPStatus.NOT_FOUND, _TEXT, b"/metrics /livez /readyz /startupz\n"

    try:
        server = _Server(host, port, respond)
    except (OSError, TypeError) as error:  # TypeError: a name that IDNA refuses
        raise ConfigurationError(
            f"--metrics-address {host}:{port} cannot be used: {on_one_line(error)}; give the "
            "address of this host and a free port"
        ) from error
    with server:
        thread = begin_thread(server.serve_forever, "timeoutmgr-metrics")
        where = f"[{host}]" if ":" in host else host
        logger.info(
            "endpoint %s shows its metrics at http://%s:%d/metrics",
            endpoint,
            where,
            server.server_address[1],
            extra={"event": "metrics_served", "endpoint": endpoint},
        )
        try:
            yield
        finally:
            server.shutdown()
            thread.join()

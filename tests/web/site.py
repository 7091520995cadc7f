"""A dashboard that is served as in production, and messages that its pages show."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self

import httpx
from starlette.types import ASGIApp

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.contracts import Timeout
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.web import Role, Visitor, dashboard
from timeoutmgr.web.open_streams import OpenStreams
from timeoutmgr.web.readings import Readings
from timeoutmgr.web.server import DashboardServer

HOUR: Micros = 3_600_000_000


def configuration(name: str, url: str, queues: str | None = None) -> EndpointConfiguration:
    """An endpoint with its timeouts in *url*, and its queues too, or in *queues*."""
    config = EndpointConfiguration(name)
    config.use_transport(queues or url)
    config.use_persistence(url)
    config.error_queue = f"{name}.error"
    config.enable_feature(TimeoutManager())
    return config


def fill(endpoint: Endpoint, timeouts: Sequence[Timeout]) -> None:
    """Store *timeouts* as the timeout manager does."""
    store = endpoint.parts.features.store
    assert store is not None
    store.store_many(timeouts)


def pending(
    name: str,
    due: Micros,
    *,
    saga: str | None = None,
    destination: str = "billing",
    body: bytes = b'{"n": 1}',
    given: Mapping[str, str] | None = None,
) -> Timeout:
    """A stored timeout."""
    about = {headers.ENCLOSED_MESSAGE_TYPES: "PaymentOverdue", **(given or {})}
    message = Message(id=f"m-{name}", headers=about, body=body)
    return Timeout(
        id=name, due=due, destination=destination, saga_id=saga, message=message, created=due - HOUR
    )


def fail(endpoint: Endpoint, count: int, *, reason: str, exception: str = "KeyError") -> None:
    """Put *count* messages into the error queue, as recoverability leaves them."""
    settings = endpoint.parts.settings
    about = {
        headers.ENCLOSED_MESSAGE_TYPES: "PaymentOverdue",
        headers.EXCEPTION_TYPE: exception,
        headers.EXCEPTION_MESSAGE: reason,
        headers.EXCEPTION_STACK: f"Traceback (most recent call last):\n{exception}: {reason}",
        headers.FAILED_QUEUE: settings.name,
        headers.TIME_OF_FAILURE: to_wire(1_900_000_000_000_000),
    }
    with closing(settings.transport.session()) as session:
        session.send(
            [
                Outgoing(settings.error_queue, Message(id=f"{exception}-{n}", headers=about))
                for n in range(count)
            ]
        )


def waiting(endpoint: Endpoint, queue: str) -> int:
    """How many messages wait in *queue*."""
    with closing(endpoint.parts.settings.transport.session()) as session:
        return session.count(queue)


class Served:
    """An application behind uvicorn on a free port, in a thread."""

    def __init__(self, app: ASGIApp, streams: OpenStreams | None = None) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = DashboardServer(app, streams or OpenStreams())
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


class Site(Served):
    """The dashboard of an endpoint for a visitor whose role a test may change."""

    def __init__(self, endpoint: Endpoint, *, readings: Readings | None = None) -> None:
        self.endpoint = endpoint
        self.role: Role | None = Role.ADMIN
        self.app = dashboard(endpoint, access=lambda _request: self._visitor(), readings=readings)
        super().__init__(self.app, self.app.state.streams)
        self.client = httpx.Client(base_url=self.url, timeout=30, follow_redirects=True)

    def _visitor(self) -> Visitor | None:
        return None if self.role is None else Visitor("ann", self.role)

    def __exit__(self, *error: Any) -> None:
        self.client.close()
        super().__exit__(*error)

    def get(self, path: str, status: int = 200) -> str:
        """The text of a page."""
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def post(self, page: str, form: str, **fields: str) -> httpx.Response:
        """The answer to the form *form*, with the token that *page* has."""
        (token, *_same) = re.findall(r'name="csrf" value="([^"]+)"', self.get(page))
        return self.client.post(form, data={"csrf": token, **fields})

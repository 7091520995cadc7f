"""RabbitMQ's management API: it shows the policies of queues, which AMQP does not."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlsplit

from timeoutmgr.errors import CombinationRefused
from timeoutmgr.transport.amqp.connection import kombu_connection
from timeoutmgr.transport.queue_view import QueueProperties
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.tls import BrokerLink, broker_link, is_this_machine

OFF: Final = "off"
"""The setting that turns the management API off."""

_PORTS: Final = {"http": 15672, "https": 15671}
_POLICY: Final = "effective_policy_definition"
_WAIT: Final = 2.0
"""Seconds to wait for one answer: the API is optional, and must not hold up a start."""
_MOST_BYTES: Final = 4 * 1024 * 1024


def management_api(url: str, settings: KombuSettings) -> ManagementApi | None:
    """Return the API of the broker at *url*, or at the URL in the settings; None if it is off.

    With several brokers, the first is asked: the nodes of a cluster share their policies.
    """
    if settings.management_url == OFF:
        return None
    link = broker_link(url, settings, redis=False)
    found = kombu_connection(link.urls[0])
    host = found.hostname or "localhost"
    scheme = "https" if link.is_tls else "http"
    beside = f"{scheme}://{f'[{host}]' if ':' in host else host}:{_PORTS[scheme]}"
    asked = settings.management_url or beside
    if asked.startswith("http:") and not settings.allow_plaintext and not is_this_machine(asked):
        raise CombinationRefused(
            f"the management API at {asked}",
            "the broker's password would cross the network for everybody to read",
            "Use https:// or management_url = 'off', or say allow_plaintext = true.",
        )
    return ManagementApi(
        url=asked,
        user=found.userid or "guest",
        password=found.password or "guest",
        virtual_host=found.virtual_host or "/",
        link=link,
    )


class Unanswered(Exception):
    """The management API gave no answer; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementApi:
    """The API of one broker at *url*, asked for queues of one virtual host."""

    url: str
    user: str
    password: str = field(repr=False)
    virtual_host: str
    link: BrokerLink

    def properties_of(self, queue: str) -> QueueProperties | None:
        """Return the properties of *queue* with its policy, or None if there is no such queue.

        Raises Unanswered.
        """
        path = f"/api/queues/{quote(self.virtual_host, safe='')}/{quote(queue, safe='')}"
        found = self._ask(path)
        if found is None:
            return None
        if _POLICY not in found:
            # RabbitMQ reports policies with a queue's statistics, some seconds after its creation.
            raise Unanswered(f"the management API at {self.url} has no statistics of {queue!r} yet")
        try:
            return QueueProperties(
                durable=bool(found["durable"]),
                auto_delete=bool(found["auto_delete"]),
                exclusive=bool(found.get("exclusive")),
                arguments=_table(found["arguments"]) | {"x-queue-type": found["type"]},
                policy=_table(found[_POLICY]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Unanswered(f"the answer of {self.url}{path} is not understood") from error

    def _ask(self, path: str) -> Mapping[str, Any] | None:
        # Imported here: a worker that never asks need not keep the client in memory.
        import http.client

        try:
            status, text = self._get(path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unanswered(
                f"the management API at {self.url} does not answer ({error or type(error)})"
            ) from error
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            raise Unanswered(
                f"the management API at {self.url} answers {status}; give the broker's user the "
                "tag 'monitoring', or set management_url"
            )
        try:
            return _table(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise Unanswered(f"no management API answers at {self.url}") from error

    def _get(self, path: str) -> tuple[int, bytes]:
        import http.client

        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, port, timeout=_WAIT, context=self.link.context()
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_WAIT)
        credentials = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        try:
            connection.request(
                "GET",
                parts.path.rstrip("/") + path,
                headers={"Authorization": f"Basic {credentials}"},
            )
            answer = connection.getresponse()
            return answer.status, answer.read(_MOST_BYTES)
        finally:
            connection.close()


def _table(value: Any) -> dict[str, Any]:
    """Return *value* as a table: Erlang writes an empty table as an empty list."""
    return {} if value is None or value == [] else dict(value)

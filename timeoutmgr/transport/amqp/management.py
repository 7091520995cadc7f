"""RabbitMQ's management API: the policies of queues, which AMQP does not show."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlsplit

from timeoutmgr.errors import CombinationRefused
from timeoutmgr.transport.amqp.connection import kombu_connection
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.tls import BrokerLink, broker_link, is_this_machine

# --- the properties of a queue on RabbitMQ, and which of them drop accepted messages ----------

_KEEPS_WHAT_IT_HAS: Final = frozenset({"reject-publish", "reject-publish-dlx"})
"""Overflow modes of a full queue that refuse the newcomer, and so lose nothing accepted."""

_LENGTHS: Final = ("max-length", "max-length-bytes")

_DEFAULT_LIMIT: Final = 20
"""Deliveries after which a quorum queue of RabbitMQ 4 gives a message up, if nothing says else."""
_NO_DEFAULT: Final = (3,)
"""A version of RabbitMQ that gives no message up unless an argument or a policy says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProperties:
    """Properties of a queue's declaration; the *policy* for it has names without ``x-``."""

    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    policy: Mapping[str, object] = field(default_factory=dict)
    meant: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that it should have: of these only a difference is a loss."""

    @property
    def kind(self) -> str:
        """The queue's type: classic, quorum or stream."""
        return str(self.arguments.get("x-queue-type", "classic"))

    def delivery_limit(self, server_version: tuple[int, ...]) -> int | None:
        """Return after how many deliveries a message is given up, None for never."""
        if self.kind != "quorum":
            return None
        given = (self.arguments.get("x-delivery-limit"), self.policy.get("delivery-limit"))
        limits = [each for each in given if isinstance(each, int)]
        if not limits:
            return _DEFAULT_LIMIT if server_version >= (4,) else None
        return min((each for each in limits if each >= 0), default=None)

    @property
    def dead_message_queue(self) -> str | None:
        """The queue that gets dead messages straight, by its name; None if none does."""
        exchange, key = self.dead_messages("exchange"), self.dead_messages("routing-key")
        return str(key) if exchange == "" and key else None

    def dead_messages(self, part: str) -> object:
        """Return a *part* of the settings for dead messages; None if the queue has no such part."""
        # An argument of the queue wins over a policy.
        return self.arguments.get(f"x-dead-letter-{part}", self.policy.get(f"dead-letter-{part}"))

    def losses(self, dead_end: str) -> tuple[str, ...]:
        """Return a sentence for each loss; *dead_end* says why dead messages reach no queue."""
        return (*self._own_losses(), *self._given_up(_NO_DEFAULT, dead_end), *self._shared_losses())

    def default_losses(self, server_version: tuple[int, ...], dead_end: str) -> tuple[str, ...]:
        """Return the loss by the broker's own delivery limit, where the queue has no other."""
        if self.delivery_limit(_NO_DEFAULT) is not None:
            return ()
        return tuple(self._given_up(server_version, dead_end))

    def refusals(self) -> tuple[str, ...]:
        """Return a sentence for each limit at which the queue refuses further messages."""
        if self._overflow() not in _KEEPS_WHAT_IT_HAS:
            return ()
        return tuple(
            f"{each}, and its overflow is {self._overflow()}"
            for name in _LENGTHS
            for each in self._set(name)
        )

    def _given_up(self, server_version: tuple[int, ...], dead_end: str) -> Iterator[str]:
        limit = self.delivery_limit(server_version)
        if limit is not None and dead_end:
            yield (
                f"the delivery limit is {limit}, and {dead_end}: the broker "
                "drops a message whose deliveries fail more often"
            )

    def _own_losses(self) -> Iterator[str]:
        if not self.durable:
            yield "durable is false: a restart of the broker deletes the queue"
        if self.auto_delete:
            yield "auto_delete is true: the queue goes with its last consumer"
        if self.exclusive:
            yield "exclusive is true: the queue goes with the connection that declared it"
        if self.kind == "stream":
            yield "x-queue-type is 'stream': a stream never settles a message, it ages it out"

    def _differences(self) -> Iterator[str]:
        for name, wanted in self.meant.items():
            if (found := self.arguments.get(name)) != wanted:
                yield f"{name} is {found}, and should be {wanted}"
        key = self.dead_messages("routing-key")
        if self.meant and key is not None:
            yield f"the dead-letter routing key is {key}: the broker passes messages on under it"

    def _shared_losses(self) -> Iterator[str]:
        yield from self._differences()
        for name, consequence in (
            ("expires", "the broker deletes the queue when no consumer was there for so long"),
            ("message-ttl", "the broker removes a message that waits for longer"),
        ):
            yield from (f"{each}: {consequence}" for each in self._set(name))
        if self._overflow() in _KEEPS_WHAT_IT_HAS:
            return
        for name in _LENGTHS:
            for each in self._set(name):
                yield f"{each}: a full queue drops its oldest message ({self._overflow()})"

    def _set(self, name: str) -> Iterator[str]:
        argument, meant = self.arguments.get(f"x-{name}"), self.meant.get(f"x-{name}")
        if argument is not None and meant is None:
            yield f"x-{name} is {argument}"
        limit = self.policy.get(name)
        # Of argument and policy the lower counts.
        if limit is not None and (meant is None or meant > limit):
            yield f"a policy sets {name} to {limit}"

    def _overflow(self) -> str:
        # An argument of the queue wins over a policy here; for limits the lower value counts.
        found = self.arguments.get("x-overflow") or self.policy.get("overflow")
        return str(found or "drop-head")


OFF: Final = "off"
"""The setting that has the management API left alone."""

_PORTS: Final = {"http": 15672, "https": 15671}
_POLICY: Final = "effective_policy_definition"
_WAIT: Final = 2.0
"""Seconds for one answer: the API is an extra, and a start must not hang on it."""
_MOST_BYTES: Final = 4 * 1024 * 1024


def management_api(url: str, settings: KombuSettings) -> ManagementApi | None:
    """Return the API beside the broker at *url*, or where the settings say; None where it is off.

    Of several brokers the first is asked: the nodes of a cluster share their policies.
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
            # RabbitMQ tells policies with a queue's statistics, some seconds after its birth.
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
        # Here: a worker that never asks need not hold the client in memory.
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
    """Return *value*, where an empty table may have come as an empty list, as Erlang writes it."""
    return {} if value is None or value == [] else dict(value)

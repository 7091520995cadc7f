"""The settings of the kombu transport."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.field_types import check_field_types
from timeoutmgr.message.redaction import redact
from timeoutmgr.transport.unsettled_messages import BUFFER_BYTES, check_bound

QueueType = Literal["quorum", "classic"]
RoutingTopology = Literal["direct", "conventional"]
"""How programs on RabbitMQ address a queue: by its name, or by a fanout exchange of its name."""

_SETTINGS_OF_CHANNELS: Final = {
    "visibility_timeout": "the setting visibility_timeout",
    "socket_connect_timeout": "the setting connect_timeout",
    "socket_timeout": "the setting confirm_timeout",
}
"""Channel options that have a setting of their own."""
_LONGEST_WAIT: Final = timedelta(hours=18)
"""AMQP keeps the heartbeat's seconds in sixteen bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KombuSettings:
    """Settings of connections to brokers; a transport ignores settings that do not apply to it.

    *accept_loss* is the consent to a transport that can lose an accepted message. *confirm_window*
    is how many messages are written before a wait for their confirms, *confirm_timeout* how long to
    wait for that many. A *heartbeat* of zero switches heartbeats off. *max_message_size* is the
    broker's own limit in bytes: RabbitMQ closes the channel over a larger body, and so leaves its
    neighbours in doubt. It exceeds the limit for sending, so that another program's larger body
    still fits into the error queue. *buffer_bytes* limits the received, unsettled bodies of all
    receivers together. *ssl* has the files of TLS (``ca_certs``, ``certfile``, ``keyfile``) and its
    ``ciphers``; chain and name are always checked, unless *tls_insecure*. *allow_plaintext* allows
    a connection without TLS to another host. *management_url* is the URL of RabbitMQ's management
    API, which is asked for policies: by default the broker's host and the API's usual port; ``off``
    asks nowhere. *visibility_timeout* is the time after which Redis delivers a dead consumer's
    messages again. *routing_topology* is for RabbitMQ: ``direct`` uses only queues,
    ``conventional`` also exchanges of their names, as NServiceBus does; by default, the names of
    the delay levels decide. *channel_options* are options of kombu's channel
    (``transport_options``) on Redis and other brokers except RabbitMQ: they say where its keys and
    queues are.
    """

    accept_loss: bool = False
    connect_timeout: timedelta = timedelta(seconds=5)
    confirm_timeout: timedelta = timedelta(seconds=30)
    confirm_window: int = 500
    heartbeat: timedelta = timedelta(seconds=30)
    queue_type: QueueType = "quorum"
    max_message_size: int = 128 * 1024 * 1024
    buffer_bytes: int = BUFFER_BYTES
    management_url: str | None = None
    visibility_timeout: timedelta = timedelta(hours=1)
    routing_topology: RoutingTopology | None = None
    # The values contain names of key files and pass phrases, so keep them out of repr().
    ssl: Mapping[str, Any] | None = field(default=None, repr=False)
    tls_insecure: bool = False
    allow_plaintext: bool = False
    # Options of Sentinel and of clouds contain passwords.
    channel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Check every value."""
        check_field_types(self)
        for name in ("connect_timeout", "confirm_timeout", "visibility_timeout", "heartbeat"):
            given = getattr(self, name)
            if given <= timedelta(0) and name != "heartbeat":
                raise ConfigurationError(f"{name} must be positive, got {given}")
            if given > _LONGEST_WAIT and name != "visibility_timeout":
                raise ConfigurationError(f"{name} is at most {_LONGEST_WAIT}, got {given}")
        if self.heartbeat != timedelta(0) and self.heartbeat < timedelta(seconds=1):
            raise ConfigurationError(
                f"heartbeat must be at least a second, or zero for none, got {self.heartbeat}"
            )
        if not 1 <= self.confirm_window <= 10_000:
            raise ConfigurationError(
                f"confirm_window must be from 1 to 10000, got {self.confirm_window}"
            )
        if self.queue_type not in ("quorum", "classic"):
            raise ConfigurationError(
                f"queue_type must be 'quorum' or 'classic', got {self.queue_type!r}"
            )
        if self.routing_topology not in (None, "direct", "conventional"):
            raise ConfigurationError(
                "routing_topology must be 'direct' or 'conventional', got "
                f"{self.routing_topology!r:.80}"
            )
        check_bound("buffer_bytes", self.buffer_bytes)
        check_bound("max_message_size", self.max_message_size)
        if not isinstance(self.ssl, Mapping | None):
            raise ConfigurationError("ssl is a table of TLS's files, such as {'ca_certs': path}")
        if self.management_url is not None:
            check_management_url(self.management_url)
        _check_channel_options(self.channel_options)


def _check_channel_options(given: object) -> None:
    """Raise ConfigurationError unless the options are a table without any of our settings."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"channel_options is a table of options of kombu's channel, got {given!r:.80}"
        )
    if not isinstance(to_sentinels := given.get("sentinel_kwargs", {}), Mapping):
        raise ConfigurationError(
            f"sentinel_kwargs is a table of options of redis' client, got {to_sentinels!r:.80}"
        )
    if ours := given.keys() & _SETTINGS_OF_CHANNELS.keys():
        name = min(ours)
        raise ConfigurationError(
            f"channel_options has {name}; give {_SETTINGS_OF_CHANNELS[name]} instead"
        )


def check_management_url(url: str) -> None:
    """Raise ConfigurationError unless *url* is ``off`` or an HTTP URL."""
    if url == "off":
        return
    with suppress(ValueError):  # raised for a host with one bracket, or a port that is not a number
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and parts.port != 0
        if is_http and parts.hostname and not parts.username:
            return
    raise ConfigurationError(
        "management_url is http://host:15672, https://host:15671 or 'off', without a user "
        f"(the broker's is used); got {redact(url)!r}"
    )

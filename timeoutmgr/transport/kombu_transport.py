"""The transport behind a kombu URL: RabbitMQ, or Redis if the user accepts its losses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from timeoutmgr.contracts import (
    LinkSecurity,
    TransactionMode,
    TransportCapabilities,
    TransportSession,
)
from timeoutmgr.contracts.answers import Answers
from timeoutmgr.errors import ConfigurationError, TransportUnavailable
from timeoutmgr.message.field_types import settings_of
from timeoutmgr.message.redaction import redact
from timeoutmgr.resilience.after_fork import begin_anew_after_fork, cached_property
from timeoutmgr.transport.amqp.connection import AmqpConnection, Heartbeats, kombu_connection
from timeoutmgr.transport.amqp.management import management_api
from timeoutmgr.transport.amqp.relay import Relay
from timeoutmgr.transport.amqp.session import RabbitMQSession
from timeoutmgr.transport.amqp.topology import ExchangeAddresses
from timeoutmgr.transport.refusals import Family, family_of
from timeoutmgr.transport.settings import KombuSettings, QueueType, RoutingTopology
from timeoutmgr.transport.tls import BrokerLink, broker_link
from timeoutmgr.transport.unsettled_messages import ByteBudget
from timeoutmgr.transport.virtual.link import BindingRegistry, DeclaredRegistry, Registry
from timeoutmgr.transport.virtual.session import RedisSession, VirtualSession

if TYPE_CHECKING:
    from timeoutmgr.database import Database

_MODES = frozenset({TransactionMode.NONE, TransactionMode.RECEIVE_ONLY})

_NUMBERED: Final = frozenset({"redis", "rediss", "sentinel", "redis+socket"})
"""Schemes whose path is a database; the path of redis+socket:// is a file."""
_DATABASE_NUMBER: Final = re.compile(r"/?\d*", re.ASCII)

_NOTES = {
    Family.AMQP: "confirmed sends; an unacknowledged message comes back at once",
    Family.REDIS: "kombu pops before it tracks, and Redis syncs once a second: needs accept_loss",
    Family.MEMORY: "for tests: ends with the process; needs accept_loss",
    Family.UNTESTED: "untested: no test has shown that it keeps its promises; needs accept_loss",
}


class KombuTransport:
    """Reaches queues by a kombu URL.

    Keyword arguments are the fields of :class:`KombuSettings`; or *settings* gives all of them.
    Raises CombinationRefused, before anything is opened, for transports that lose messages.
    """

    def __init__(
        self,
        url: str,
        *,
        settings: KombuSettings | None = None,
        accept_loss: bool | None = None,
        confirm_timeout: timedelta | None = None,
        confirm_window: int | None = None,
        connect_timeout: timedelta | None = None,
        heartbeat: timedelta | None = None,
        queue_type: QueueType | None = None,
        max_message_size: int | None = None,
        buffer_bytes: int | None = None,
        management_url: str | None = None,
        visibility_timeout: timedelta | None = None,
        routing_topology: RoutingTopology | None = None,
        ssl: Mapping[str, Any] | None = None,
        tls_insecure: bool | None = None,
        allow_plaintext: bool | None = None,
        channel_options: Mapping[str, Any] | None = None,
    ) -> None:
        arguments = locals()
        given = {each.name: arguments[each.name] for each in fields(KombuSettings)}
        self._settings = replace(
            settings_of(KombuSettings, settings),
            **{name: value for name, value in given.items() if value is not None},
        )
        _refuse_unreadable(url)
        self._url = url
        self._family = family_of(url, self._settings)
        self._link = _link(url, self._family, self._settings)
        _check_channel_options(url, self._family, self._settings.channel_options)
        if self._family is Family.AMQP:
            management_api(url, self._settings)  # for its refusals
        self.budget: Final = ByteBudget(self._settings.buffer_bytes)
        patience = {Family.REDIS: self._settings.visibility_timeout}
        self._heartbeats = Heartbeats(patience.get(self._family, self._settings.heartbeat))
        self.unanswered: Final = Answers()
        begin_anew_after_fork(self.unanswered)
        self._exchanges = ExchangeAddresses(self._settings.routing_topology)

    @property
    def capabilities(self) -> TransportCapabilities:
        """Modes and durability of the transport."""
        return TransportCapabilities(
            name=self._family.value,
            modes=_MODES,
            durable=self._family is Family.AMQP,
            note=_NOTES[self._family],
        )

    @property
    def link_security(self) -> LinkSecurity | None:
        """Protection of the connection to the broker; None if only kombu knows it."""
        return None if self._link is None else self._link.security

    @property
    def database(self) -> Database | None:
        """None: a broker's queues are no tables."""
        return None

    def describe(self) -> str:
        """Return the URL with every secret masked."""
        return redact(self._url)

    def install(self) -> None:
        """No-op: a session creates the queues, and there is nothing else to create."""

    def ddl(self) -> str:
        """Return an empty text: there are no tables."""
        return ""

    def check(self) -> None:
        """Return if the broker answers; raises TransportUnavailable."""
        with closing(self.session()) as session:
            session.ping()

    def session(self) -> TransportSession:
        """Return a new session; it connects on first use."""
        if self._family is Family.AMQP:
            return self._amqp_session()
        make: Callable[[Any], Registry] = (
            DeclaredRegistry if self._family is Family.UNTESTED else BindingRegistry
        )
        kind = RedisSession if self._family is Family.REDIS else VirtualSession
        return kind(self._connect_virtual, make, self._settings, self.budget)

    def session_of_batches(self, most: int) -> TransportSession:
        """Return a session that waits for the confirms of up to *most* messages together.

        For a caller whose whole batch is in doubt until its last message is confirmed, so that
        waits in between would only cost time. A larger window in the settings is kept, and each
        window of the settings' size has its own time-out.
        """
        if self._family is not Family.AMQP:
            return self.session()
        return self._amqp_session(max(self._settings.confirm_window, most))

    def follow_conventional_topology(self) -> None:
        """Address queues also by exchanges of their names, unless the settings choose otherwise."""
        self._exchanges.follow()

    def relay(self, queue: str, *, prefetch: int) -> Relay:
        """Return a relay for whole messages of *queue*; only on an AMQP broker."""
        if self._family is not Family.AMQP:
            raise ConfigurationError(
                f"{self.describe()} has no delay levels; only RabbitMQ has (amqp://)"
            )
        return Relay(self._connect_amqp, self._settings, queue, prefetch)

    def close(self) -> None:
        """Stop the heartbeats; sessions and receivers are closed separately."""
        self._heartbeats.close()

    @cached_property
    def _redis_transport(self) -> type:
        """The transport class for Redis, alone or behind sentinels."""
        from timeoutmgr.transport.virtual.redis_channel import raw_redis_transport

        by_sentinels = self._url.startswith("sentinel")
        return raw_redis_transport(self.unanswered, self._heartbeats, by_sentinels=by_sentinels)

    def _amqp_session(self, window: int | None = None) -> RabbitMQSession:
        return RabbitMQSession(
            self._connect_amqp,
            self._settings,
            window=window,
            management=management_api(self._url, self._settings),
            budget=self.budget,
            exchanges=self._exchanges,
        )

    def _connect_amqp(self) -> AmqpConnection:
        connection = AmqpConnection(self._url, self._settings, self.unanswered)
        try:
            self._heartbeats.add(connection, connection.heartbeat)
        except RuntimeError as error:  # the system has no more threads
            connection.close()
            raise TransportUnavailable(f"connecting failed without a thread: {error}") from error
        return connection

    def _connect_virtual(self) -> Any:
        options: dict[str, Any] = {}
        connect_timeout = self._settings.connect_timeout.total_seconds()
        tls = self._link.redis() if self._link else None
        if self._family is Family.MEMORY:
            options["polling_interval"] = 0.02  # kombu's default costs a second per hop
        options |= self._settings.channel_options
        if self._family is Family.REDIS:
            # Without them, a half-open connection hangs a thread for ever.
            waits = {"socket_timeout": self._settings.confirm_timeout.total_seconds()}
            waits["socket_connect_timeout"] = connect_timeout
            visibility_timeout = self._settings.visibility_timeout.total_seconds()
            options |= {**waits, "visibility_timeout": visibility_timeout}
            # kombu would connect to sentinels without TLS, and, given options, without time-outs.
            to_sentinels = {"ssl": True, **tls, **waits} if tls else waits
            options["sentinel_kwargs"] = to_sentinels | options.get("sentinel_kwargs", {})
        is_redis = self._family is Family.REDIS
        try:
            return kombu_connection(
                ";".join(self._link.urls) if self._link else self._url,
                connect_timeout=connect_timeout,
                transport_options=options,
                transport=self._redis_transport if is_redis else None,
                ssl=tls,
            )
        except (ImportError, AttributeError) as error:  # without redis, kombu raises either
            extra = "redis" if is_redis else urlsplit(self._url).scheme
            raise ConfigurationError(
                f"the transport {self.describe()} needs a package: pip install 'kombu[{extra}]'"
            ) from error


def _link(url: str, family: Family, settings: KombuSettings) -> BrokerLink | None:
    if family is Family.REDIS:
        _check_redis_database(url)
    if family in (Family.AMQP, Family.REDIS):
        return broker_link(url, settings, redis=family is Family.REDIS)
    if settings.ssl is not None:
        raise ConfigurationError(
            f"{redact(url)} has no use for an ssl table; kombu protects the link to this "
            "broker as the URL asks for"
        )
    return None


def _check_channel_options(url: str, family: Family, options: Mapping[str, Any]) -> None:
    if options and family is Family.AMQP:
        raise ConfigurationError(
            f"{redact(url)} has no use for channel_options ({', '.join(options):.200}); they are "
            "for brokers that kombu gives channels of its own"
        )
    if url.startswith("sentinel") and not options.get("master_name"):
        raise ConfigurationError(
            f"{redact(url)} names sentinels, and not what they watch over; give its name as "
            'channel_options = {"master_name": "…"}'
        )


def _check_redis_database(url: str) -> None:
    for part in map(urlsplit, url.split(";")):
        is_file = part.scheme == "redis+socket"
        vhost = dict(parse_qsl(part.query)).get("virtual_host", "")
        name = vhost if is_file else unquote(part.path).removeprefix("/")
        if part.scheme in _NUMBERED and not _DATABASE_NUMBER.fullmatch(name):
            raise ConfigurationError(
                f"{redact(url)!r} names the database {name!r:.80}; Redis has "
                f"numbers for names, such as {'virtual_host=0' if is_file else '/0'}"
            )


def _refuse_unreadable(url: str) -> None:
    parts = url.split(";")
    if any("@" in part and "://" not in part for part in parts):
        raise ConfigurationError(
            f"{redact(url)!r} has a raw ';' in its password, which parts the URLs of two brokers; "
            "quote ';' of a password as %3B"
        )
    for part in parts:
        try:
            _port = urlsplit(part).port
        except ValueError:
            # Not "from error": its text may contain part of a password, taken for a port.
            raise ConfigurationError(
                f"{redact(url)!r} has no port that can be read; expected a number. Quote '/', '?' "
                "and '#' of a password as %2F, %3F and %23"
            ) from None

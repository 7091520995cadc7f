"""The SQL queue as a kombu transport: ``kombu.Connection("timeoutmgr+sqlite:///x.db")``.

Our receivers can read kombu's messages, and the other way round. Unlike in kombu's own SQL
transport, an unacknowledged message stays in the table as leased, and is available again as soon as
its consumer is killed; and every process sees the bindings.

Transport options: *prefix*, *schema*, *install* (create missing tables on connect; default true),
and the fields of ``DatabaseSettings`` and ``SqlQueueSettings``, its intervals in seconds.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from queue import Empty
from types import NoneType
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from kombu.transport import virtual as kombu_virtual

from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.errors import ConfigurationError, StorageUnavailable, TransportUnavailable
from timeoutmgr.message.field_types import check_kind
from timeoutmgr.transport.sql.event_loop import LoopDelivery
from timeoutmgr.transport.sql.kombu_channel import Channel
from timeoutmgr.transport.sql.settings import SqlQueueSettings
from timeoutmgr.transport.sql.statements import as_transport
from timeoutmgr.transport.sql.transport import SqlTransport

virtual: Any = kombu_virtual  # kombu has too few annotations to check against
_LONGEST_PAUSE: Final = 0.05

_INTERVALS: Final = frozenset({"lease", "poll_min", "poll_max", "owner_check"})
_SETTINGS: Final = frozenset(field.name for field in fields(SqlQueueSettings))
_OF_DATABASE: Final = frozenset(field.name for field in fields(DatabaseSettings))
_OURS: Final = frozenset({"prefix", "schema", "install"}) | _OF_DATABASE
_POOL_SIZE: Final = 6
"""Database connections that a process pools for all its kombu connections. Each uses one for some
milliseconds per message; at a peak, the pool lends twice as many."""
OF_KOMBU: Final = frozenset(
    {
        # kombu itself adds the retry policy of a publish to the options of its connection.
        *("max_retries", "interval_start", "interval_step", "interval_max", "retry_errors"),
        *("connect_retries_timeout", "errback", "callback", "timeout"),
        *("body_encoding", "deadletter_queue", "polling_interval", "queue_order_strategy"),
    }
)


def queue_settings(options: Mapping[str, Any]) -> SqlQueueSettings:
    """Return the settings in transport *options*; raise ConfigurationError for unknown options."""
    if unknown := sorted(options.keys() - _SETTINGS - _OURS - OF_KOMBU):
        raise ConfigurationError(
            f"transport options {', '.join(unknown)} are unknown to timeoutmgr's SQL queue; it has "
            f"{', '.join(sorted(_SETTINGS | _OURS))}"
        )
    given = {name: options[name] for name in _SETTINGS & options.keys()}
    for name in _INTERVALS & given.keys():
        given[name] = _interval(name, given[name])
    return SqlQueueSettings(**given)


def pool_settings(options: Mapping[str, Any]) -> DatabaseSettings:
    """Return the settings of the database in transport *options*."""
    given = {name: options[name] for name in _OF_DATABASE & options.keys()}
    return DatabaseSettings(**{"pool_size": _POOL_SIZE} | given)


def _interval(name: str, value: Any) -> timedelta | None:
    check_kind(name, value, (int, float, timedelta, NoneType))
    return timedelta(seconds=value) if isinstance(value, int | float) else value


class KombuSqlTransport(virtual.Transport):  # type: ignore[misc]  # kombu's is untyped
    """One kombu connection; it is one owner of leases."""

    Channel = Channel

    can_parse_url = True
    # Not "sql": for that name, Celery turns off events and remote control.
    driver_type = "timeoutmgr"
    driver_name = "timeoutmgr"
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors = (
        *virtual.Transport.connection_errors,
        StorageUnavailable,
        TransportUnavailable,
    )

    _checked: ClassVar[WeakKeyDictionary[Database, set[str]]] = WeakKeyDictionary()
    """The tables that this process has checked; a check takes 15 statements."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.consumed: Counter[str] = Counter()
        self._sql: SqlTransport | None = None
        self._in_loop: LoopDelivery | None = None
        self._process = os.getpid()

    @property
    def sql(self) -> SqlTransport:
        """The SQL transport beneath; created when first needed."""
        if self._sql is None:
            options = self.client.transport_options
            settings = queue_settings(options)
            sql = SqlTransport(
                Database.shared(self.client.hostname, pool_settings(options)),
                schema=options.get("schema"),
                prefix=options.get("prefix", "timeoutmgr_"),
                settings=settings,
            )
            # A file may be deleted at any time, and its check costs little.
            tables = sql.tables.messages.fullname
            known = self._checked.setdefault(sql.database, set())
            if sql.database.is_sqlite or tables not in known:
                if options.get("install", True) and not sql.is_installed():
                    sql.install()
                sql.check()
                known.add(tables)
            self._sql, self._process = sql, os.getpid()
        return self._sql

    def establish_connection(self) -> Any:
        """Connect, and create missing tables."""
        self.sql.session().ping()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Give back unacknowledged messages, and release the owner's session lock.

        In a forked child, only forget the connection: the parent keeps its messages and lock.
        """
        if self._process != os.getpid():
            self._sql = None
            return
        in_loop, self._in_loop = self._in_loop, None
        if in_loop is not None:
            in_loop.stop()
        super().close_connection(connection)
        sql, self._sql = self._sql, None
        if sql is not None:
            # A database that is away notices the end of the session lock instead.
            with suppress(StorageUnavailable):
                sql.owned_queues.leave_all()
            sql.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message; raise socket.timeout if none comes within *timeout* seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        wakeup = self.sql.wakeups.any
        while True:
            count = wakeup.count
            try:
                self._deliver_one()
                return
            except Empty:
                now = time.monotonic()
                if until is not None and now >= until:
                    raise TimeoutError from None
            wakeup.wait(
                count, _LONGEST_PAUSE if until is None else min(_LONGEST_PAUSE, until - now)
            )

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """From now on deliver in kombu's *loop*, until the connection is closed."""
        if self._in_loop is not None:
            self._in_loop.stop()
        self._in_loop = LoopDelivery(loop, self._deliver_one, self.sql.wakeups.any)
        self._in_loop.start(_LONGEST_PAUSE)

    def room_made(self) -> None:
        """Note that a consumer may receive one more message."""
        if self._in_loop is not None:
            self._in_loop.ring()

    def _deliver_one(self) -> None:
        """Deliver one message without waiting, or raise Empty."""
        if self.sql.owned_queues.is_sweep_due:
            with as_transport(self.sql.database):
                self.sql.owned_queues.sweep_in_time()
        self.cycle.get(self._deliver, timeout=0)

    def driver_version(self) -> str:
        """Return the version of timeoutmgr."""
        from timeoutmgr._version import __version__

        return __version__

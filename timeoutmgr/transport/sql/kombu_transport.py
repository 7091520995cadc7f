"""The SQL queue as a kombu transport: ``kombu.Connection("timeoutmgr+sqlite:///x.db")``.

Our receivers can read kombu's messages, and the other way round. Unlike kombu's own SQL transport
a message that was received and not acknowledged stays in the table, leased, and is back at once
when its consumer is killed; bindings are seen by every process.

Transport options: *prefix*, *schema*, *install* (create missing tables on connect; true).
"""

from __future__ import annotations

import time
from queue import Empty
from typing import Any, Final

from kombu.transport import virtual as kombu_virtual

from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.transport.sql.kombu_channel import Channel, LeasedMessage
from timeoutmgr.transport.sql.transport import SqlTransport

virtual: Any = kombu_virtual  # its annotations are too few to check against
_LONGEST_PAUSE: Final = 0.05


class KombuSqlTransport(virtual.Transport):  # type: ignore[misc]  # kombu's is untyped
    """One kombu connection, which is one owner of leases."""

    Channel = Channel

    can_parse_url = True
    driver_type = "sql"
    driver_name = "timeoutmgr"
    implements = virtual.Transport.implements.extend(
        exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    connection_errors = (
        *virtual.Transport.connection_errors,
        StorageUnavailable,
        TransportUnavailable,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.deliveries: dict[str, LeasedMessage] = {}
        self._sql: SqlTransport | None = None

    @property
    def sql(self) -> SqlTransport:
        """The queue beneath; made when first needed."""
        if self._sql is None:
            options = self.client.transport_options
            sql = SqlTransport(
                self.client.hostname,
                schema=options.get("schema"),
                prefix=options.get("prefix", "timeoutmgr_"),
            )
            if options.get("install", True) and not sql.is_installed():
                sql.install()
            sql.check()
            self._sql = sql
        return self._sql

    def establish_connection(self) -> Any:
        """Connect, and create the tables where there are none."""
        self.sql.session().ping()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Give back unacknowledged messages, and release the owner's session lock."""
        super().close_connection(connection)
        sql, self._sql = self._sql, None
        if sql is not None:
            sql.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message; raise socket.timeout where none comes in *timeout* seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        wakeup = self.sql.wakeups.any
        while True:
            count = wakeup.count
            try:
                self.cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                now = time.monotonic()
                if until is not None and now >= until:
                    raise TimeoutError from None
            wakeup.wait(
                count, _LONGEST_PAUSE if until is None else min(_LONGEST_PAUSE, until - now)
            )

    def driver_version(self) -> str:
        """Return the version of timeoutmgr."""
        from timeoutmgr._version import __version__

        return __version__

"""A connection to the broker of a virtual transport."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Protocol, TypeAlias, runtime_checkable

from kombu.exceptions import ChannelError, OperationalError

from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)

# --- which queues exist, on a broker that would accept a message for any name ---------------------

EXCHANGE: Final = "timeoutmgr.queues"

_TRUSTED_FOR = 1.0


class BindingRegistry:
    """Keeps the queue names as bindings of an exchange; kombu stores these beside the queues.

    Redis deletes empty lists, so only the binding distinguishes an empty queue from a missing
    queue. Nothing is ever published to that exchange.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._names: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        channel.exchange_declare(exchange=EXCHANGE, type="direct", durable=True)

    def add(self, names: Iterable[str]) -> None:
        """Create queues, each bound under its own name; leave existing queues as they are."""
        self.refresh()
        for name in names:
            if name in self._names:
                continue
            self._channel.queue_declare(queue=name, durable=True)
            # This process may remember a binding that another process has since deleted.
            self._channel.state.binding_delete(name, EXCHANGE, name)
            self._channel.queue_bind(name, EXCHANGE, name)
        self.refresh()

    def remove(self, names: Iterable[str]) -> None:
        """Delete each queue with its binding."""
        for name in names:
            # kombu deletes only bindings of this process, so record the binding as its own.
            self._channel.state.binding_delete(name, EXCHANGE, name)
            self._channel.state.binding_declare(name, EXCHANGE, name, None)
            self._channel.queue_delete(name)
            self._channel.queue_unbind(name, EXCHANGE, name)
        self.refresh()

    def has(self, name: str) -> bool:
        """Return whether *name* is bound; True may be a second old, False as old as ``refresh``."""
        if time.monotonic() - self._read_at > _TRUSTED_FOR:
            self.refresh()
        return name in self._names

    def refresh(self) -> None:
        """Read the bindings."""
        self._names = frozenset(queue for _, _, queue in self._channel.get_table(EXCHANGE))
        self._read_at = time.monotonic()


class DeclaredRegistry:
    """Asks the broker by passive declarations, for transports that share no bindings."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def add(self, names: Iterable[str]) -> None:
        """Declare each queue; leave existing queues as they are."""
        for name in names:
            self._channel.queue_declare(queue=name, durable=True)

    def remove(self, names: Iterable[str]) -> None:
        """Delete each queue."""
        for name in names:
            self._channel.queue_delete(name)

    def has(self, name: str) -> bool:
        """Return whether the broker knows *name*."""
        try:
            self._channel.queue_declare(queue=name, passive=True)
        except ChannelError:
            return False
        return True

    def refresh(self) -> None:
        """Do nothing: ``has`` asks every time."""


Registry: TypeAlias = BindingRegistry | DeclaredRegistry
"""Knows which queues were created, as one channel sees it."""


@runtime_checkable
class PutsBackToFront(Protocol):
    """A channel that puts a rejected message back to the front of its queue.

    An error in *refusals* means that the broker has done nothing.
    """

    puts_back_to_front: bool
    refusals: tuple[type[Exception], ...]


class VirtualLink:
    """An open kombu connection with one channel, and the errors that it raises."""

    def __init__(self, connection: Any, make_registry: Callable[[Any], Registry]) -> None:
        self.connection = connection
        self.errors: tuple[type[BaseException], ...] = (
            OSError,
            OperationalError,
            # KeyError is in kombu's own list for Redis; here it would hide our own mistakes.
            *({*connection.connection_errors, *connection.channel_errors} - {KeyError}),
        )
        try:
            # Try each URL, or a single URL twice, without kombu's pause of two seconds in between.
            retries = max(len(connection.alt) - 1, 1)
            connection.ensure_connection(max_retries=retries, interval_start=0, interval_step=0)
            self.channel: Any = connection.channel()
            self.registry = make_registry(self.channel)
            self.puts_back_to_front = isinstance(self.channel, PutsBackToFront)
            self.refusals = self.channel.refusals if self.puts_back_to_front else ()
        except self.errors as error:
            self.close()
            unavailable("connecting", error)

    def close(self) -> None:
        """Close, even if the broker does not answer."""
        try:
            self.connection.release()
        except self.errors as error:
            fields = {"event": "close_unanswered"}
            logger.debug("the broker did not answer a close: %s", on_one_line(error), extra=fields)


def unavailable(what: str, error: BaseException) -> NoReturn:
    """Raise TransportUnavailable for an *error* of the broker."""
    raise TransportUnavailable(f"{what} failed: {type(error).__name__}: {error}") from error

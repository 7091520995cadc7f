"""A connection to the broker of a virtual transport."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, runtime_checkable

from kombu.exceptions import OperationalError

from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.virtual.registry import Registry

logger = logging.getLogger(__name__)


@runtime_checkable
class PutsBackToFront(Protocol):
    """A channel that puts a rejected message back to the front of its queue."""

    puts_back_to_front: bool


class VirtualLink:
    """A connected kombu connection with one channel, and the errors that it raises."""

    def __init__(self, connection: Any, make_registry: Callable[[Any], Registry]) -> None:
        self.connection = connection
        self.errors: tuple[type[BaseException], ...] = (
            OSError,
            OperationalError,
            # KeyError is in kombu's own list for Redis; here it would hide our own mistakes.
            *(
                one
                for one in (*connection.connection_errors, *connection.channel_errors)
                if one is not KeyError
            ),
        )
        try:
            # A second try, at once: kombu would otherwise wait two seconds before it.
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            self.channel: Any = connection.channel()
            self.registry = make_registry(self.channel)
            self.puts_back_to_front = isinstance(self.channel, PutsBackToFront)
        except self.errors as error:
            self.close()
            unavailable("connecting", error)

    def close(self) -> None:
        """Close; a broker that does not answer is no reason not to."""
        try:
            self.connection.release()
        except self.errors as error:
            logger.debug(
                "the broker did not answer a close: %s",
                on_one_line(error),
                extra={"event": "close_unanswered"},
            )


def unavailable(what: str, error: BaseException) -> NoReturn:
    """Raise TransportUnavailable for an *error* of the broker."""
    raise TransportUnavailable(f"{what} failed: {type(error).__name__}: {error}") from error

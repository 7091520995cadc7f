"""A marker on RabbitMQ: durable exchanges that nothing is bound to.

One exchange says by its name that the endpoint is marked, and has the second as its alternate
exchange; the second has the marker in its name. A declaration that differs is refused with the
name, unless that is too long for AMQP's 255 bytes. Without the right to declare, the marker is
recognised by the second exchange alone.
"""

from __future__ import annotations

import re
from typing import Any, Final

from amqp.exceptions import AccessRefused, PreconditionFailed

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.transport.amqp.topology import has_exchange

UNREADABLE: Final = "(cannot be read)"
"""The word for a marker that is there, and that this user or this name cannot read."""

_PREFIX: Final = "timeoutmgr.marker."
_ALTERNATE: Final = "alternate-exchange"
_MARKER: Final = "timeoutmgr."
_ELSE: Final = "?"
_CURRENT: Final = re.compile(r"but current is (?:the value )?'timeoutmgr[.](?P<word>[^']+)'")


def read(channel: Any, endpoint: str, expected: str | None) -> str | None:
    """Return the marker of *endpoint*, None if it has none."""
    name = _first(endpoint)
    if not has_exchange(channel, name):
        return None
    wanted = _ELSE if expected is None else _second(expected)
    try:
        # The exchange exists, so that nothing is created: the broker only compares.
        _declare(channel, name, {_ALTERNATE: wanted})
    except PreconditionFailed as error:
        found = _CURRENT.search(error.reply_text)
        return found["word"] if found else UNREADABLE
    except AccessRefused:
        is_there = expected is not None and has_exchange(channel, _second(expected))
        return expected if is_there else UNREADABLE
    return expected


def write(channel: Any, endpoint: str, word: str, store: str) -> None:
    """Mark *endpoint*; another marker is taken away."""
    found = read(channel, endpoint, word)
    if found == word:
        return
    try:
        if found is not None:
            erase(channel, endpoint, found)
        second = _second(word)
        _declare(channel, second, {})
        _declare(channel, _first(endpoint), {_ALTERNATE: second, "store": store})
    except AccessRefused as error:
        raise ConfigurationError(
            f"the broker's user may not declare the marker of {endpoint!r} ({error}); run the "
            "installation with a user that has the permission to configure, write and read it"
        ) from error


def erase(channel: Any, endpoint: str, expected: str | None) -> None:
    """Remove the marker of *endpoint*; a missing marker is fine."""
    found = read(channel, endpoint, expected)
    channel.exchange_delete(_first(endpoint))
    if found not in (None, UNREADABLE):
        channel.exchange_delete(_second(str(found)))


def _declare(channel: Any, name: str, arguments: dict[str, str]) -> None:
    channel.exchange_declare(name, "fanout", durable=True, auto_delete=False, arguments=arguments)


def _first(endpoint: str) -> str:
    return f"{_PREFIX}{endpoint}"


def _second(word: str) -> str:
    return f"{_MARKER}{word}"

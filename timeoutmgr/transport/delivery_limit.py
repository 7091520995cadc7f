"""The delivery limit of an existing RabbitMQ queue, found by declarations that create nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from amqp.exceptions import AccessRefused, PreconditionFailed

from timeoutmgr.errors import ConfigurationError, QueueMissing

_DEFAULT: Final = 20
"""The limit of a quorum queue without an argument, from RabbitMQ 4.0 on."""
_LAST: Final = "x-queue-leader-locator"
"""Compared last. With this value no queue can be declared, and no queue has it."""
_NO_QUEUE: Final = "timeoutmgr-probe"
_DIFFERS: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .*? but current is "
    r"(?:none|(?:the value )?'(?P<value>[^']*)'(?: of type '(?P<type>\w+)')?)"
)
_MOST_ARGUMENTS: Final = 40


def delivery_limit(channel: Any, queue: str, server_version: tuple[int, ...]) -> int | None:
    """Return after how many deliveries *queue* gives a message up, None for never.

    A declaration that differs is refused with an argument that differs; the probe takes that over
    until only the impossible argument is left. A limit that a policy sets cannot be seen.

    Raises QueueMissing, and ConfigurationError where the user may not declare.
    """
    has_default = server_version >= (4,)
    told: dict[str, Any] = {"x-queue-type": "quorum", _LAST: _NO_QUEUE}
    if has_default:
        told["x-delivery-limit"] = -1
    for _ in range(_MOST_ARGUMENTS):
        name, value = _difference(channel, queue, told)
        if name in ("durable", "auto_delete", "exclusive", "x-queue-type"):
            return None  # not a quorum queue, and no other queue has a limit
        if name == _LAST:
            return None
        if name == "x-delivery-limit":
            limit = _DEFAULT if value is None and has_default else value
            return limit if isinstance(limit, int) and limit >= 0 else None
        if value is None:
            told.pop(name, None)
        else:
            told[name] = value
    raise ConfigurationError(
        f"the delivery limit of queue {queue!r} cannot be found: the broker names ever more "
        f"arguments that differ, the last being {name!r}; look into the queue with its own tools"
    )


def _difference(channel: Any, queue: str, told: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the argument in which *queue* differs from what is *told*, and its value there."""
    try:
        channel.queue_declare(queue, durable=True, auto_delete=False, arguments=dict(told))
    except AccessRefused as error:
        raise ConfigurationError(
            f"the broker's user may not ask for the delivery limit of queue {queue!r}, towards "
            f"which a look might count ({error}); use a user with the configure permission"
        ) from error
    except PreconditionFailed as error:
        found = _DIFFERS.search(str(error))
        if found is None:
            raise QueueMissing([queue], "run `timeoutmgr install`") from error
        return found["name"], _value(found["value"], found["type"])
    return _LAST, None


def _value(text: str | None, kind: str | None) -> Any:
    if text is None:
        return None
    if kind == "bool":
        return text == "true"
    is_number = kind != "longstr" and text.removeprefix("-").isdigit()
    return int(text) if is_number else text

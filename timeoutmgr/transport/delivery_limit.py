"""The delivery limit of an existing RabbitMQ queue, as its declaration says it."""

from __future__ import annotations

from typing import Any, Final

from timeoutmgr.errors import ConfigurationError, QueueMissing
from timeoutmgr.transport.queue_probe import Unreadable, probe

_ARGUMENT: Final = "x-delivery-limit"
_DEFAULT: Final = 20
"""The limit of a quorum queue without an argument, from RabbitMQ 4.0 on."""


def delivery_limit(channel: Any, queue: str, server_version: tuple[int, ...]) -> int | None:
    """Return after how many deliveries *queue* gives a message up, None for never.

    A limit that a policy sets cannot be seen over AMQP. Raises QueueMissing, and
    ConfigurationError if the broker does not tell.
    """
    has_default = server_version >= (4,)
    expected = {"x-queue-type": "quorum"} | ({_ARGUMENT: -1} if has_default else {})
    try:
        found = probe(channel, queue, expected)
    except Unreadable as reason:
        raise ConfigurationError(
            f"a look might count towards the delivery limit of queue {queue!r}, and the limit is "
            f"not known: {reason}; use a user with the configure permission, or the broker's own "
            "tools"
        ) from reason
    if found is None:
        raise QueueMissing([queue], "run `timeoutmgr install`")
    if found.kind != "quorum":
        return None  # queues of no other type have a limit
    limit = found.arguments.get(_ARGUMENT, _DEFAULT if has_default else None)
    return limit if isinstance(limit, int) and limit >= 0 else None

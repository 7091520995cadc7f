"""kombu's Redis channel, but what is no message is handed over and not lost.

Imported only where Redis is used: kombu's module needs the ``redis`` package.
"""

from __future__ import annotations

from collections.abc import Iterable
from queue import Empty
from typing import Any, Final

from kombu.transport import redis, virtual
from kombu.utils.json import loads

from timeoutmgr.transport.raw_message import unreadable

_DEEPEST: Final = 100
"""Levels of an item that is taken as it is. Far below what JSON can: it is written down again,
some levels deeper, and again where it is put back."""


class _QoS(redis.QoS):
    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not requeue:
            super().reject(delivery_tag)  # type: ignore[no-untyped-call]  # kombu's is untyped
            return
        # To the end that is read next; kombu's own puts it behind all that wait.
        self.restore_by_tag(delivery_tag)  # type: ignore[no-untyped-call]  # as above
        virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]  # as above


class RawRedisChannel(redis.Channel):
    """A Redis channel that survives any item in its lists."""

    QoS = _QoS
    puts_back_to_front = True

    def _brpop_read(self, **options: Any) -> bool:
        # As kombu's, but for the reading of the item: it is off the list already, and an
        # exception here would lose it.
        try:
            try:
                popped = self.client.parse_response(self.client.connection, "BRPOP", **options)
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
            if not popped:
                raise Empty
            key, item = popped
            queue = key.decode().rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
            self.connection._deliver(_payload(item), queue)
            return True
        finally:
            self._in_poll = False
            self._flush_brpop_reauth()  # type: ignore[no-untyped-call]  # as above


class RawRedisTransport(redis.Transport):
    """kombu's Redis transport with our channel."""

    Channel = RawRedisChannel


def _payload(item: bytes) -> Any:
    try:
        payload = loads(item)  # type: ignore[no-untyped-call]  # as above
    except Exception:  # whatever a stranger's text provokes in kombu's JSON hooks
        return unreadable(item)
    is_sound = isinstance(payload, dict) and not _is_deep(payload)
    return payload if is_sound else unreadable(item)


def _is_deep(payload: dict[Any, Any]) -> bool:
    level: list[Any] = [payload]
    for _ in range(_DEEPEST):
        level = [child for one in level for child in _children(one)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()

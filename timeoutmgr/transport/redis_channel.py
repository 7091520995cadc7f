"""kombu's Redis channel, but what is no message is handed over and not lost.

Imported only where Redis is used: kombu's module needs the ``redis`` package.
"""

from __future__ import annotations

from queue import Empty
from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.json import loads

from timeoutmgr.transport.raw_message import unreadable


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
        return payload if isinstance(payload, dict) else unreadable(item)
    except Exception:  # whatever a stranger's text provokes in kombu's JSON hooks
        return unreadable(item)

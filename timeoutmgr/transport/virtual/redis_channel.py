"""kombu's Redis channel, changed so that it delivers malformed items instead of losing them.

Imported only where Redis is used: kombu's module needs the ``redis`` package.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any, Final

from kombu.transport import redis, virtual
from kombu.utils.json import dumps, loads
from redis import exceptions

from timeoutmgr.contracts.answers import Answers
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.amqp.connection import Heartbeats
from timeoutmgr.transport.virtual.link import EXCHANGE
from timeoutmgr.transport.virtual.raw_message import RawMessage, ReadPayload, table, unreadable

logger = logging.getLogger(__name__)

_DEEPEST: Final = 100
"""Maximum depth of an item that is accepted as it is. Far below JSON's limit: the item is written
again some levels deeper, and once more when it is put back."""

_PATIENCE_OF_OTHERS: Final = 240.0
"""Seconds of the shortest visibility time-out of other programs; it applies to our messages too."""

_NOTE: Final = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
"""
"""A full Redis (``noeviction``) refuses a script only if its first write adds data."""

_RENEW: Final = """
for i = 2, #ARGV do
    if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
        redis.call('ZADD', KEYS[1], ARGV[1], ARGV[i])
    end
end
"""


class _QoS(redis.QoS):
    """Keeps unsettled messages in Redis only; kombu would also keep each body in memory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # kombu's is untyped
        self._of_others: set[bytes] = set()

    def append(self, message: RawMessage, delivery_tag: str) -> None:
        """Record in Redis, as kombu does, that *message* is not acknowledged yet."""
        note, errors = _unacked(message), self.channel.connection_errors
        for may_fail in errors, ():  # retry: a lost connection would lose the message
            with suppress(*may_fail):
                self._note(delivery_tag, note)
                break
        virtual.QoS.append(self, None, delivery_tag)  # type: ignore[no-untyped-call]  # as below

    def _note(self, tag: str, note: bytes) -> None:
        # The wall clock: kombu in any process compares the score with its own time.time().
        try:
            with self.pipe_or_acquire() as pipe:
                pipe.zadd(self.unacked_index_key, {tag: time.time()})
                pipe.hset(self.unacked_key, tag, note)
                pipe.execute()
        except exceptions.OutOfMemoryError:
            self._note_by_script(tag, note)

    def _note_by_script(self, tag: str, note: bytes) -> None:
        self._run(_NOTE, tag, time.time(), note)

    def renew(self, client: Any) -> None:
        """Restart the visibility time-out of unacknowledged messages; from any thread."""
        if self._delivered:
            self._run(_RENEW, time.time(), *self._delivered, client=client)

    def _run(self, script: str, *arguments: Any, client: Any = None) -> None:
        prefix = self.channel.global_keyprefix
        keys = f"{prefix}{self.unacked_index_key}", f"{prefix}{self.unacked_key}"
        with self.channel.conn_or_acquire(client) as client:
            client.eval(script, len(keys), *keys, *arguments)

    def require_right(self) -> None:
        """Raise NoPermissionError if messages cannot be recorded, since they could be lost.

        Writes and removes an empty record in both ways, before memory is full. If the record stays
        because this process is killed, nothing is put back from it.
        """
        try:
            for note in (self._note, self._note_by_script):
                note("", b"")
                self._remove("")
        except exceptions.ResponseError as error:
            is_renamed = "unknown command" in str(error)  # the server's configuration says so
            if not (is_renamed or isinstance(error, exceptions.NoPermissionError)):
                raise
            keys = f"{self.unacked_index_key}, {self.unacked_key}"
            raise exceptions.NoPermissionError(
                f"{error}; grant the user the keys of unacknowledged messages ({keys}) and the "
                "commands that note them: zadd, zrem, hset, hdel, multi, exec, and eval for a "
                "Redis whose memory is full"
            ) from error

    def ack(self, delivery_tag: str) -> None:
        self._remove(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]  # kombu's is untyped

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Put back messages that a consumer kept too long; a full Redis has no room for a lock."""
        with suppress(exceptions.OutOfMemoryError):
            super().restore_visible(*args, **kwargs)  # type: ignore[no-untyped-call]  # as above

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Put a message back; one that a consumer kept too long only if its queue is ours.

        Another program may have a longer time-out, and an exchange whose queues kombu cannot find.
        """
        if client is None or self._is_ours(tag, client):
            super().restore_by_tag(tag, client, leftmost)  # type: ignore[no-untyped-call]  # as above

    def _is_ours(self, tag: bytes, client: Any) -> bool:
        if tag in self._of_others:
            return False
        if len(self._of_others) >= 10_000:  # most are settled by now
            self._of_others.clear()
        note = client.hget(self.unacked_key, tag)
        if not note:
            return True  # an entry of the index alone, which kombu removes
        _, exchange, queue = loads(note)  # type: ignore[no-untyped-call]  # as above
        if exchange or queue not in {one[2] for one in self.channel.get_table(EXCHANGE)}:
            self._of_others.add(tag)
        return tag not in self._of_others

    def _remove(self, tag: str) -> None:
        # Without kombu's transaction: a full Redis refuses every command in a transaction.
        with self.channel.conn_or_acquire() as client:
            pipe = client.pipeline(transaction=False)
            pipe.zrem(self.unacked_index_key, tag).hdel(self.unacked_key, tag).execute()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not requeue:
            self.ack(delivery_tag)
            return
        # To the end that is read next; kombu would put it behind all waiting messages.
        self.restore_by_tag(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]  # as above


class RawRedisChannel(redis.Channel):
    """A Redis channel that can handle any item in its lists."""

    QoS = _QoS
    puts_back_to_front = True
    refusals = (exceptions.ResponseError,)
    heartbeats: Heartbeats
    broken: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Connect; with several URLs skip a replica, which answers but accepts no messages."""
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # as above
        if self.connection.client.alt and self._is_replica():
            self.close()
            raise exceptions.ConnectionError(
                "the server is a replica; one of the URLs must name its master"
            )

    def _is_replica(self) -> bool:
        with suppress(exceptions.ResponseError), self.conn_or_acquire() as client:
            answer = client.execute_command("HELLO")  # needs no permission
            return b"replica" in (answer.values() if isinstance(answer, dict) else answer)
        return False  # a server older than Redis 6

    def basic_consume(self, *args: Any, **kwargs: Any) -> Any:
        """Consume, unless messages cannot be recorded: they leave their list before the record."""
        self.qos.require_right()
        self._renewing: Any = self._create_client()  # type: ignore[no-untyped-call]  # as above
        self.heartbeats.add(self, _PATIENCE_OF_OTHERS)
        return super().basic_consume(*args, **kwargs)  # type: ignore[no-untyped-call]  # as above

    def beat(self) -> None:
        """Keep unacknowledged messages hidden for another visibility time-out."""
        try:
            self.qos.renew(self._renewing)
        except (*self.connection_errors, exceptions.RedisError) as error:
            logger.warning(
                "receiver could not renew the visibility timeout of its messages: %s",
                on_one_line(error),
                extra={"event": "leases_not_renewed"},
            )

    def close(self) -> None:
        """Close, and put back unacknowledged messages, though the pending BRPOP may fail."""
        self.broken = "closed"
        try:
            super().close()  # type: ignore[no-untyped-call]  # as above
        except self.connection_errors:
            # The BRPOP has ended; do the rest. kombu would put the messages back at the end of the
            # process, which would then wait for a server that hangs.
            super().close()  # type: ignore[no-untyped-call]  # as above

    def _brpop_read(self, **options: Any) -> bool:
        # As in kombu, except for how the item is read: it has already left the list, and an
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
            try:
                self.connection._deliver(_payload(item), queue)
            except exceptions.ResponseError:  # Redis refused the record
                self._put_back(key.decode(), item)
                raise
            return True
        finally:
            self._in_poll = False
            # Older versions of kombu never authenticate a connection again.
            getattr(self, "_flush_brpop_reauth", lambda: None)()

    def _put_back(self, key: str, item: bytes) -> None:
        """Put *item* back, unchanged, to the end of its list that is read next."""
        try:
            with self.conn_or_acquire() as client:
                client.rpush(key, item)
        except (*self.connection_errors, exceptions.RedisError) as error:
            logger.error(
                "receiver lost message %.80r of list %.80r (%d bytes), which Redis refuses: %s",
                RawMessage(key, _payload(item)).properties.get("message_id"),
                key,
                len(item),
                on_one_line(error),
                extra={"event": "message_lost"},
            )


class RawSentinelChannel(RawRedisChannel, redis.SentinelChannel):
    """The same channel on the server that the sentinels name as master."""


def raw_redis_transport(answers: Answers, beats: Heartbeats, *, by_sentinels: bool) -> type[Any]:
    """Return a transport class with our channel, whose connections record their waits."""
    base = redis.SentinelTransport if by_sentinels else redis.Transport
    kind = RawSentinelChannel if by_sentinels else RawRedisChannel
    plain, tls = (noted(one, answers) for one in (kind.connection_class, kind.connection_class_ssl))
    own = {"connection_class": plain, "connection_class_ssl": tls, "heartbeats": beats}
    return type("NotedTransport", (base,), {"Channel": type("NotedChannel", (kind,), own)})


def _unacked(message: RawMessage) -> bytes:
    """Return the data with which kombu puts *message* back: payload, exchange and routing key.

    The item is inserted as it was read: serializing a 16 MiB body again takes five times its
    memory.
    """
    where = [message.delivery_info["exchange"], message.delivery_info["routing_key"]]
    item = message.pop_item()
    if item is None:
        return _json([message.serializable(), *where])
    return b"".join((b"[", item, b", ", _json(where)[1:]))


def _json(value: Any) -> bytes:
    text: str = dumps(value)  # type: ignore[no-untyped-call]  # kombu's is untyped
    return text.encode()


def _payload(item: bytes) -> Any:
    try:
        payload = loads(item)  # type: ignore[no-untyped-call]  # as above
    except Exception:  # kombu's JSON hooks can raise anything on another program's text
        return unreadable(item)
    if not isinstance(payload, dict) or _is_deep(payload):
        return unreadable(item)
    return ReadPayload(payload, item) if _can_go_back(payload) else payload


def _can_go_back(payload: dict[str, Any]) -> bool:
    """Return whether kombu can put *payload* back as it is: kombu writes into both tables."""
    place = table(payload.get("properties")).get("delivery_info")
    return isinstance(payload.get("headers"), dict) and isinstance(place, dict)


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


def noted(kind: Any, answers: Answers) -> type[Any]:
    """Return the connection class *kind* with each call that waits for Redis recorded in *answers*.

    So a process that stops can cut the connections.
    """

    class NotedConnection(kind):  # type: ignore[misc]  # its base is Any
        """Fails at once, and does not reconnect, while the server is given up."""

        def connect(self) -> None:
            """Connect, unless the server is given up."""
            with self._asking():
                super().connect()

        def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            """Send; this waits while a server that hangs leaves the buffers full."""
            with self._asking():
                super().send_packed_command(*args, **kwargs)

        def read_response(self, *args: Any, disconnect_on_error: bool = True, **kwargs: Any) -> Any:
            """Return an answer."""
            try:
                with self._asking():
                    answer = super().read_response(*args, disconnect_on_error=False, **kwargs)
            except exceptions.ResponseError:
                answers.sign()
                raise
            except BaseException:
                # Only now: another socket may reuse the number of a closed socket.
                if disconnect_on_error:
                    self.disconnect()
                raise
            answers.sign()
            return answer

        @contextmanager
        def _asking(self) -> Iterator[None]:
            # The redis client has no public name for its socket; kombu uses this name too.
            sock = self._sock
            with answers.waiting(None if sock is None else sock.fileno()):
                # After the record: a call that ``give_up`` came too early to find sees it here.
                if answers.is_given_up:
                    raise exceptions.ConnectionError("Redis was silent while this process ended")
                yield

    return NotedConnection

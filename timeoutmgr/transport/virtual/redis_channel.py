"""kombu's Redis channel, which delivers malformed items too instead of losing them.

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
from timeoutmgr.transport.virtual.raw_message import RawMessage, ReadPayload, table, unreadable

logger = logging.getLogger(__name__)

_DEEPEST: Final = 100
"""Levels of an item that is taken as it is. Far below JSON's limit: it is written down again,
some levels deeper, and again where it is put back."""

_NOTE: Final = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
"""
"""A full Redis (``noeviction``) refuses a script's first write if it adds, and no later write."""

_RENEW: Final = """
for i = 2, #ARGV do
    if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
        redis.call('ZADD', KEYS[1], ARGV[1], ARGV[i])
    end
end
"""


class _QoS(redis.QoS):
    """Keeps messages in Redis alone until they are settled: kombu would keep each body too."""

    def append(self, message: RawMessage, delivery_tag: str) -> None:
        """Note in Redis, as kombu does, that *message* is not acknowledged yet."""
        note, errors = _unacked(message), self.channel.connection_errors
        for may_fail in errors, ():  # twice: where a connection is lost, so is the message
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
        """Have the visibility time-out of unacknowledged messages begin now; from any thread."""
        if self._delivered:
            self._run(_RENEW, time.time(), *self._delivered, client=client)

    def _run(self, script: str, *arguments: Any, client: Any = None) -> None:
        prefix = self.channel.global_keyprefix
        keys = f"{prefix}{self.unacked_index_key}", f"{prefix}{self.unacked_key}"
        with self.channel.conn_or_acquire(client) as client:
            client.eval(script, len(keys), *keys, *arguments)

    def require_right(self) -> None:
        """Raise NoPermissionError if messages cannot be noted: without a note they can be lost.

        Writes and removes an empty note in both ways, before memory is full. If the note stays,
        because this process is killed, nothing is put back from it.
        """
        try:
            for note in (self._note, self._note_by_script):
                note("", b"")
                self._remove("")
        except exceptions.ResponseError as error:
            is_renamed = "unknown command" in str(error)  # by the configuration of the server
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
        """Put back what a consumer kept for too long; a full Redis has no room for the lock."""
        with suppress(exceptions.OutOfMemoryError):
            super().restore_visible(*args, **kwargs)  # type: ignore[no-untyped-call]  # as above

    def _remove(self, tag: str) -> None:
        # In no transaction, as kombu: a full Redis refuses each command of a transaction.
        with self.channel.conn_or_acquire() as client:
            pipe = client.pipeline(transaction=False)
            pipe.zrem(self.unacked_index_key, tag).hdel(self.unacked_key, tag).execute()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not requeue:
            self.ack(delivery_tag)
            return
        # To the end that is read next; kombu's own puts it behind all that wait.
        self.restore_by_tag(delivery_tag)  # type: ignore[no-untyped-call]  # as above
        virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]  # as above


class RawRedisChannel(redis.Channel):
    """A Redis channel that survives any item in its lists."""

    QoS = _QoS
    puts_back_to_front = True
    refusals = (exceptions.ResponseError,)
    heartbeats: Heartbeats
    broken: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Connect; of several URLs pass over a replica, which answers and takes no message."""
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # as above
        if self.connection.client.alt and self._is_replica():
            self.close()
            raise exceptions.ConnectionError(
                "the server is a replica; one of the URLs must name its master"
            )

    def _is_replica(self) -> bool:
        with suppress(exceptions.ResponseError), self.conn_or_acquire() as client:
            answer = client.execute_command("HELLO")  # needs no right
            return b"replica" in (answer.values() if isinstance(answer, dict) else answer)
        return False  # a server older than Redis 6

    def basic_consume(self, *args: Any, **kwargs: Any) -> Any:
        """Consume, unless messages cannot be noted: they are off their list before the note."""
        self.qos.require_right()
        self._renewing: Any = self._create_client()  # type: ignore[no-untyped-call]  # as above
        self.heartbeats.add(self)
        return super().basic_consume(*args, **kwargs)  # type: ignore[no-untyped-call]  # as above

    def beat(self) -> None:
        """Keep unacknowledged messages from other consumers for another visibility time-out."""
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
            # The BRPOP is over, and the rest is to do. kombu would leave the messages to the end
            # of the process, which would wait for a server that hangs.
            super().close()  # type: ignore[no-untyped-call]  # as above

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
            try:
                self.connection._deliver(_payload(item), queue)
            except exceptions.ResponseError:  # Redis refused the note
                self._put_back(key.decode(), item)
                raise
            return True
        finally:
            self._in_poll = False
            # Older versions of kombu never authenticate a connection anew.
            getattr(self, "_flush_brpop_reauth", lambda: None)()

    def _put_back(self, key: str, item: bytes) -> None:
        """Put *item* to the end of its list that is read next, as it was."""
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
    """The same channel, on the server that sentinels name as the master."""


def raw_redis_transport(answers: Answers, beats: Heartbeats, *, by_sentinels: bool) -> type[Any]:
    """Return a transport class with our channel, whose connections note their waits."""
    base = redis.SentinelTransport if by_sentinels else redis.Transport
    kind = RawSentinelChannel if by_sentinels else RawRedisChannel
    plain, tls = (noted(one, answers) for one in (kind.connection_class, kind.connection_class_ssl))
    own = {"connection_class": plain, "connection_class_ssl": tls, "heartbeats": beats}
    return type("NotedTransport", (base,), {"Channel": type("NotedChannel", (kind,), own)})


def _unacked(message: RawMessage) -> bytes:
    """Return what kombu reads to put *message* back: its payload, exchange and routing key.

    The item is spliced in as it was read. To write a body of 16 MiB down again takes five times
    its memory.
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
    except Exception:  # any error that a stranger's text provokes in kombu's JSON hooks
        return unreadable(item)
    if not isinstance(payload, dict) or _is_deep(payload):
        return unreadable(item)
    return ReadPayload(payload, item) if _can_go_back(payload) else payload


def _can_go_back(payload: dict[str, Any]) -> bool:
    """Return whether kombu can put *payload* back as it is: it marks both tables."""
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
    """Return *kind* of connection with each call that waits for Redis noted in *answers*.

    So a process that ends can cut the connections off.
    """

    class NotedConnection(kind):  # type: ignore[misc]  # its base is Any
        """Fails at once, and connects no more, while the server is given up."""

        def connect(self) -> None:
            """Connect, unless the server is given up."""
            with self._asking():
                super().connect()

        def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            """Send; it waits while a server that hangs leaves the buffers full."""
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
                # Only now: the number of a closed socket may be another socket's.
                if disconnect_on_error:
                    self.disconnect()
                raise
            answers.sign()
            return answer

        @contextmanager
        def _asking(self) -> Iterator[None]:
            # The redis client has no public name for its socket; kombu uses this one too.
            sock = self._sock
            with answers.waiting(None if sock is None else sock.fileno()):
                # After the note: a call that is noted later than ``give_up`` looks sees it here.
                if answers.is_given_up:
                    raise exceptions.ConnectionError("Redis was silent while this process ended")
                yield

    return NotedConnection

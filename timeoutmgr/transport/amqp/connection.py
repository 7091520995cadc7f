"""One connection to an AMQP broker, opened through kombu and driven by one thread at a time."""

from __future__ import annotations

import logging
import select
import selectors
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

from amqp import spec
from amqp.exceptions import AMQPError
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from kombu.transport import pyamqp

from timeoutmgr.contracts.answers import Answers
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message.redaction import on_one_line, redact
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.resilience.thread_task import begin_thread
from timeoutmgr.transport.amqp.frames import (
    RawContent,
    delivered_tag,
    raw_frame_handler,
    split_frames,
)
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.tls import broker_link

logger = logging.getLogger(__name__)

BROKER_ERRORS = (OSError, AMQPError, OperationalError)

_READ_SIZE = 65_536
# When the socket is readable, half a TLS record may be there; wait this long for the rest.
_TLS_RECORD_WAIT = 0.05


class RawChannel(pyamqp.Channel):
    """A channel that passes deliveries on as they are, without decoding bodies or routing keys."""

    deliver: Callable[[int, bool, RawContent], None] | None = None
    cancelled: Callable[[], None] | None = None

    def dispatch_method(self, method_sig: tuple[int, int], payload: bytes, content: Any) -> None:
        """Pass deliveries to *deliver*, other frames to py-amqp; call *cancelled* on a cancel."""
        if method_sig == spec.Basic.Deliver and self.deliver is not None:
            # The exchange and routing key that follow need not be UTF-8, and are not read.
            self.deliver(*delivered_tag(payload), content)
            return
        super().dispatch_method(method_sig, payload, content)
        if method_sig == spec.Basic.CancelOk and self.cancelled is not None:
            self.cancelled()


class _RawConnection(pyamqp.Connection):
    Channel = RawChannel


class _RawTransport(pyamqp.Transport):
    Connection = _RawConnection


class _Connection(Connection):
    def switch(self, conn_str: str) -> None:
        """Go on to the next URL; kombu would also replace our transport by its own."""
        kept = self.transport_cls
        super().switch(conn_str)  # type: ignore[no-untyped-call]  # kombu's is untyped
        self.transport_cls = kept


def kombu_connection(url: str, **options: Any) -> Any:
    """Return kombu's unopened connection; here untyped kombu ends and typed code begins."""
    connection: Any = _Connection(url, **options)  # type: ignore[no-untyped-call]  # as above
    if (ours := options.get("transport")) is not None:
        connection.transport_cls = ours  # kombu uses its own transport for redis+socket://
    return connection


@contextmanager
def broker_errors(what: str) -> Iterator[None]:
    """Raise TransportUnavailable for any error of the broker or the network."""
    try:
        yield
    except BROKER_ERRORS as error:
        raise TransportUnavailable(f"{what} failed: {type(error).__name__}: {error}") from error


class AmqpConnection:
    """A connection; it is used under its *lock*, and never again once it has failed.

    Sending and each receiver have separate connections: so dropping a connection for an unknown
    confirm, or an alarm that blocks it, affects no delivery and no acknowledgement.
    """

    @broker_errors("connecting")
    def __init__(self, url: str, settings: KombuSettings, answers: Answers | None = None) -> None:
        self.lock = threading.RLock()
        self._answers = answers or Answers()
        if self._answers.is_given_up:
            raise TransportUnavailable(f"{redact(url)} was silent while this process ended")
        self.broken: str | None = None
        self.blocked = False
        self._selector = selectors.DefaultSelector()  # first: the process may open no more files
        self._amqp = _establish(url, settings, self)
        self._transport = self._amqp.transport
        self._socket: socket.socket = self._transport.sock
        # Limits every read and write: otherwise a half-open connection hangs a thread for ever.
        self._socket.settimeout(settings.confirm_timeout.total_seconds())
        self._is_tls = isinstance(self._socket, ssl.SSLSocket)
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._next_tick = 0.0
        self.holds_back: Callable[[], bool] = lambda: False
        """Whether the broker's frames, heartbeats included, stay unread for now."""
        # Until the first tick, a missed heartbeat would not be noticed.
        self.tick()

    @property
    def frame_limit(self) -> int:
        """The agreed maximum size of a frame in bytes."""
        return int(self._amqp.frame_max)

    @property
    def heartbeat(self) -> float:
        """The agreed seconds between heartbeats, or 0."""
        return float(self._amqp.heartbeat or 0)

    @property
    def server_version(self) -> tuple[int, ...]:
        """The broker's version; empty if it is not RabbitMQ."""
        properties = self._amqp.server_properties
        if properties.get("product") != "RabbitMQ":
            return ()
        digits = str(properties.get("version", "")).split("-")[0].split("+")[0].split(".")
        return tuple(int(part) for part in digits if part.isdigit())

    def channel(self) -> Any:
        """Open a channel that does not decode bodies."""
        channel = self._amqp.channel()
        channel.auto_decode = False
        return channel

    def watch(self, wake: WakePipe) -> None:
        """Make *wake* end a :meth:`pump`."""
        self._selector.register(wake, selectors.EVENT_READ)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Note that a caller waits for the broker's answer, so that the wait can be ended."""
        if self.broken is not None:
            yield
            return
        if self._answers.is_given_up:
            raise ConnectionResetError("the broker was silent while this process ended")
        with self._answers.waiting(self._socket.fileno()):
            yield
        self._answers.sign()

    def write(self, frames: bytes) -> None:
        """Write whole frames."""
        self._transport.write(frames)
        self._amqp.bytes_sent += 1  # py-amqp's measure of when a heartbeat is needed

    def pump(self, seconds: float) -> bool:
        """Wait for at most *seconds*, and dispatch received frames; False if none came."""
        if not (self._is_tls and self._socket.pending()):  # type: ignore[attr-defined]  # TLS only
            events = self._selector.select(max(seconds, 0))
            if not any(key.fileobj is self._socket for key, _ in events):
                return False
        chunk = self._read()
        if chunk is None:
            return False
        self._answers.sign()
        # py-amqp reads from this buffer too, while it waits for an answer.
        frames, self._transport._read_buffer = split_frames(self._transport._read_buffer + chunk)
        for frame in frames:
            self._amqp.on_inbound_frame(frame)
        return True

    def tick(self) -> None:
        """Send a due heartbeat; raise if the broker's heartbeats have stopped."""
        if not self.heartbeat:
            return
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + self.heartbeat / 4
            if self.holds_back():
                # The broker's heartbeats wait behind unread frames: they do not count as missed.
                self._amqp.prev_recv = None
            self._amqp.heartbeat_tick()

    def is_alive(self) -> bool:
        """Return whether the connection seems usable, without asking the broker."""
        if self.broken is not None:
            return False
        try:
            self.keep_alive()
        except BROKER_ERRORS as error:
            self.drop(f"{type(error).__name__}: {error}")
            return False
        return True

    def keep_alive(self) -> None:
        """Read received frames (a heartbeat, or the broker's goodbye), and send a heartbeat."""
        while not self.holds_back() and self.pump(0):
            pass
        self.tick()

    def beat(self) -> None:
        """Send and read heartbeats, unless a thread uses the connection: that thread beats too."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            if self.broken is None and not self.is_alive():
                logger.info(
                    "transport lost an idle connection: %s",
                    on_one_line(self.broken),
                    extra={"event": "connection_lost"},
                )
        finally:
            self.lock.release()

    def drop(self, reason: str) -> None:
        """Cut the connection; unacknowledged and unconfirmed messages stay so."""
        if self.broken is None:
            self.broken = reason
            self.blocked = False
            self._selector.close()
            self._transport.close()

    def close(self) -> None:
        """Close the connection in good order if the broker answers within a second."""
        if self.broken is not None:
            return
        if self._answers.is_given_up:
            self.drop("closed")
            return
        try:
            self._socket.settimeout(1.0)
            self._amqp.close()
        except BROKER_ERRORS as error:
            fields = {"event": "close_unanswered"}
            logger.debug("the broker did not answer a close: %s", on_one_line(error), extra=fields)
        self.drop("closed")

    def _read(self) -> bytes | None:
        if not self._is_tls:
            chunk = self._socket.recv(_READ_SIZE)
        else:
            try:
                with self._transport.having_timeout(_TLS_RECORD_WAIT):
                    chunk = self._socket.recv(_READ_SIZE)
            except TimeoutError:
                return None
        if not chunk:
            raise ConnectionResetError("the broker closed the connection")
        return chunk


def _establish(url: str, settings: KombuSettings, owner: AmqpConnection) -> Any:
    """Return a connection to the first broker in *url* (separated by ``;``) that answers."""

    def on_blocked(reason: str) -> None:
        owner.blocked = True
        logger.warning(
            "broker takes no messages: %s", on_one_line(reason), extra={"event": "broker_blocked"}
        )

    def on_unblocked() -> None:
        owner.blocked = False

    failure: Exception | None = None
    link = broker_link(url, settings, redis=False)
    for one in link.urls:
        connection = kombu_connection(
            one,
            transport=_RawTransport,
            ssl=link.amqp(one),
            connect_timeout=settings.connect_timeout.total_seconds(),
            heartbeat=settings.heartbeat.total_seconds(),
            transport_options={
                "frame_handler": raw_frame_handler,
                "on_blocked": on_blocked,
                "on_unblocked": on_unblocked,
            },
        )
        try:
            return connection.transport.establish_connection()
        except BROKER_ERRORS as error:
            failure = error
    raise TransportUnavailable(
        f"cannot connect to {redact(url)}: {type(failure).__name__}: {failure}"
    ) from failure


class WakePipe:
    """Lets a thread end another thread's wait on a socket: readable from ``set`` to ``clear``."""

    @broker_errors("connecting")
    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor for a selector."""
        return self._reader.fileno()

    def set(self) -> None:
        """End the current or next wait; from any thread, and after ``close`` too."""
        with suppress(OSError):  # it is full, so it is readable already; or closed, with no waiter
            self._writer.send(b"\0")

    def wait(self, seconds: float) -> None:
        """Wait until ``set``, or until the time is over; ``clear`` tells which."""
        poll = select.poll()  # select() refuses a process with more than 1,024 open files
        poll.register(self._reader, select.POLLIN)
        poll.poll(max(seconds, 0) * 1_000)

    def clear(self) -> bool:
        """Return whether ``set`` was called since the last time."""
        was_set = False
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                was_set = True
        return was_set

    def close(self) -> None:
        """Free both ends."""
        self._reader.close()
        self._writer.close()


# --- heartbeats for connections whose thread is busy elsewhere: a slow handler, an idle sender ---


class Heartbeats:
    """Keeps the connections of one transport alive while no thread uses them.

    A broker considers a consumer dead if no heartbeat came for an *interval* or two, and redelivers
    the messages that the consumer is still working on. A connection, or a channel of Redis, has a
    ``beat``, until it is ``broken``.
    """

    def __init__(self, interval: timedelta) -> None:
        self._pause = min(interval.total_seconds() / 4, threading.TIMEOUT_MAX)
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Leave the parent's connections to the parent; its thread does not exist here."""
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, connection: Any, interval: float = 0) -> None:
        """Keep *connection* alive; *interval* is what its broker agreed on, if not 0."""
        if not self._pause:
            return
        with self._guard:
            self._pause = min(self._pause, interval / 4 or self._pause)
            self._connections.add(connection)
            if self._thread is None:
                self._stopped = threading.Event()
                self._thread = begin_thread(
                    partial(self._run, self._stopped), "timeoutmgr-heartbeats"
                )

    def beat(self) -> None:
        """Have every connection send a heartbeat."""
        with self._guard:
            connections = [each for each in self._connections if each.broken is None]
        for connection in connections:
            try:
                connection.beat()
            except Exception:
                # The thread must survive unforeseen errors: other connections need heartbeats.
                extra = {"event": "heartbeat_failed"}
                logger.exception("transport could not send a heartbeat", extra=extra)

    def close(self) -> None:
        """Stop until the next connection is added; the owners close the connections."""
        with self._guard:
            thread, self._thread = self._thread, None
            self._stopped.set()
        if thread is not None:
            thread.join()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._pause):
            self.beat()
            with self._guard:
                is_current = self._stopped is stopped
                if is_current and all(one.broken is not None for one in self._connections):
                    self._thread = None  # the next connection starts another
                    return

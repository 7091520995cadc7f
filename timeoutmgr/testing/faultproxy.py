"""A TCP proxy between a client and its database or broker that breaks connections on command.

::

    url = "postgresql+psycopg://postgres@127.0.0.1/test"
    with FaultProxy.before(url) as proxy:
        engine = create_engine(proxy.url(url))
        proxy.lose_reply(containing=b"COMMIT")   # the next commit happens, its answer is lost
        ...
        proxy.heal()

The proxy runs in user space: this host's kernel acknowledges a client's bytes even while the proxy
passes nothing on. A client therefore notices a black hole only by its own time-outs for answers,
never by TCP's (``tcp_user_timeout``, keep-alives). The proxy passes TLS through unchanged, but
then ``containing`` finds nothing.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Self
from urllib.parse import urlsplit

from timeoutmgr.testing.fault_link import BOTH, Cut, Direction, Link, LostReply, Rules
from timeoutmgr.testing.signals import PATIENCE, Signal

__all__ = ["BOTH", "Direction", "FaultProxy"]

_PORTS: Final = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306} | {
    "amqp": 5672,
    "pyamqp": 5672,
    "amqps": 5671,
    "redis": 6379,
    "rediss": 6379,
}


class FaultProxy:
    """A proxy in front of ``host:port``, with its own port; use it as a context manager.

    Any thread can switch faults while connections are open; a fault is in force when the method
    returns. Lasting faults (``slow``, ``throttle``, ``blackhole``, ``refuse``) end with ``heal``;
    faults that fire once (``cut_after``, ``lose_reply``) also end when they fire. *seed* makes the
    jitter of each connection repeatable; ``repr`` shows it.
    """

    def __init__(self, host: str, port: int, *, seed: int | None = None) -> None:
        self.target: Final = (host, port)
        self.seed: Final = random.SystemRandom().getrandbits(32) if seed is None else seed
        self._signal = Signal()
        self._fired = 0
        self._connections = 0
        self._rules = Rules(fired=self._on_fired)
        self._links: dict[asyncio.Task[None], Link | None] = {}
        self._listener: socket.socket | None = None
        self._bugs: list[BaseException] = []
        # Bound, but never listening: this socket reserves the port while connections are refused.
        self._placeholder = _bound(0)
        self.port: Final[int] = self._placeholder.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"faultproxy-{self.port}", daemon=True
        )
        self._thread.start()
        self._do(self._listen)

    @classmethod
    def before(cls, url: str, *, seed: int | None = None) -> Self:
        """Return a proxy in front of the server of *url*; ValueError if *url* names no server."""
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
        if not parts.hostname or port is None:
            raise ValueError(
                f"a proxy needs a URL with a host and a port, got the scheme "
                f"{parts.scheme!r}; write scheme://host:port/..."
            )
        return cls(parts.hostname, port, seed=seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FaultProxy 127.0.0.1:{self.port} before {self.target} seed={self.seed}>"

    def close(self) -> None:
        """Cut all connections and stop; idempotent."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._placeholder.close()
        if self._bugs:
            # A test must not take this failure for a fault that it requested.
            raise RuntimeError(f"{self!r} failed by itself") from self._bugs[0]

    def url(self, original: str) -> str:
        """Return *original* with the host and port of this proxy, otherwise unchanged."""
        parts = urlsplit(original)
        if not parts.hostname:
            raise ValueError(f"a URL of scheme {parts.scheme!r} names no host to stand before")
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    @property
    def connections(self) -> int:
        """Number of clients that have connected so far."""
        return self._connections

    @property
    def fired(self) -> int:
        """How often faults that fire once have fired."""
        return self._fired

    def wait_until_fired(self, count: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until ``fired`` is at least *count*; AssertionError after *timeout* seconds."""
        self._signal.wait_until(
            lambda: self._fired >= count, lambda: f"{count} faults; {self._fired} fired", timeout
        )

    # --- faults that last -----------------------------------------------------------------

    def slow(self, latency: float, jitter: float = 0.0, *directions: Direction) -> None:
        """Delay bytes by *latency* ± up to *jitter* seconds; their order stays the same."""
        if latency < 0 or jitter < 0:
            raise ValueError(f"seconds must not be negative, got {latency} and {jitter}")
        self._alter(directions, latency=latency, jitter=jitter)

    def throttle(self, bytes_per_second: float, *directions: Direction) -> None:
        """Pass on at most *bytes_per_second* on each connection, in each direction."""
        if bytes_per_second <= 0:
            raise ValueError(f"must be positive, got {bytes_per_second}; for none use blackhole()")
        self._alter(directions, bytes_per_second=bytes_per_second)

    def blackhole(self, *directions: Direction) -> None:
        """Pass nothing on, as if packets were dropped; connections stay, and can be opened.

        Bytes sent meanwhile arrive after ``heal``, just as TCP would send them again.
        """
        self._alter(directions, is_hole=True)

    def refuse(self) -> None:
        """Refuse new connections, like a server that is not running; open connections stay."""
        self._do(self._stop_listening)

    def heal(self) -> None:
        """Remove all faults. Connections that were cut or left half-open stay so."""

        def change() -> None:
            self._rules.heal()
            self._listen()

        self._do(change)

    # --- faults that fire once ------------------------------------------------------------

    def cut_after(self, count: int, direction: Direction) -> None:
        """Cut the first connection over which *count* more bytes have gone.

        Exactly *count* bytes arrive; then both ends see that the connection is closed.
        """
        if count < 0:
            raise ValueError(f"must not be negative, got {count}")

        def change() -> None:
            for link in self._open():
                link.count_from_here()
            self._rules.cut = Cut(direction, count)

        self._change(change)

    def lose_reply(self, nth: int = 1, *, containing: bytes = b"", then_cut: bool = True) -> None:
        """Deliver the *nth* write from now on to the server, and lose the answer.

        The client cannot know the effect of the write: "commit unknown". A write is a piece of
        bytes as the proxy receives it; only writes that contain *containing* (``b"COMMIT"``)
        count. Then the client's connection is cut; with ``then_cut=False`` it stays open, but
        silent. The server has answered once ``fired`` has counted the fault.
        """
        if nth < 1:
            raise ValueError(f"must be at least 1, got {nth}")

        def change() -> None:
            self._rules.lost_reply = LostReply(nth, containing, then_cut)

        self._change(change)

    # --- faults that happen immediately ---------------------------------------------------

    def reset(self) -> None:
        """End all open connections with a RST at both ends."""
        self._do_each(Link.reset)

    def half_open(self, direction: Direction = Direction.REQUESTS) -> None:
        """Lose one end of all open connections unnoticed by the other end.

        REQUESTS: the server's end is gone; the client's bytes are accepted and never answered.
        ANSWERS: the client's end is gone, and the server keeps its state for that client.
        """
        self._do_each(lambda link: link.leave(direction))

    # --- in the proxy's own thread --------------------------------------------------------

    def _alter(self, directions: Sequence[Direction], **faults: Any) -> None:
        """Add *faults* to *directions*; to both if none are given."""

        def change() -> None:
            for direction in directions or BOTH:
                self._rules.ways[direction] = replace(self._rules.ways[direction], **faults)

        self._change(change)

    def _change(self, change: Callable[[], object]) -> None:
        def changed() -> None:
            change()
            self._rules.change()

        self._do(changed)

    def _do(self, work: Callable[[], object]) -> None:
        async def done() -> None:
            work()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE)

    def _do_each(self, work: Callable[[Link], object]) -> None:
        self._do(lambda: [work(link) for link in self._open()])

    def _open(self) -> list[Link]:
        return [link for link in self._links.values() if link is not None]

    def _on_fired(self) -> None:
        with self._signal.change():
            self._fired += 1

    def _listen(self) -> None:
        if self._listener is not None:
            return
        self._listener = _bound(self.port)
        self._listener.listen(128)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._accept(self._listener)  # connections that the kernel has already accepted
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                return
            client.setblocking(False)
            self._connections += 1
            task = self._loop.create_task(self._serve(client, self._connections))
            self._links[task] = None
            task.add_done_callback(self._forget)

    async def _serve(self, client: socket.socket, number: int) -> None:
        server = None
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = await self._connected()
            link = Link(client, server, self._rules, f"{self.seed} {number}")
            task = asyncio.current_task()
            assert task is not None
            self._links[task] = link
            await link.run()
        except OSError:
            return  # the server is down; the client learns this when we close its connection
        finally:
            client.close()
            if server is not None:
                server.close()

    async def _connected(self) -> socket.socket:
        host, port = self.target
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        server = socket.socket(family, kind, protocol)
        try:
            server.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(server, address)
        except BaseException:
            server.close()
            raise
        return server

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task, None)
        bug = None if task.cancelled() else task.exception()
        if bug is not None:
            self._bugs.append(bug)

    async def _shut_down(self) -> None:
        self._stop_listening()
        tasks = list(self._links)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Two sockets share the port: a bound socket reserves it; another socket listens at times.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setblocking(False)
    made.bind(("127.0.0.1", port))
    return made

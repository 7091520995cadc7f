"""A TCP proxy that can delay a server's answers, cut its connections, or speak TLS for it."""

from __future__ import annotations

import socket
import ssl
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Stands before *server* on a port of its own; ``connections`` counts the clients."""

    def __init__(self, server: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self._server = server
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._answers_flow = threading.Event()
        self._answers_flow.set()
        self._allowed: int | None = None
        self._sent = threading.Semaphore(0)
        self._server_left = threading.Event()
        self._guard = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._answers_flow.set()
        for thread in self._threads:
            thread.join(10)

    def stop_answers(self) -> None:
        """Let no more answers of the server through."""
        self._answers_flow.clear()

    def cut_after(self, size: int) -> None:
        """Cut all connections once clients have sent *size* more bytes."""
        self._allowed = size

    def let_through(self) -> None:
        """Stop delaying answers and cutting connections."""
        self._allowed = None
        self._answers_flow.set()

    def wait_for_writes(self, count: int) -> None:
        """Return after clients have written *count* more times (a lone heartbeat is a write)."""
        while self._sent.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self._sent.acquire(timeout=30)

    def wait_for_server_to_leave(self) -> None:
        """Return once the server has closed a connection."""
        assert self._server_left.wait(30)

    def cut(self) -> None:
        """Cut all connections."""
        with self._guard:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it is cut already

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # any callable
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._tls is not None:
                try:
                    client = self._tls.wrap_socket(client, server_side=True)
                except OSError:
                    client.close()  # it did not like our certificate
                    continue
            server = socket.create_connection(self._server)
            self.connections += 1
            with self._guard:
                self._sockets += (client, server)
            both_done = threading.Barrier(2)
            self._start(self._forward, client, server, True, both_done)
            self._start(self._forward, server, client, False, both_done)

    def _forward(
        self,
        source: socket.socket,
        target: socket.socket,
        from_client: bool,
        both_done: threading.Barrier,
    ) -> None:
        try:
            while piece := source.recv(4096):
                if not from_client:
                    self._answers_flow.wait()
                elif self._allowed is not None:
                    self._allowed -= len(piece)
                    if self._allowed < 0:
                        self.cut()
                        break
                target.sendall(piece)
                if from_client:
                    self._sent.release()
        except OSError:
            pass  # cut, or closed at the other end
        finally:
            for one in (source, target):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
            if not from_client:
                self._server_left.set()  # the client can see it by now
            both_done.wait(10)
            source.close()

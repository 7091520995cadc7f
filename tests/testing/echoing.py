"""A server that echoes its input, and a client of it."""

from __future__ import annotations

import socket
import threading
from typing import Self


class Echo:
    """A server that answers each byte with itself, and notes how its connections ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = bytearray()
        self.ends: list[str] = []
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with one:
                if one.fileno() != -1:
                    one.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            self._threads.append(threading.Thread(target=self._answer, args=(client,)))
            self._threads[-1].start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(65_536):
                    self.received += data
                    client.sendall(data)
                self.ends.append("closed")
            except OSError as error:
                self.ends.append(type(error).__name__)


def ask(client: socket.socket, data: bytes = b"ping") -> bytes:
    client.sendall(data)
    return read(client, len(data))


def read(client: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count and (piece := client.recv(65_536)):
        got += piece
    return bytes(got)


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.15)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False

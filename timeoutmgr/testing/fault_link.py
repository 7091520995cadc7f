"""One connection through a fault proxy: four tasks, two sockets, bounded buffers."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

# --- the faults in force; only the proxy's own thread reads and changes them ------------------

_SLICES: Final = 20
"""Pieces per second of a throttled stream: enough to look like a slow line."""


class Direction(Enum):
    """Direction in which bytes go."""

    REQUESTS = "client to server"
    ANSWERS = "server to client"


BOTH: Final = (Direction.REQUESTS, Direction.ANSWERS)


@dataclass(slots=True)
class Way:
    """Faults that affect the bytes of one direction."""

    latency: float = 0.0
    jitter: float = 0.0
    bytes_per_second: float | None = None
    is_hole: bool = False

    def delay(self, chance: random.Random) -> float:
        """Return the delay of the next piece in seconds."""
        if not self.latency and not self.jitter:
            return 0.0
        return max(0.0, self.latency + chance.uniform(-self.jitter, self.jitter))

    def slices(self, size: int) -> int:
        """Return how many of *size* bytes to send in one piece."""
        if self.bytes_per_second is None:
            return size
        return max(1, min(size, int(self.bytes_per_second / _SLICES)))


@dataclass(slots=True)
class Cut:
    """Cut the first connection over which *count* bytes have gone; fires once."""

    direction: Direction
    count: int


@dataclass(slots=True)
class LostReply:
    """Lose the reply to the *nth* write that contains *containing*; fires once."""

    nth: int
    containing: bytes
    then_cut: bool
    is_lost: bool = False


def _ways() -> dict[Direction, Way]:
    return {direction: Way() for direction in Direction}


@dataclass(slots=True)
class Rules:
    """The faults in force; links can wait for a change of them."""

    ways: dict[Direction, Way] = field(default_factory=_ways)
    cut: Cut | None = None
    lost_reply: LostReply | None = None
    fired: Callable[[], None] = lambda: None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake all waiting links; to be called after each change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def heal(self) -> None:
        """Remove all faults."""
        self.ways = _ways()
        self.cut = None
        self.lost_reply = None
        self.change()

    async def flowing(self, direction: Direction) -> None:
        """Wait while a hole swallows the bytes in *direction*."""
        while self.ways[direction].is_hole:
            await self._changed.wait()

    async def due(self, direction: Direction, at: float) -> None:
        """Wait until *at* by the loop's clock, or until the delay is removed."""
        loop = asyncio.get_running_loop()
        while (remaining := at - loop.time()) > 0:
            way = self.ways[direction]
            if not way.latency and not way.jitter:
                return
            await self._change_or(remaining)

    async def paced(self, direction: Direction, size: int) -> None:
        """Wait as long as a throttled stream needs for *size* bytes."""
        rate = self.ways[direction].bytes_per_second
        if rate is not None:
            await self._change_or(size / rate)

    async def _change_or(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)


PIECE: Final = 16 * 1024
_PIECES: Final = 64
"""Maximum pieces (together 1 MiB) on the way in one direction; then the sender has to wait."""
_RESET: Final = struct.pack("ii", 1, 0)


class _Piece(NamedTuple):
    due: float
    data: bytes
    is_marked: bool
    """Whether the reply to the piece is to be lost."""


class _End(Enum):
    """How a link ends."""

    CLOSED = auto()
    RESET = auto()
    SERVER_LOST = auto()
    CLIENT_LOST = auto()
    REPLY_LOST = auto()


class Link:
    """A client's connection, and the proxy's connection to the server for it."""

    def __init__(
        self, client: socket.socket, server: socket.socket, rules: Rules, seed: str
    ) -> None:
        self._client = client
        self._server = server
        self._rules = rules
        self._chances: Final = {way: random.Random(f"{seed} {way.value}") for way in Direction}
        self._passed: Final = dict.fromkeys(Direction, 0)
        self._losing: LostReply | None = None
        self._request_is_out = False
        self._tail = b""
        self._running = 0
        self._end: asyncio.Future[_End] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Pass bytes on until both sides have finished, or until a fault ends the link."""
        tasks: list[asyncio.Task[None]] = []
        try:
            for direction in Direction:
                pieces: asyncio.Queue[_Piece] = asyncio.Queue(_PIECES)
                source, target = self._sides(direction)
                for part in (
                    self._read(direction, source, pieces),
                    self._write(direction, target, pieces),
                ):
                    tasks.append(asyncio.ensure_future(self._watched(part)))
            self._running = len(tasks)
            end = await self._end
            # Cancel first: the number of a closed socket is reused while a task waits for it.
            await _cancel(tasks)
            await self._finish(end)
        finally:
            await _cancel(tasks)
            self._client.close()
            self._server.close()

    def reset(self) -> None:
        """End the link with a RST to both sides."""
        if self._end.done():
            _on_close_reset(self._client, self._server)
        self._ended(_End.RESET)
        self._stop.set()

    def leave(self, direction: Direction) -> None:
        """Reset one side's connection, and be silent to the other side.

        REQUESTS resets the server's side, and the client notices nothing; ANSWERS the reverse.
        """
        is_server = direction is Direction.REQUESTS
        self._ended(_End.SERVER_LOST if is_server else _End.CLIENT_LOST)

    def count_from_here(self) -> None:
        """Count the bytes of a limit from now on."""
        self._passed.update(dict.fromkeys(Direction, 0))

    def _ended(self, end: _End) -> None:
        if not self._end.done():
            self._end.set_result(end)

    def _sides(self, direction: Direction) -> tuple[socket.socket, socket.socket]:
        if direction is Direction.REQUESTS:
            return self._client, self._server
        return self._server, self._client

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except OSError:
            self._ended(_End.RESET)  # one side reset or left: reset the other side, too
        self._running -= 1
        if not self._running:
            self._ended(_End.CLOSED)

    async def _read(
        self, direction: Direction, source: socket.socket, pieces: asyncio.Queue[_Piece]
    ) -> None:
        loop = asyncio.get_running_loop()
        due = 0.0
        while True:
            await self._rules.flowing(direction)
            data = await loop.sock_recv(source, PIECE)
            is_marked = direction is Direction.REQUESTS and self._is_to_lose(data)
            if direction is Direction.ANSWERS and self._losing is not None and data:
                self._lose(self._losing)
                continue
            delay = self._rules.ways[direction].delay(self._chances[direction])
            due = max(due, loop.time() + delay)  # jitter never changes the order
            await pieces.put(_Piece(due, data, is_marked))
            if not data:
                return

    async def _write(
        self, direction: Direction, target: socket.socket, pieces: asyncio.Queue[_Piece]
    ) -> None:
        while True:
            piece = await pieces.get()
            await self._rules.due(direction, piece.due)
            await self._rules.flowing(direction)
            if not piece.data:
                target.shutdown(socket.SHUT_WR)
                return
            await self._send(direction, target, piece.data)
            if piece.is_marked:
                self._request_is_out = True

    async def _send(self, direction: Direction, target: socket.socket, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        while data:
            size = self._rules.ways[direction].slices(len(data))
            cut = self._rules.cut
            is_last = False
            if cut is not None and cut.direction is direction:
                left = max(0, cut.count - self._passed[direction])
                is_last = left <= size
                size = min(size, left)
            await self._rules.paced(direction, size)
            await self._rules.flowing(direction)
            await loop.sock_sendall(target, data[:size])
            self._passed[direction] += size
            data = data[size:]
            if is_last and self._rules.cut is cut:
                self._rules.cut = None
                self._rules.fired()
                self._ended(_End.CLOSED)
                await self._stop.wait()  # nothing more passes: run() cancels this

    def _is_to_lose(self, data: bytes) -> bool:
        """Return whether the reply to the write *data* is to be lost."""
        wanted = self._rules.lost_reply
        if wanted is None or not data:
            return False
        seen = self._tail + data
        self._tail = seen[len(seen) - max(0, len(wanted.containing) - 1) :]
        if wanted.containing not in seen:
            return False
        self._tail = b""
        wanted.nth -= 1
        if wanted.nth > 0:
            return False
        self._rules.lost_reply = None
        self._losing = wanted
        return True

    def _lose(self, wanted: LostReply) -> None:
        """Drop an answer; the first answer after the request ends the link, if so wanted."""
        if not self._request_is_out or wanted.is_lost:
            return
        wanted.is_lost = True
        self._rules.fired()
        if wanted.then_cut:
            self._ended(_End.REPLY_LOST)

    async def _finish(self, end: _End) -> None:
        if end is _End.RESET:
            _on_close_reset(self._client, self._server)
        elif end is _End.SERVER_LOST:
            _on_close_reset(self._server)
            self._server.close()
            await self._drain(self._client)
        elif end is _End.CLIENT_LOST:
            _on_close_reset(self._client)
            self._client.close()
            await self._drain(self._server)
        elif end is _End.REPLY_LOST:
            # Send a FIN: a RST could overtake bytes that the server has not read yet.
            self._server.shutdown(socket.SHUT_WR)
            self._client.close()
            await self._drain(self._server)

    async def _drain(self, kept: socket.socket) -> None:
        """Read and discard bytes, and answer nothing, until *kept* or the link ends."""
        draining = asyncio.ensure_future(_read_away(kept))
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([draining, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel([draining, stopped])


async def _read_away(kept: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):  # reset: that is an end too
        while await loop.sock_recv(kept, PIECE):
            continue


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _on_close_reset(*sockets: socket.socket) -> None:
    for one in sockets:
        if one.fileno() != -1:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

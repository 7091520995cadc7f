"""One connection through a fault proxy: four tasks, two sockets, bounded buffers."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Final

from timeoutmgr.testing.fault_rules import Direction, Rules

PIECE: Final = 16 * 1024
_PIECES: Final = 64
"""How much may be on the way in one direction: a megabyte, then the sender has to wait."""
_RESET: Final = struct.pack("ii", 1, 0)

Piece = tuple[float, bytes]


class Link:
    """A client's connection and ours to the server on its behalf."""

    def __init__(
        self, client: socket.socket, server: socket.socket, rules: Rules, chances: list[str]
    ) -> None:
        self._client = client
        self._server = server
        self._rules = rules
        self._chances: Final = dict(zip(Direction, map(random.Random, chances), strict=True))
        self._passed: Final = dict.fromkeys(Direction, 0)
        self._limit_from: Final = dict.fromkeys(Direction, 0)
        self._tail = b""
        self._is_losing = False
        self._then_cut = True
        self._request_is_out = False
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Carry bytes until both ends have finished or the link was ended."""
        self._tasks = [
            asyncio.ensure_future(task)
            for direction in Direction
            for task in self._carry(direction)
        ]
        ended = asyncio.ensure_future(self._ended.wait())
        everything = asyncio.gather(*self._tasks)
        try:
            await asyncio.wait([ended, everything], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # What failed half-way was an end that reset or left: the other one is told as much.
            failed = everything.done() and not everything.cancelled() and everything.exception()
            if failed:
                self.reset()
            ended.cancel()
            everything.cancel()
            await asyncio.gather(everything, *self._tasks, ended, return_exceptions=True)
            self._client.close()
            self._server.close()

    def reset(self) -> None:
        """Tell both ends with a RST that it is over."""
        for one in (self._client, self._server):
            self._make_reset(one)
        self._ended.set()

    def close(self) -> None:
        """End it in the ordinary way: both ends see a FIN."""
        self._ended.set()

    def leave(self, direction: Direction) -> None:
        """Be gone for one end, and silent for the other.

        REQUESTS: the server is gone, and the client is told nothing; ANSWERS the other way round.
        """
        gone, kept = self._server, self._client
        if direction is Direction.ANSWERS:
            gone, kept = kept, gone
        for task in self._tasks:
            task.cancel()
        self._make_reset(gone)
        gone.close()
        self._tasks.append(asyncio.ensure_future(self._drain(kept)))

    def count_from_here(self) -> None:
        """Let a limit of bytes count what comes from now on."""
        self._limit_from.update(self._passed)

    def _carry(self, direction: Direction) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
        source, target = self._client, self._server
        if direction is Direction.ANSWERS:
            source, target = target, source
        pieces: asyncio.Queue[Piece] = asyncio.Queue(_PIECES)
        return (
            asyncio.ensure_future(self._read(direction, source, pieces)),
            asyncio.ensure_future(self._write(direction, target, pieces)),
        )

    async def _read(
        self, direction: Direction, source: socket.socket, pieces: asyncio.Queue[Piece]
    ) -> None:
        loop = asyncio.get_running_loop()
        due = 0.0
        while True:
            await self._rules.flowing(direction)
            piece = await loop.sock_recv(source, PIECE)
            if direction is Direction.REQUESTS:
                self._look_at_request(piece)
            elif self._is_losing and piece:
                if self._request_is_out:
                    await self._lose_reply()
                continue
            delay = self._rules.ways[direction].delay(self._chances[direction])
            due = max(due, loop.time() + delay)  # jitter never changes the order
            await pieces.put((due, piece))
            if not piece:
                return

    async def _write(
        self, direction: Direction, target: socket.socket, pieces: asyncio.Queue[Piece]
    ) -> None:
        while True:
            due, piece = await pieces.get()
            await self._rules.due(direction, due)
            await self._rules.flowing(direction)
            if not piece:
                target.shutdown(socket.SHUT_WR)
                return
            await self._send(direction, target, piece)
            if direction is Direction.REQUESTS and self._is_losing and pieces.empty():
                self._request_is_out = True

    async def _send(self, direction: Direction, target: socket.socket, piece: bytes) -> None:
        loop = asyncio.get_running_loop()
        while piece:
            size = self._rules.ways[direction].slices(len(piece))
            cut = self._rules.cut
            left = None
            if cut is not None and cut.direction is direction:
                left = cut.count - (self._passed[direction] - self._limit_from[direction])
                size = max(0, min(size, left))
            await self._rules.paced(direction, size)
            await self._rules.flowing(direction)
            await loop.sock_sendall(target, piece[:size])
            self._passed[direction] += size
            piece = piece[size:]
            if left is not None and size == left:
                self._rules.cut = None
                self._rules.fired()
                self.close()
                await asyncio.Event().wait()  # nothing more passes; run() cancels this

    def _look_at_request(self, piece: bytes) -> None:
        wanted = self._rules.lost_reply
        if wanted is None or not piece:
            return
        seen = self._tail + piece
        self._tail = seen[len(seen) - max(0, len(wanted.containing) - 1) :]
        if wanted.containing not in seen:
            return
        self._tail = b""
        wanted.nth -= 1
        if wanted.nth == 0:
            self._rules.lost_reply = None
            self._is_losing, self._then_cut = True, wanted.then_cut
            self._request_is_out = False

    async def _lose_reply(self) -> None:
        """The server has done what it was asked; nobody is told."""
        if not self._request_is_out:
            return
        self._rules.fired()
        if not self._then_cut:
            # Stays silent: what else the server says is lost as well.
            self._request_is_out = False
            return
        # A FIN, and not a RST, which could overtake what the server has not read yet.
        self._server.shutdown(socket.SHUT_WR)
        self._client.close()
        await self._drain(self._server)
        self.close()

    async def _drain(self, kept: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while await loop.sock_recv(kept, PIECE):
                pass
        except OSError:
            pass  # it noticed by itself, which ends this as well
        self.close()

    @staticmethod
    def _make_reset(one: socket.socket) -> None:
        if one.fileno() != -1:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

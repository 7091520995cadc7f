"""Which faults a proxy has now; read and changed in the proxy's own thread alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

_SLICES: Final = 20
"""Pieces a second of a throttled stream: small enough to look like a slow line."""


class Direction(Enum):
    """Which way bytes go."""

    REQUESTS = "client to server"
    ANSWERS = "server to client"


BOTH: Final = (Direction.REQUESTS, Direction.ANSWERS)


@dataclass(slots=True)
class Way:
    """Faults that bytes of one direction meet."""

    latency: float = 0.0
    jitter: float = 0.0
    bytes_per_second: float | None = None
    is_hole: bool = False

    def delay(self, chance: random.Random) -> float:
        """Return how long the next piece takes, in seconds."""
        if not self.latency and not self.jitter:
            return 0.0
        return max(0.0, self.latency + chance.uniform(-self.jitter, self.jitter))

    def slices(self, size: int) -> int:
        """Return how many bytes to send at once of *size*."""
        if self.bytes_per_second is None:
            return size
        return max(1, min(size, int(self.bytes_per_second / _SLICES)))


@dataclass(slots=True)
class Cut:
    """Cut the connection over which *count* bytes have gone; fires once."""

    direction: Direction
    count: int


@dataclass(slots=True)
class LostReply:
    """Lose the reply of the *nth* write that has *containing* in it; fires once."""

    nth: int
    containing: bytes
    then_cut: bool
    is_lost: bool = False


def _ways() -> dict[Direction, Way]:
    return {direction: Way() for direction in Direction}


@dataclass(slots=True)
class Rules:
    """The faults in force, and how links wait for a change of them."""

    ways: dict[Direction, Way] = field(default_factory=_ways)
    cut: Cut | None = None
    lost_reply: LostReply | None = None
    fired: Callable[[], None] = lambda: None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake all that wait; call it after each change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def heal(self) -> None:
        """Take all faults away."""
        self.ways = _ways()
        self.cut = None
        self.lost_reply = None
        self.change()

    async def flowing(self, direction: Direction) -> None:
        """Return once nothing swallows the bytes in *direction*."""
        while self.ways[direction].is_hole:
            await self._changed.wait()

    async def due(self, direction: Direction, at: float) -> None:
        """Return at *at* by the loop's clock, or when that delay is taken away."""
        loop = asyncio.get_running_loop()
        while (remaining := at - loop.time()) > 0:
            way = self.ways[direction]
            if not way.latency and not way.jitter:
                return
            await self._change_or(remaining)

    async def paced(self, direction: Direction, size: int) -> None:
        """Return when *size* bytes have had the time that they need."""
        rate = self.ways[direction].bytes_per_second
        if rate is not None:
            await self._change_or(size / rate)

    async def _change_or(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

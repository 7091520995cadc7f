"""The event streams that browsers have open."""

from typing import Final

import anyio

TICK: Final = 2.0
"""Seconds between two checks of the readings."""


class OpenStreams:
    """The open streams, so that a stopping server need not wait for them."""

    def __init__(self) -> None:
        self._pauses: set[anyio.Event] = set()
        self.are_ended = False

    async def pause(self) -> None:
        """Wait until the next tick, or until the server stops."""
        ended = anyio.Event()
        self._pauses.add(ended)
        try:
            with anyio.move_on_after(TICK):
                await ended.wait()
        finally:
            self._pauses.discard(ended)

    def end(self) -> None:
        """End all streams; to be called in the server's event loop."""
        self.are_ended = True
        for each in self._pauses:
            each.set()

"""A coroutine handler that a pump awaits: one message after the other, in its transaction."""

import threading
from typing import Final

from timeoutmgr.contracts import Clock
from timeoutmgr.endpoint.async_context import AsyncHandler, AsyncHandlerContext
from timeoutmgr.endpoint.coroutines import HandlerCoroutines
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.endpoint.thread_calls import SERVING, ThreadCalls
from timeoutmgr.message.instants import Micros
from timeoutmgr.sender.composer import DelayClock

_FRESH_FOR: Final = 1.0
"""Seconds for which a reading of the clock beside the queues is carried on by the host's own."""


class CarriedClock:
    """The clock beside the queues, without a call to its server while a coroutine runs.

    ``read`` asks the server, at most once a second; ``now`` adds the seconds of the monotonic
    clock since the question. A message is late by at most the time of that answer, never early.
    """

    def __init__(self, read: DelayClock, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._reading: Micros | None = None

    def read(self) -> None:
        """Ask the server for its time, unless it was asked a moment ago; not on the loop."""
        with self._lock:
            before = self._clock.monotonic()
            if self._asked is not None and before - self._asked < _FRESH_FOR:
                return
            self._reading, self._asked = self._read(), before

    def now(self) -> Micros | None:
        """Return the time of that clock; None where only the host's counts."""
        reading, asked = self._reading, self._asked
        if reading is None or asked is None:
            return None
        return reading + int((self._clock.monotonic() - asked) * 1_000_000) + 1


class AwaitedHandler:
    """Calls a coroutine handler as if it was a plain function.

    The calling thread waits until the coroutine has ended, and serves its session meanwhile.
    """

    def __init__(
        self, handler: AsyncHandler, coroutines: HandlerCoroutines, clock: CarriedClock
    ) -> None:
        self._handler = handler
        self._coroutines = coroutines
        self._clock = clock

    def __call__(self, message: object, context: HandlerContext) -> None:
        """Run the handler on the loop to its end; raise its error."""
        self._clock.read()
        calls = ThreadCalls(self._coroutines.loop)
        view = AsyncHandlerContext(context, self._clock.now)

        async def run() -> None:
            SERVING.set(calls)
            await self._handler(message, view)

        self._coroutines.begin(run, calls.end)
        calls.serve()

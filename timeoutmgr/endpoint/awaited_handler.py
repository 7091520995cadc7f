"""A coroutine handler that a pump awaits: one message after the other, in its transaction."""

from timeoutmgr.clock import CarriedClock
from timeoutmgr.endpoint.async_context import AsyncHandler, AsyncHandlerContext
from timeoutmgr.endpoint.coroutines import HandlerCoroutines
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.endpoint.thread_calls import SERVING, ThreadCalls


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
        self._clock.refresh()
        calls = ThreadCalls(self._coroutines.loop)
        view = AsyncHandlerContext(context, self._clock.carried)

        async def run() -> None:
            SERVING.set(calls)
            await self._handler(message, view)

        self._coroutines.begin(run, calls.end)
        calls.serve()

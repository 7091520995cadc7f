"""Coroutine handlers that a pump runs one message after the other, in its transaction."""

from dataclasses import dataclass

from timeoutmgr.clock import CarriedClock
from timeoutmgr.endpoint.async_context import AsyncHandler, AsyncHandlerContext
from timeoutmgr.endpoint.coroutines import HandlerCoroutines
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.endpoint.thread_calls import SERVING, ThreadCalls


@dataclass(frozen=True, slots=True)
class AwaitedHandler:
    """Calls a coroutine handler as if it were a plain function.

    The calling thread waits for the end of the coroutine, and executes its statements meanwhile.
    """

    handler: AsyncHandler
    coroutines: HandlerCoroutines
    clock: CarriedClock

    def __call__(self, message: object, context: HandlerContext) -> None:
        """Run the handler on the loop until it ends; raise its error."""
        self.clock.refresh()
        calls = ThreadCalls(self.coroutines.loop)
        view = AsyncHandlerContext(context, self.clock.carried)

        async def run() -> None:
            SERVING.set(calls)
            await self.handler(message, view)

        self.coroutines.begin(run, calls.end)
        calls.serve()

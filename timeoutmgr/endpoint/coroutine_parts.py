"""The parts of an endpoint that has coroutine handlers."""

from collections.abc import Sequence
from typing import Final, cast

from timeoutmgr.clock import CarriedClock
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.contracts.callables import is_coroutine_function
from timeoutmgr.endpoint.async_context import (
    AnyHandler,
    AsyncHandler,
    AsyncHandlerContext,
    AsyncHandlerMiddleware,
)
from timeoutmgr.endpoint.awaited_handler import AwaitedHandler
from timeoutmgr.endpoint.concurrent_handlers import ConcurrentHandlerStep, WorkAtOnce, await_each
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.endpoint.coroutines import HandlerCoroutines
from timeoutmgr.endpoint.handlers import Handler, HandlerStep
from timeoutmgr.endpoint.middleware import await_through
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.sender.sender import Sender
from timeoutmgr.transport.in_flight import ConcurrentHandling, Slots
from timeoutmgr.transport.work import ATOMIC


class CoroutineParts:
    """Decides which coroutine handlers run concurrently, and which sequentially.

    The messages of a type are handled concurrently if all its handlers are coroutine functions, and
    none of them uses the transaction that settles the message: the mode has no such transaction, or
    they were registered with ``session=False``. In mode ``none`` no type is: a crash there loses
    the message being handled. With plain middleware no type is: a plain function has to wait for
    the handlers that it wraps. Middleware of coroutine functions becomes a part of the handlers.
    """

    def __init__(self, settings: EndpointSettings, mode: TransactionMode, sender: Sender) -> None:
        self._settings = settings
        self._mode = mode
        self.coroutines: Final = HandlerCoroutines()
        self._clock = CarriedClock(sender.now, settings.clock)
        begin_anew_after_fork(self._clock)
        self._handlers = (
            _in_middleware(settings) if settings.awaits_middleware else settings.handlers
        )

    @property
    def handlers(self) -> dict[str, tuple[Handler, ...]]:
        """The handlers by message type, as functions that return when the handling is done."""
        return {
            kind: tuple(self._as_function(handler) for handler in found)
            for kind, found in self._handlers.items()
        }

    def concurrent(self, step: HandlerStep) -> ConcurrentHandling | None:
        """Return the step for concurrent handlers; None if no message type has any."""
        settings = self._settings
        at_once = {
            kind: cast("Sequence[AsyncHandler]", found)
            for kind, found in self._handlers.items()
            if self._runs_at_once(kind, found)
        }
        if not at_once:
            return None
        work = WorkAtOnce(self._clock, is_atomic=self._mode in ATOMIC)
        return ConcurrentHandling(
            step=ConcurrentHandlerStep(step, at_once, self.coroutines, work),
            most=settings.async_concurrency,
            slots=Slots(settings.async_concurrency),
            pumps=settings.concurrency,
            is_alone=len(at_once) == len(settings.handlers),
        )

    def _runs_at_once(self, kind: str, found: Sequence[AnyHandler]) -> bool:
        if self._mode is TransactionMode.NONE:
            return False
        if self._settings.middleware and not self._settings.awaits_middleware:
            return False
        if not all(map(is_coroutine_function, found)):
            return False
        return self._mode not in ATOMIC or kind in self._settings.without_session

    def _as_function(self, handler: AnyHandler) -> Handler:
        if not is_coroutine_function(handler):
            return cast(Handler, handler)
        return AwaitedHandler(cast(AsyncHandler, handler), self.coroutines, self._clock)


def _in_middleware(settings: EndpointSettings) -> dict[str, tuple[AnyHandler, ...]]:
    """Return one coroutine handler for each type: its handlers, wrapped in the middleware."""
    middleware = cast("Sequence[AsyncHandlerMiddleware]", settings.middleware)
    return {
        kind: (_around(middleware, cast("Sequence[AsyncHandler]", found)),)
        for kind, found in settings.handlers.items()
    }


def _around(
    middleware: Sequence[AsyncHandlerMiddleware], handlers: Sequence[AsyncHandler]
) -> AsyncHandler:
    async def handle(message: object, context: AsyncHandlerContext) -> None:
        await await_through(middleware, context, lambda: await_each(handlers, message, context))

    return handle

"""Middleware: functions that a program wraps around its handlers."""

import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from timeoutmgr.contracts.callables import unrun
from timeoutmgr.errors import HandlerFailed
from timeoutmgr.resilience.after_fork import ChildEnds

logger = logging.getLogger(__name__)

CallNext: TypeAlias = Callable[[], None]
"""Calls the next middleware; in the last middleware, calls the handlers of the message."""
AsyncCallNext: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""The same for coroutine functions; its call is awaited."""


class NamesMessage(Protocol):
    """A context that names its message for the log."""

    @property
    def message_id(self) -> str:
        """The id of the message."""
        ...


Context = TypeVar("Context", bound=NamesMessage)


def run_through(
    middleware: Sequence[Callable[[Context, CallNext], None]], context: Context, handle: CallNext
) -> None:
    """Call *middleware* around *handle*; the first is the outermost. Errors propagate."""
    if not middleware:
        handle()
        return
    first, *inner = middleware
    call_next = _CallOnce(first, lambda: run_through(inner, context, handle))
    with call_next.child_ends:
        left = unrun(first(context, call_next))
    if left is not None:
        raise HandlerFailed(
            TypeError(f"middleware {first!r:.80} returned a {left}, which the endpoint cannot run")
        )
    if not call_next.was_called:
        _log_skipped(first, context)


async def await_through(
    middleware: Sequence[Callable[[Context, AsyncCallNext], Coroutine[Any, Any, None]]],
    context: Context,
    handle: AsyncCallNext,
) -> None:
    """Await *middleware* around *handle*, as ``run_through`` does for plain functions.

    A middleware that returns before its ``call_next`` has ended fails the message: otherwise its
    handlers would still run after the message was settled.
    """
    if not middleware:
        await handle()
        return
    first, *inner = middleware
    call_next = _AwaitOnce(first, lambda: await_through(inner, context, handle))
    try:
        with call_next.child_ends:
            await first(context, call_next)
    finally:
        call_next.close()
    if not call_next.was_called:
        _log_skipped(first, context)
    elif not call_next.has_ended:
        raise HandlerFailed(
            RuntimeError(
                f"middleware {first!r:.80} did not await its call_next to the end; write "
                "await call_next()"
            )
        )


def _log_skipped(middleware: object, context: NamesMessage) -> None:
    logger.debug(
        "middleware %.80r skips the handlers of message %.80r",
        middleware,
        context.message_id,
        extra={"event": "handlers_skipped", "message_id": context.message_id[:80]},
    )


class _Once:
    """A ``call_next``, of which a second call would repeat the effects of the handlers."""

    def __init__(self, middleware: object) -> None:
        self._middleware = middleware
        self.child_ends: Final = ChildEnds()
        self.was_called = False

    def _begin(self) -> None:
        if self.was_called:
            raise HandlerFailed(
                RuntimeError(
                    f"middleware {self._middleware!r:.80} called call_next twice; call it once, "
                    "and raise to have the message tried again"
                )
            )
        self.was_called = True


class _CallOnce(_Once):
    """The ``call_next`` of a plain function."""

    def __init__(self, middleware: object, rest: CallNext) -> None:
        super().__init__(middleware)
        self._rest = rest

    def __call__(self) -> None:
        self._begin()
        with self.child_ends:
            self._rest()


class _AwaitOnce(_Once):
    """The ``call_next`` of a coroutine function."""

    def __init__(self, middleware: object, rest: AsyncCallNext) -> None:
        super().__init__(middleware)
        self._rest = rest
        self._made: Coroutine[Any, Any, None] | None = None
        self.has_ended = False

    def __call__(self) -> Coroutine[Any, Any, None]:
        self._begin()
        self._made = self._run()
        return self._made

    async def _run(self) -> None:
        try:
            with self.child_ends:
                await self._rest()
        finally:
            self.has_ended = True

    def close(self) -> None:
        """Close a coroutine that was never awaited: the error says so, not a warning."""
        if self._made is not None and inspect.getcoroutinestate(self._made) == inspect.CORO_CREATED:
            self._made.close()

"""Middleware: functions of a program around its handlers."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from timeoutmgr.contracts.callables import unrun
from timeoutmgr.errors import HandlerFailed

logger = logging.getLogger(__name__)

CallNext: TypeAlias = Callable[[], None]
"""Calls the next middleware, and after the last the handlers of the message."""


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
    """Call *middleware* around *handle*; the first is the outermost. Errors pass through."""
    if not middleware:
        handle()
        return
    first, *inner = middleware
    call_next = _CallOnce(first, lambda: run_through(inner, context, handle))
    left = unrun(first(context, call_next))
    if left is not None:
        raise HandlerFailed(
            TypeError(f"middleware {first!r:.80} returned a {left}, which the endpoint cannot run")
        )
    if not call_next.was_called:
        logger.debug(
            "middleware %.80r skips the handlers of message %.80r",
            first,
            context.message_id,
            extra={"event": "handlers_skipped", "message_id": context.message_id[:80]},
        )


class _CallOnce:
    """The ``call_next`` of a middleware, which would repeat the effects of the handlers."""

    def __init__(self, middleware: object, rest: CallNext) -> None:
        self._middleware = middleware
        self._rest = rest
        self.was_called = False

    def __call__(self) -> None:
        if self.was_called:
            raise HandlerFailed(
                RuntimeError(
                    f"middleware {self._middleware!r:.80} called call_next twice; call it once, "
                    "and raise to have the message tried again"
                )
            )
        self.was_called = True
        self._rest()

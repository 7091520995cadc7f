"""The context of a coroutine handler."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, overload

from timeoutmgr.endpoint.handlers import (
    Body,
    Handler,
    HandlerContext,
    HandlerMiddleware,
    TypedHandler,
)
from timeoutmgr.endpoint.middleware import AsyncCallNext
from timeoutmgr.sender.composer import DelayClock, Sent

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

AsyncHandler: TypeAlias = Callable[[Any, "AsyncHandlerContext"], Coroutine[Any, Any, Sent | None]]
"""A coroutine function, which the endpoint runs on its event loop."""
AnyHandler: TypeAlias = Handler | AsyncHandler
AsyncTypedHandler: TypeAlias = Callable[
    [Body, "AsyncHandlerContext"], Coroutine[Any, Any, Sent | None]
]
"""A coroutine function that gets an object of its class."""
AnyTypedHandler: TypeAlias = TypedHandler[Body] | AsyncTypedHandler[Body]
AsyncHandlerMiddleware: TypeAlias = Callable[
    ["AsyncHandlerContext", AsyncCallNext], Coroutine[Any, Any, None]
]
"""A coroutine function around the coroutine handlers of one message."""
AnyMiddleware: TypeAlias = HandlerMiddleware | AsyncHandlerMiddleware


class RegistersTyped(Protocol[Body]):
    """A decorator that registers a handler of a class, and returns it as it is."""

    @overload
    def __call__(self, handler: AsyncTypedHandler[Body], /) -> AsyncTypedHandler[Body]: ...

    @overload
    def __call__(self, handler: TypedHandler[Body], /) -> TypedHandler[Body]: ...


BESIDE_OTHERS: Final = (
    "this coroutine handler runs beside others (session=False), without a transaction of its own; "
    "register it without session=False to use context.session"
)


class AsyncHandlerContext(HandlerContext):
    """The context of a message, as a coroutine handler sees it.

    All handlers of a message share a list of sends. A send is not awaited: it only adds to it.
    """

    def __init__(
        self, context: HandlerContext, delay_clock: DelayClock, *, refusal: str | None = None
    ) -> None:
        vars(self).update(vars(context))
        self._delay_clock = delay_clock
        self._refusal = refusal

    @property
    def session(self) -> "AsyncSession":  # type: ignore[override]  # its methods are awaited
        """An AsyncSession inside the transaction that also settles this message.

        The endpoint commits. A rollback or commit of the session ends at a savepoint. Its
        statements run one after the other. Raises RuntimeError, with the remedy, in modes without
        a transaction, and for a handler with ``session=False``.
        """
        if self._refusal is not None:
            raise RuntimeError(self._refusal)
        return self._session.open_async()

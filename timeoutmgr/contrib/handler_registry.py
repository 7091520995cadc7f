"""Handlers that a framework's modules register on import, before a configuration exists."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, Literal, TypeAlias, TypeVar

from timeoutmgr.contracts.callables import check_callable, is_coroutine_function
from timeoutmgr.endpoint.async_context import AnyHandler
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.handlers import ANY
from timeoutmgr.endpoint.list_handlers import ListHandler
from timeoutmgr.resilience.after_fork import ThreadSafe

Registered = TypeVar("Registered", bound=AnyHandler | ListHandler)

Surroundings: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Returns a context manager that surrounds each call of a handler."""
AsyncSurroundings: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""Returns the same for a coroutine, which runs on the loop beside other coroutines."""


class HandlerRegistry(ThreadSafe):
    """Handlers by message type, in the order of their registration. Safe for many threads."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: list[tuple[Any, Any, dict[str, Any]]] = []

    def handler(
        self,
        message_type: str | type = ANY,
        *,
        batch: Literal[1, "list"] | None = None,
        session: Literal[False] | None = None,
    ) -> Callable[[Registered], Registered]:
        """Return a decorator that registers a function as a handler of *message_type*.

        Registration and arguments are as with ``EndpointConfiguration.handler``.
        """

        def register(function: Registered) -> Registered:
            options = {"batch": batch, "session": session}
            with self._lock:
                self._handlers.append((message_type, function, options))
            return function

        return register

    def add_to(
        self,
        config: EndpointConfiguration,
        surroundings: Surroundings,
        async_surroundings: AsyncSurroundings,
    ) -> None:
        """Add all handlers to *config*, which rejects wrong functions.

        Each call runs inside *surroundings*, or for a coroutine function inside
        *async_surroundings*.
        """
        with self._lock:
            handlers = list(self._handlers)
        for message_type, function, options in handlers:
            # Check here, since the wrapper would pass every check.
            role = f"a handler of {message_type!r:.80}"
            check_callable(function, role, ("message", "context"), may_await=True)
            if is_coroutine_function(function):
                surrounded = _awaited(function, async_surroundings)
            else:
                surrounded = _called(function, surroundings)
            config.add_handler(message_type, surrounded, **options)


def _called(function: Any, surroundings: Surroundings) -> Any:
    @wraps(function)
    def handle(message: Any, context: Any) -> Any:
        with surroundings():
            return function(message, context)

    return handle


def _awaited(function: Any, surroundings: AsyncSurroundings) -> Any:
    @wraps(function)
    async def handle(message: Any, context: Any) -> Any:
        async with surroundings():
            return await function(message, context)

    return handle

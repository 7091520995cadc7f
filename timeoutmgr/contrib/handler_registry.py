"""Handlers that are registered before there is a configuration, as a framework's modules load."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from threading import Lock
from typing import Any, Final, Literal

from timeoutmgr.endpoint.configuration import AnyHandler, EndpointConfiguration
from timeoutmgr.endpoint.handlers import ANY, Handler


class HandlerRegistry:
    """Handlers by message type, in the order of their registration. Safe for many threads.

    Each call of a handler is made inside of *surroundings*.
    """

    def __init__(self, surroundings: Callable[[], AbstractContextManager[object]]) -> None:
        self._surroundings: Final = surroundings
        self._lock = Lock()
        self._handlers: list[tuple[str, Handler, Literal[1] | None]] = []

    def handler(
        self, message_type: str = ANY, *, batch: Literal[1] | None = None
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Return a decorator that registers a function as a handler of *message_type*.

        Registration and arguments are as with ``EndpointConfiguration.handler``.
        """

        def register(function: AnyHandler) -> AnyHandler:
            with self._lock:
                self._handlers.append((message_type, function, batch))
            return function

        return register

    def add_to(self, config: EndpointConfiguration) -> None:
        """Add all handlers to *config*, which refuses wrong functions."""
        with self._lock:
            handlers = list(self._handlers)
        for message_type, function, batch in handlers:
            config.add_handler(message_type, self._surrounded(function), batch=batch)

    def _surrounded(self, function: Handler) -> Handler:
        own: Any = function
        if inspect.iscoroutinefunction(own) or inspect.isgeneratorfunction(own):
            return function  # the configuration decides about these kinds

        @wraps(function)
        def handle(message: Any, context: Any) -> Any:
            with self._surroundings():
                return function(message, context)

        return handle

"""Classes for which handlers are registered: all handlers of a message type share a class."""

import inspect
from collections.abc import Callable
from typing import get_origin

from timeoutmgr.errors import ConfigurationError, MessageRejected
from timeoutmgr.message.classes import TypedMessageClass, message_class
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import is_json


def class_of_handler(given: object) -> TypedMessageClass:
    """Return how to convert messages of the class *given*; raise ConfigurationError if none can."""
    if isinstance(given, type):
        return message_class(given)
    raise ConfigurationError(f"a message type is a name or a class, got {given!r:.80}")


def check_same_class(
    message_type: str, before: TypedMessageClass | None, added: TypedMessageClass | None
) -> None:
    """Raise ConfigurationError unless both handlers of *message_type* get the same objects."""
    if _shown(before) != _shown(added):
        raise ConfigurationError(
            f"handlers of {message_type!r:.80} get {_shown(before)}, and another would get "
            f"{_shown(added)}; register all with one class, or give one class another "
            "message_type (a ClassVar)"
        )


def check_takes_one(handler: Callable[..., object], found: TypedMessageClass) -> None:
    """Raise ConfigurationError if *handler*, which gets one object, is annotated to take a list."""
    try:
        first = next(iter(inspect.signature(handler).parameters.values())).annotation
    except (ValueError, TypeError, StopIteration):
        return
    if first is list or get_origin(first) is list or f"{first}".startswith("list["):
        raise ConfigurationError(
            f"the handler {handler!r:.80} gets one {found.name}, and its first parameter is a "
            "list; register it with batch='list' for all messages of a batch"
        )


def read_typed(message: Message, found: TypedMessageClass) -> object:
    """Return the body as an object; raise MessageRejected if it is not JSON of the class."""
    if not is_json(message.content_type):
        raise MessageRejected(
            f"a handler of {found.name} needs a body of application/json, got "
            f"{message.content_type!r:.80}"
        )
    return found.read(message.body)


def _shown(found: TypedMessageClass | None) -> str:
    if found is None:
        return "plain values"
    return f"{found.kind.__module__}.{found.kind.__qualname__}"

"""Classes for which handlers are registered: a message type has one class, or none."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from timeoutmgr.errors import ConfigurationError, MessageRejected
from timeoutmgr.message.classes import MessageClass, message_class
from timeoutmgr.message.message import Message
from timeoutmgr.message.validation import decode_body, is_json
from timeoutmgr.sender.composer import Sent

if TYPE_CHECKING:
    from timeoutmgr.endpoint.handlers import HandlerContext

Body = TypeVar("Body")

TypedHandler: TypeAlias = Callable[[Body, "HandlerContext"], Sent | None]
"""A handler that gets an object of its class."""


def type_of_handler(given: object) -> tuple[str, type | None]:
    """Return the message type that *given* names, and its class if it is a class."""
    if isinstance(given, str) and given:
        return given, None
    if isinstance(given, type):
        return message_class(given).name, given
    raise ConfigurationError(f"a message type is a name or a class, got {given!r:.80}")


class HandledClasses:
    """The class of each message type."""

    def __init__(self) -> None:
        self._found: dict[str, type] = {}

    def add(self, message_type: str, given: type | None, *, is_first: bool) -> None:
        """Note the class of a handler. Raises ConfigurationError if earlier handlers differ."""
        before = self._found.get(message_type)
        if not is_first and before is not given:
            raise ConfigurationError(
                f"handlers of {message_type!r:.80} get {_shown(before)}, and another would get "
                f"{_shown(given)}; register all with one class, or give one class another "
                "message_type (a ClassVar)"
            )
        if given is not None:
            self._found[message_type] = given

    def by_type(self) -> dict[str, MessageClass]:
        """Return how to convert the messages, by message type."""
        return {name: message_class(each) for name, each in self._found.items()}


def read_body(message: Message, found: MessageClass | None) -> object:
    """Return the body for the handlers: an object of the class *found*, otherwise plain values.

    Raises MessageRejected if the body is not what the content type or the class says.
    """
    try:
        if found is None:
            return decode_body(message.body, message.content_type)
    except (ValueError, RecursionError) as error:
        raise MessageRejected(f"the body is no {message.content_type}") from error
    if not is_json(message.content_type):
        raise MessageRejected(
            f"a handler of {found.name} needs a body of application/json, got "
            f"{message.content_type!r:.80}"
        )
    return found.read(message.body)


def _shown(given: type | None) -> str:
    return "plain values" if given is None else f"{given.__module__}.{given.__qualname__}"

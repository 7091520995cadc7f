"""Messages and timeouts by number, so that a world is small and hashable."""

from __future__ import annotations

from collections.abc import Hashable

from timeoutmgr.contracts import Timeout
from timeoutmgr.message.message import Message

_messages: list[Message] = []
_timeouts: list[Timeout] = []
_numbers: dict[Hashable, int] = {}


def body_number(message: Message) -> int:
    """Return the number of *message*: equal content, equal number."""
    content = (message.id, message.body, frozenset(message.headers.items()))
    if content not in _numbers:
        _numbers[content] = len(_messages)
        _messages.append(message)
    return _numbers[content]


def message(number: int) -> Message:
    return _messages[number]


def content(timeout: Timeout) -> int:
    """Return the number of a timeout's content without due time and attempts."""
    fixed = (timeout.id, timeout.destination, body_number(timeout.message))
    if fixed not in _numbers:
        _numbers[fixed] = len(_timeouts)
        _timeouts.append(timeout)
    return _numbers[fixed]


def timeout(number: int) -> Timeout:
    return _timeouts[number]

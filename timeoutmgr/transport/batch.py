"""A batch in portions of so many bytes, each of which is one step and one transaction."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from timeoutmgr.message import Received

Item = TypeVar("Item")

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of bodies that a step is given together. What it makes of them (rows, parameters, frames of
the database) is held several times over until it is committed: a hundred bodies of the largest kind
would be gigabytes, for no speed."""


def in_portions(batch: Sequence[Received], most: int) -> Iterator[Sequence[Received]]:
    """Yield *batch* in its order, in portions of at most *most* bytes of bodies.

    A message that is larger is a portion of its own.
    """
    return portions(batch, most, lambda received: len(received.message.body))


def portions(
    items: Sequence[Item], most: int, size_of: Callable[[Item], int]
) -> Iterator[Sequence[Item]]:
    """Yield *items* in their order, in portions of at most *most* bytes by *size_of*."""
    portion: list[Item] = []
    room = most
    for item in items:
        size = size_of(item)
        if portion and size > room:
            yield portion
            portion, room = [], most
        portion.append(item)
        room -= size
    if portion:
        yield portion

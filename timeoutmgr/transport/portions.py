"""A batch in portions of so many bytes, each of which is one step and one transaction."""

from collections.abc import Iterator, Sequence
from typing import Final

from timeoutmgr.message import Received

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of bodies that a step is given together. What it makes of them (rows, parameters, frames of
the database) is held several times over until it is committed: a hundred bodies of the largest kind
would be gigabytes, for no speed."""


def in_portions(batch: Sequence[Received], most: int) -> Iterator[Sequence[Received]]:
    """Yield *batch* in its order, in portions of at most *most* bytes of bodies.

    A message that is larger is a portion of its own.
    """
    portion: list[Received] = []
    room = most
    for received in batch:
        size = len(received.message.body)
        if portion and size > room:
            yield portion
            portion, room = [], most
        portion.append(received)
        room -= size
    if portion:
        yield portion

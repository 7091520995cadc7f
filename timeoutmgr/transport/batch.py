"""A batch in portions of so many bytes, each of which is one step and one transaction."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from timeoutmgr.message.message import Received

Item = TypeVar("Item")

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of bodies that a step is given together. Its copies (rows, parameters, frames of the
database) are held several times over until the commit: a hundred bodies of the largest kind would
be gigabytes, for no speed."""
LINGER: Final = 0.002
"""Seconds without another message after which a batch is handed out as it is."""
FEW: Final = 8
"""Up to so many are not waited for: a batch of few saves little, and all of it would be late."""


def in_sub_batches(batch: Sequence[Received], most: int) -> Iterator[Sequence[Received]]:
    """Yield *batch* in its order, in portions of at most *most* bytes of bodies.

    A message that is larger is a portion of its own.
    """
    return sub_batches(batch, most, lambda received: len(received.message.body))


def sub_batches(
    items: Sequence[Item], most: int, size_of: Callable[[Item], int]
) -> Iterator[Sequence[Item]]:
    """Yield *items* in their order, in portions of at most *most* bytes by *size_of*."""
    sub_batch: list[Item] = []
    room = most
    for item in items:
        size = size_of(item)
        if sub_batch and size > room:
            yield sub_batch
            sub_batch, room = [], most
        sub_batch.append(item)
        room -= size
    if sub_batch:
        yield sub_batch

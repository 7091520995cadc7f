"""Chunks in a row: the rows of a chunk are locked while the chunk before it is confirmed."""

from collections.abc import Generator
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

Result = TypeVar("Result")

DispatchSteps: TypeAlias = Generator[None, None, None]
"""A chunk on its way. It stops twice: with its rows locked, and when it is sent."""


class OverlappedDispatch:
    """Leads chunks through their steps. Its end closes the last chunk.

    A chunk is sent when the chunk before it is closed, so that a crash leaves at most one chunk
    in doubt. *overlaps* is false if all chunks share a transaction: the transaction sees its own
    locks, and would lock the rows of a chunk again that was ordered twice.
    """

    def __init__(self, *, overlaps: bool) -> None:
        self._overlaps = overlaps
        self._sent: DispatchSteps | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Also if the next chunk failed: the sends of the last chunk must be recorded.
        self._close_last()

    def add(self, chunk: DispatchSteps) -> None:
        """Send *chunk* behind the chunks before it."""
        if not self._overlaps:
            finish(chunk)
            return
        try:
            next(chunk)
            self._close_last()
            next(chunk)
        except BaseException:
            chunk.close()  # now, and not at garbage collection
            raise
        self._sent = chunk

    def _close_last(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            finish(sent)


def finish(chunk: Generator[None, None, Result]) -> Result:
    """Lead *chunk* through all steps that are left; return its result."""
    while True:
        try:
            next(chunk)
        except StopIteration as ended:
            result: Result = ended.value
            return result

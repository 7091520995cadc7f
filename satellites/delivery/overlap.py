"""Chunks one behind the other: the rows of the next are looked up while one is being confirmed."""

from collections.abc import Generator
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

Result = TypeVar("Result")

DispatchSteps: TypeAlias = Generator[None, None, None]
"""A chunk on its way. It stops twice: with its rows in hand, and once it is sent."""


class OverlappedDispatch:
    """Leads chunks through their stages. Leaving it closes the last of them.

    A chunk is sent once the one before it is closed, so there is never more than one of which it
    is not known whether it was sent. *overlaps* is false where all share one transaction: it sees
    its own locks, and would hand out the rows of a chunk that was ordered twice.
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
        # Also where the next one failed: what was sent is to be recorded.
        self._close_last()

    def add(self, chunk: DispatchSteps) -> None:
        """Have *chunk* sent behind those before it."""
        if not self._overlaps:
            finish(chunk)
            return
        try:
            next(chunk)
            self._close_last()
            next(chunk)
        except BaseException:
            chunk.close()  # now, and not when somebody has forgotten it
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

"""Two or more calls at the very same time, again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

_PATIENCE: Final = 60.0


class Track:
    """Threads that start together; one track serves many races."""

    def __init__(self, lanes: int) -> None:
        self._start = threading.Barrier(lanes)
        self._pool = ThreadPoolExecutor(lanes, thread_name_prefix="race")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._start.abort()
        self._pool.shutdown()

    def race(self, *runners: Callable[[], Any]) -> list[Any]:
        """Start *runners* together, each in a lane; return their results, or raise an error."""

        def run(runner: Callable[[], Any]) -> Any:
            self._start.wait(_PATIENCE)
            return runner()

        running = [self._pool.submit(run, runner) for runner in runners]
        return [one.result(_PATIENCE) for one in running]


def race(*runners: Callable[[], Any]) -> list[Any]:
    """Start *runners* together once; return their results."""
    with Track(len(runners)) as track:
        return track.race(*runners)

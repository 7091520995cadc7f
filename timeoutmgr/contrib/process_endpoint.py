"""An endpoint that is made at its first use, once in each process."""

from collections.abc import Callable
from threading import RLock
from typing import Final, Generic, TypeVar

from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.resilience.after_fork import begin_anew_after_fork

AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)


class ProcessEndpoint(Generic[AnyEndpoint]):
    """The endpoint that *make* returns at the first use. Safe for many threads.

    A forked process goes on with the endpoint of its parent, whose connections begin anew.
    """

    def __init__(self, make: Callable[[], AnyEndpoint]) -> None:
        self._make: Final = make
        self._lock = RLock()
        self._made: AnyEndpoint | None = None
        begin_anew_after_fork(self)

    def __call__(self) -> AnyEndpoint:
        """Return the endpoint. Raises ConfigurationError."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have acquired."""
        self._lock = RLock()

    def forget(self) -> None:
        """Close the endpoint; the next use makes another endpoint."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.close()

"""A store that a test can take away or pause; everything else is real."""

from __future__ import annotations

import threading
from typing import Any

from timeoutmgr.contracts import Clock, Persistence, SharedDatabase, StoreCapabilities, TimeoutStore
from timeoutmgr.errors import StorageUnavailable

_CALLS = frozenset(
    {
        "now",
        "ping",
        "store_many",
        "claim",
        "lock_for_dispatch",
        "release",
        "next_due",
        "key_of",
        "find",
    }
    | {
        "heartbeat",
        "processes",
        "list",
        "count",
        "cancel",
        "cancel_saga",
        "clear_saga",
        "reschedule",
        "statistics",
        "purge",
    }
)


class Gate:
    """Stands before a persistence. ``shut`` makes every call of its stores fail."""

    def __init__(self, inner: Persistence) -> None:
        self._inner = inner
        self._is_open = threading.Event()
        self._is_open.set()
        self.asked_in_vain = threading.Semaphore(0)
        self._pause: PausePoint | None = None

    def shut(self) -> None:
        """Take the storage away."""
        self._is_open.clear()

    def open(self) -> None:
        """Bring the storage back."""
        self._is_open.set()

    def pause_after_next_empty_peek(self) -> PausePoint:
        """Pause the next claim or peek that finds nothing due, after it, until ``go_on``."""
        self._pause = PausePoint()
        return self._pause

    def pass_or_fail(self) -> None:
        """Raise StorageUnavailable while shut."""
        if not self._is_open.is_set():
            self.asked_in_vain.release()
            raise StorageUnavailable("the storage is away, as the test wants it")

    def pause_if_asked(self) -> None:
        """Pause this thread if a test asked for it."""
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.pause()

    @property
    def capabilities(self) -> StoreCapabilities:
        """As the real persistence."""
        return self._inner.capabilities

    @property
    def database(self) -> SharedDatabase | None:
        """As the real persistence."""
        return self._inner.database

    def install(self) -> None:
        """Install, unless the storage is away."""
        self.pass_or_fail()
        self._inner.install()

    def ddl(self) -> str:
        """As the real persistence."""
        return self._inner.ddl()

    def check(self) -> None:
        """Check, unless the storage is away."""
        self.pass_or_fail()
        self._inner.check()

    def timeouts(self, endpoint: str, clock: Clock, **more: Any) -> TimeoutStore:
        """Return the real store behind the gate."""
        made: Any = _GatedStore(self, self._inner.timeouts(endpoint, clock, **more))
        store: TimeoutStore = made
        return store

    def close(self) -> None:
        """Close the real persistence."""
        self._inner.close()


class PausePoint:
    """A point at which a thread waits until the test lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._go_on = threading.Event()

    def pause(self) -> None:
        """Wait for the test."""
        self._reached.set()
        assert self._go_on.wait(30), "the test did not let the thread go on"

    def wait_until_reached(self) -> None:
        """Return once a thread waits here."""
        assert self._reached.wait(15), "no thread came to this point"

    def go_on(self) -> None:
        """Let the thread go on."""
        self._go_on.set()


class _GatedStore:
    def __init__(self, gate: Gate, inner: TimeoutStore) -> None:
        self._gate = gate
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in _CALLS:
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._gate.pass_or_fail()
            result = found(*given, **named)
            found_nothing = name == "claim" and not result.keys and not named.get("transaction")
            # In a single transaction the poller peeks before it claims; see PollTimeouts.
            if found_nothing or (name == "next_due" and self._nothing_is_due(result)):
                self._gate.pause_if_asked()
            return result

        return call

    def _nothing_is_due(self, due: int | None) -> bool:
        return due is None or due > self._inner.now()

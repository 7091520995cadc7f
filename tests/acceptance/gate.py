"""A store that can be away, or be held, on command; everything else is real."""

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
        self._held: Hold | None = None

    def shut(self) -> None:
        """The storage is away."""
        self._is_open.clear()

    def open(self) -> None:
        """It is back."""
        self._is_open.set()

    def hold_next_empty_look(self) -> Hold:
        """Hold the next look that finds nothing due, after it looked, until told to go on."""
        self._held = Hold()
        return self._held

    def pass_or_fail(self) -> None:
        """Raise StorageUnavailable while shut."""
        if not self._is_open.is_set():
            self.asked_in_vain.release()
            raise StorageUnavailable("the storage is away, as the test wants it")

    def looked(self) -> None:
        """Stop here if a test asked for it."""
        held, self._held = self._held, None
        if held is not None:
            held.stop_here()

    @property
    def capabilities(self) -> StoreCapabilities:
        """The real one's."""
        return self._inner.capabilities

    @property
    def database(self) -> SharedDatabase | None:
        """The real one's."""
        return self._inner.database

    def install(self) -> None:
        """Install, unless it is away."""
        self.pass_or_fail()
        self._inner.install()

    def ddl(self) -> str:
        """The real one's."""
        return self._inner.ddl()

    def check(self) -> None:
        """Check, unless it is away."""
        self.pass_or_fail()
        self._inner.check()

    def timeouts(self, endpoint: str, clock: Clock, **more: Any) -> TimeoutStore:
        """Return the real store behind the gate."""
        made: Any = _GatedStore(self, self._inner.timeouts(endpoint, clock, **more))
        store: TimeoutStore = made
        return store

    def close(self) -> None:
        """Close the real session."""
        self._inner.close()


class Hold:
    """Where a thread stands still until the test lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._go_on = threading.Event()

    def stop_here(self) -> None:
        """Stand still."""
        self._reached.set()
        assert self._go_on.wait(30), "nobody let it go on"

    def wait_until_reached(self) -> None:
        """Return once a thread stands here."""
        assert self._reached.wait(15), "nobody came by"

    def go_on(self) -> None:
        """Let it go on."""
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
            # In one transaction the poller looks before it claims; see PollTimeouts.
            if found_nothing or (name == "next_due" and self._nothing_is_due(result)):
                self._gate.looked()
            return result

        return call

    def _nothing_is_due(self, due: int | None) -> bool:
        return due is None or due > self._inner.now()

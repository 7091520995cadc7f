"""A wait for a state of another process or server, which sends no signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from timeoutmgr.testing.signals import PATIENCE


def eventually(holds: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    """Return once *holds*; raise AssertionError with *what* after *timeout* seconds."""
    deadline = time.monotonic() + timeout
    between_looks = threading.Event()
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        between_looks.wait(0.01)

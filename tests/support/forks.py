"""Forks of a test's own process, beside its threads."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from typing import Final, Self

_ALARM: Final = 60
"""Seconds after which the system ends a child that hangs."""


def ended_in_a_child(does: Callable[[], int]) -> int:
    """Run *does* in a forked process; return the exit code it returns, or 1 if it fails."""
    child = _forked()
    if child == 0:
        code = 1
        signal.alarm(_ALARM)
        try:
            code = does()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _forked() -> int:
    """Fork. Newer Pythons warn of a fork beside threads, which is what such tests try."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class Forks:
    """Forks of the code in a ``with``; a child that leaves the ``with`` exits with 99."""

    def __init__(self) -> None:
        self._parent = os.getpid()
        self._children: list[int] = []

    def __call__(self) -> bool:
        """Fork; return whether this is the child."""
        self._children.append(_forked())
        return not self._children[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.refuse_child()

    def refuse_child(self) -> None:
        """End a child that goes on so far."""
        if os.getpid() != self._parent:
            os._exit(99)

    def codes(self) -> list[int]:
        """Return the exit codes of the children, which this waits for."""
        return [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in self._children]

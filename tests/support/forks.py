"""Forks of a test's own process, beside its threads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable


def ended_in_a_child(does: Callable[[], int]) -> int:
    """Run *does* in a forked process; return the exit code that *does* returns, 1 if *does* fails.

    Newer Pythons warn of a fork beside threads, which is what such tests try.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = does()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

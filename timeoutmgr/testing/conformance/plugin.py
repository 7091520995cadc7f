"""What the pytest plugin does where a suite is in use: finds parts, leaves out cases.

Its hooks are in the module ``pytest_timeoutmgr``: pytest loads them in each of its runs, and an
import of this package would cost each of them half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import pytest

from timeoutmgr.testing.conformance.facts import is_meant_for

given: Final[dict[str, Callable[[], Any]]] = {}
"""Makers of parts by what they are, as the command line named them."""


def find_parts(named: Mapping[str, str]) -> None:
    """Import the makers that the command line *named*; raise UsageError for a wrong name."""
    given.update({part: _found(part, name) for part, name in named.items()})


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the class of a suite says its part cannot do; nothing is ever skipped."""
    left_out = [item for item in items if not is_meant_for(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_meant_for(item)]


def _found(part: str, name: str) -> Callable[[], Any]:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise pytest.UsageError(f"--timeoutmgr-{part} is MODULE:NAME of a function, got {name!r}")
    found: Callable[[], Any] = getattr(import_module(module), attribute)
    return found

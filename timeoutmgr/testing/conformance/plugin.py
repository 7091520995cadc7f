"""The pytest plugin of the suites: runs them on a part by its name, and leaves out what it cannot.

pytest loads this in each of its runs, wherever the package is installed: it has to be quick, and
changes nothing for tests that are none of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import pytest

from timeoutmgr.testing.conformance.facts import NEEDS, is_meant_for

_PARTS: Final = ("persistence", "delayed-store", "transport")
given: Final[dict[str, Callable[[], Any]]] = {}
"""Makers of parts by what they are, as the command line named them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suites."""
    group = parser.getgroup("timeoutmgr", "conformance of stores and transports")
    group.addoption(
        "--timeoutmgr-races",
        type=int,
        default=None,
        metavar="N",
        help="run each race N times, instead of what the suite's class says",
    )
    for part in _PARTS:
        group.addoption(
            f"--timeoutmgr-{part}",
            default=None,
            metavar="MODULE:NAME",
            help=f"a function that returns an installed {part}, for "
            "--pyargs timeoutmgr.testing.conformance.given",
        )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and find the parts that were given."""
    config.addinivalue_line(
        "markers", f"{NEEDS}(**facts): only where the suite's class has these facts"
    )
    named = {part: config.getoption(f"--timeoutmgr-{part}", None) for part in _PARTS}
    given.update({part: _found(part, name) for part, name in named.items() if name})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
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

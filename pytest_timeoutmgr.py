"""The pytest plugin's door: options and a marker, without an import of the package.

pytest loads this module in each of its runs, wherever the package is installed. The rest of the
plugin, ``timeoutmgr.testing.conformance.plugin``, is imported where a suite is in use.
"""

from __future__ import annotations

import sys

import pytest

_SUITES = "timeoutmgr.testing.conformance"
_PARTS = ("persistence", "delayed-store", "transport")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suites."""
    group = parser.getgroup("timeoutmgr", "conformance of stores and transports")
    group.addoption(
        "--timeoutmgr-races",
        type=int,
        default=None,
        metavar="N",
        help="run each race N times, instead of the number in the suite's class",
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
    """Register the marker, and find the parts that the options name."""
    config.addinivalue_line(
        "markers", "timeoutmgr_needs(**facts): run only if the suite's class has these facts"
    )
    options = {part: config.getoption(f"--timeoutmgr-{part}", None) for part in _PARTS}
    named = {part: name for part, name in options.items() if name}
    if named:
        from timeoutmgr.testing.conformance.plugin import find_parts

        find_parts(named)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases that a suite's class says its part cannot do; none is skipped."""
    if _SUITES not in sys.modules:
        return
    from timeoutmgr.testing.conformance.plugin import deselect

    deselect(config, items)

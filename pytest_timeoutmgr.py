"""The pytest plugin's door: options, markers and fixtures, without an import of the package.

pytest loads this module in each of its runs, wherever the package is installed. The rest of the
plugin, ``timeoutmgr.testing.conformance.plugin``, is imported where a suite is in use, and the
testing kit where a test uses the fixture ``timeouts``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from timeoutmgr import EndpointConfiguration
    from timeoutmgr.testing import TimeoutKit
    from timeoutmgr.testing.kit.database import KitStorage

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
    """Register the markers, and find the parts that the options name."""
    config.addinivalue_line(
        "markers", "timeoutmgr_needs(**facts): run only if the suite's class has these facts"
    )
    config.addinivalue_line(
        "markers",
        "timeoutmgr(**options): options of the TimeoutKit that the fixture timeouts gives",
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


@pytest.fixture
def timeouts(
    request: pytest.FixtureRequest,
    timeoutmgr_config: EndpointConfiguration,
    timeoutmgr_database: KitStorage,
) -> Iterator[TimeoutKit]:
    """Return a testing kit of ``timeoutmgr_config``: its messages and its clock.

    The marker ``timeoutmgr`` gives its options: ``@pytest.mark.timeoutmgr(raises=False)``.
    """
    from timeoutmgr.testing import TimeoutKit

    marker = request.node.get_closest_marker("timeoutmgr")
    options = {} if marker is None else marker.kwargs
    with TimeoutKit(timeoutmgr_config, **{"database": timeoutmgr_database, **options}) as kit:
        yield kit


@pytest.fixture
def timeoutmgr_config() -> EndpointConfiguration:
    """Return the configuration of the endpoint under test: a project defines this fixture."""
    raise pytest.UsageError(
        "the fixture timeouts needs your configuration: define a fixture timeoutmgr_config in "
        "conftest.py, which returns the EndpointConfiguration of your program"
    )


@pytest.fixture
def timeoutmgr_database() -> KitStorage:
    """Return the database of ``context.session``: an engine, a connection, or metadata.

    A project may define this fixture. None stands for a SQLite in memory, without tables.
    """
    return None

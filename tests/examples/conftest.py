"""A cluster takes minutes and gigabytes: it is started only where it is asked for."""

from __future__ import annotations

import pytest

from tests.marks import leave_out

_MARKER = "cluster"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"{_MARKER}: starts a Spark cluster; `pytest -m {_MARKER}`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave it out unless it is asked for by its mark."""
    leave_out(_MARKER, config, items)

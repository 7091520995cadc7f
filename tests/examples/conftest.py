"""A cluster takes minutes and gigabytes: it is started only where it is asked for."""

from __future__ import annotations

import pytest

_MARK = "cluster"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"{_MARK}: starts a Spark cluster; `pytest -m {_MARK}`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave it out unless it is asked for by its mark."""
    if _MARK in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(_MARK)]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker(_MARK)]
        config.hook.pytest_deselected(items=left_out)

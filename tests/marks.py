"""Tests that run only where they are asked for, by their mark."""

from __future__ import annotations

import pytest


def leave_out(mark: str, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove the tests with *mark* from *items*, unless the expression of ``-m`` names it."""
    if mark in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(mark)]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker(mark)]
        config.hook.pytest_deselected(items=left_out)

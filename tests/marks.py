"""Tests that run only if their marker is asked for."""

from __future__ import annotations

import pytest


def leave_out(marker: str, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove the tests with *marker* from *items*, unless the expression of ``-m`` names it."""
    if marker in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(marker)]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker(marker)]
        config.hook.pytest_deselected(items=left_out)

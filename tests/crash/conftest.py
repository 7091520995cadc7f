"""The full matrix is for `make crash`; a sample of it runs with all other tests."""

from __future__ import annotations

import pytest

from tests.crash.cases import matrix

_MARK = "crash_full"
_LEFT_OUT = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"{_MARK}: the full matrix of crash points; `make crash`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the matrix out unless it is asked for by its mark."""
    if _MARK in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(_MARK)]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker(_MARK)]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was left out."""
    if _MARK not in config.option.markexpr:
        terminalreporter.line(
            f"crash points: a sample ran; the matrix of {len(matrix())} deaths is `make crash`"
        )

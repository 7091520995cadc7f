"""A plugin that counts the pairs that are not part of a test, and lists them after the run.

tests/conftest.py loads the plugin: in a parallel run the controller collects nothing, and so does
not read the conftest.py of a folder unless the command line names that folder.
"""

from __future__ import annotations

from typing import Final

import pytest

_FOUND: Final = pytest.StashKey[set[str]]()
_OUTPUT: Final = "acceptance_not_applicable"


def note(config: pytest.Config, line: str) -> None:
    """Count a pair that is not part of a test; *line* names the pair, the test and the reason."""
    config.stash[_FOUND].add(line)


def pytest_configure(config: pytest.Config) -> None:
    """Begin with an empty set."""
    config.stash[_FOUND] = set()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the findings of a worker to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        found: set[str] = session.config.stash[_FOUND]
        output[_OUTPUT] = sorted(found)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: pytest.Item, error: object) -> None:
    """Receive the findings of a worker."""
    node.config.stash[_FOUND].update(getattr(node, "workeroutput", {}).get(_OUTPUT, []))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many pairs were no part of a test, and why if asked for (-v)."""
    found = config.stash[_FOUND]
    if not found:
        return
    terminalreporter.section("acceptance matrix")
    terminalreporter.line(f"{len(found)} combinations n/a: the pair cannot keep what is claimed")
    if config.get_verbosity() > 0:
        for line in sorted(found):
            terminalreporter.line(line)

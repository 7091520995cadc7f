"""The plugin of a run in a copy: only the copy is tested, and the outcome of each test is written.

It is named with ``-p`` by the runner and takes no part in any other run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

import timeoutmgr.persistence
import timeoutmgr.satellites

RESULTS: Final = "MUTATION_RESULTS"
"""The environment variable that names the file to write, a line of JSON for each test."""


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run on anything but the copy."""
    for module in (timeoutmgr, timeoutmgr.persistence, timeoutmgr.satellites):
        if not Path(str(module.__file__)).is_relative_to(config.rootpath):
            raise pytest.UsageError(
                f"{module.__name__} comes from {module.__file__}, not from {config.rootpath}"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether an assertion failed: no other failure speaks of a promise."""
    report = yield
    asserted = call.excinfo is not None and call.excinfo.errisinstance(
        (AssertionError, pytest.fail.Exception)
    )
    error = "" if call.excinfo is None else call.excinfo.exconly(tryshort=True)
    report.user_properties.append(("asserted", asserted))
    report.user_properties.append(("error", error.partition("\n")[0][:200]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test: of its call, or of the step that prevented the call."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    given = dict(report.user_properties[-2:])
    line = {"test": report.nodeid, "when": report.when, "outcome": report.outcome, **given}
    with open(os.environ[RESULTS], "a", encoding="utf-8") as results:
        results.write(json.dumps(line) + "\n")

"""The suites' plugin, also where the package is not installed and so has no entry point."""

import pytest

from timeoutmgr.testing.conformance import plugin


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "timeoutmgr-conformance")

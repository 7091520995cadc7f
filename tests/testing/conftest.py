"""The suites' plugin, also where the package is not installed and so has no entry point."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import StaticPool

from timeoutmgr.testing.conformance import plugin


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "timeoutmgr-conformance")


@pytest.fixture
def memory() -> Iterator[Engine]:
    """Return a SQLite in memory with a single connection, as a user may have it."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    yield engine
    engine.dispose()

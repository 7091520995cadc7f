"""A database for an example; and a cluster, which takes minutes, is started only if asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from tests.marks import leave_out

_MARKER = "cluster"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"{_MARKER}: starts a Spark cluster; `pytest -m {_MARKER}`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave it out unless it is asked for by its mark."""
    leave_out(_MARKER, config, items)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> str:
    """The URL of an empty database, or of an empty schema in a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url = make_url(request.getfixturevalue("postgres_url"))
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {unique}"))
    engine.dispose()
    own = url.update_query_dict({"options": f"-csearch_path={unique}"})
    return own.render_as_string(hide_password=False)

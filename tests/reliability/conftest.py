"""A pair of transport and store for each test here; ``on`` says which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.place import Place, stopping


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Iterator[Place]:
    """The pair that the test is run on, with everything it opens there closed at its end."""
    pair = request.param
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'timeoutmgr.db'}"}
    urls |= {server: request.getfixturevalue(f"{server}_url") for server in sorted(pair.servers)}
    with stopping(Place(pair, urls, unique)) as made:
        yield made

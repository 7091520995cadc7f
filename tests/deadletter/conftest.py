"""A node's store on every database, with its own names and a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.deadletter.making import Nodes
from timeoutmgr.deadletter.store import DeadLetterStore

KINDS = ("sqlite", "postgres", "mysql")


@pytest.fixture(scope="session")
def store_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], DeadLetterStore]]:
    """Installed tables of a kind of database; every test has nodes of its own in them."""
    made: dict[str, DeadLetterStore] = {}

    def of(kind: str) -> DeadLetterStore:
        if kind not in made:
            url = (
                f"sqlite:///{tmp_path_factory.mktemp('dead') / 'dead.db'}"
                if kind == "sqlite"
                else request.getfixturevalue(f"{kind}_url")
            )
            made[kind] = DeadLetterStore(url, prefix="dead_")
            made[kind].install()
        return made[kind]

    yield of

    for store in made.values():
        store.close()


@pytest.fixture(params=KINDS)
def nodes(
    request: pytest.FixtureRequest, store_of: Callable[[str], DeadLetterStore], unique: str
) -> Nodes:
    return Nodes(store_of(request.param), unique)

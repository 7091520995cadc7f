"""One suite over the SQL store of delayed messages: SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.persistence.making import NOW, SetClock
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout, TransactionMode
from timeoutmgr.database import Database
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence import SqlDelayedMessageStore

SECOND = 1_000_000


class Shelf:
    """Stores of one endpoint in one database, and the time there."""

    def __init__(self, url: str, endpoint: str) -> None:
        self.url = url
        self.endpoint = endpoint
        self.closing = ExitStack()
        self.is_sqlite = url.startswith("sqlite")
        self.is_postgres = url.startswith("postgresql")
        self.clock = SetClock()
        self.database = Database.shared(url)

    def store(
        self,
        mode: TransactionMode = TransactionMode.RECEIVE_ONLY,
        *,
        endpoint: str | None = None,
        install: bool = True,
        **options: Any,
    ) -> SqlDelayedMessageStore:
        """Return a store as another process would have it."""
        made = SqlDelayedMessageStore(self.url, clock=self.clock, **options)
        self.closing.enter_context(closing(made))
        if install:
            made.setup_infrastructure(endpoint or self.endpoint)
        made.initialize(endpoint or self.endpoint, mode)
        return made

    def now(self) -> Micros:
        """Return the time that due times are compared with."""
        return NOW if self.is_sqlite else SystemClock().now()

    def fetch(self, store: SqlDelayedMessageStore, limit: int = 10) -> list[Timeout]:
        """Fetch, and give back."""
        with store.transaction() as transaction:
            return store.fetch_due(self.clock.now(), limit, transaction=transaction)


@pytest.fixture(params=("sqlite", "postgres", "mysql"))
def shelf(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Iterator[Shelf]:
    """A database of every kind."""
    made = Shelf(request.getfixturevalue(f"{request.param}_url"), unique)
    with made.closing:
        yield made


@pytest.fixture
def store(shelf: Shelf) -> SqlDelayedMessageStore:
    """A store there."""
    return shelf.store()

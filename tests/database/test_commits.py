"""After-commit calls follow their commit, also beside pools that were disposed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from timeoutmgr.database.commits import after_commit


def test_a_pool_at_the_address_of_a_deleted_pool_gets_its_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As SQLAlchemy answers there: it goes by the address, and forgets none that was disposed of.
    monkeypatch.setattr("sqlalchemy.event.contains", lambda *_: True)
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    followed: list[str] = []

    with engine.begin() as connection:
        after_commit(connection, lambda: followed.append("commit"))

    assert followed == ["commit"]
    engine.dispose()


def test_a_pool_that_was_made_anew_is_listened_to_once(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    followed: list[int] = []

    for number in range(3):
        with engine.begin() as connection:
            after_commit(connection, partial(followed.append, number))
        engine.dispose()

    assert followed == [0, 1, 2]
    assert len([*engine.pool.dispatch.checkin]) == 1

"""Statements that PostgreSQL gets in few round trips."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from timeoutmgr.database import Database
from timeoutmgr.database.round_trips import DriverStatement


class _Interrupted(BaseException):
    """A signal's handler raises it, as Celery's time limit of a task does."""


def test_the_answer_of_an_interrupted_statement_is_read_by_no_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(postgres_url)
    late, following = (
        DriverStatement(text(f"SELECT '{word}'"), database.engine) for word in ("late", "following")
    )
    database.run_alone(following, {})  # the pool has a connection

    def interrupt() -> None:
        monkeypatch.undo()
        raise _Interrupted

    monkeypatch.setattr(database.unanswered, "sign", interrupt)
    with pytest.raises(_Interrupted):
        database.run_alone(late, {})

    assert database.run_alone(following, {}) == [("following",)]
    assert database.connections() == (0, 1)
    database.dispose()


def test_the_engine_of_single_statements_is_made_before_a_thread_or_fork_can_meet_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(postgres_url)
    monkeypatch.delattr(Database, "_made")

    assert database.run_alone(DriverStatement(text("SELECT 1"), database.engine), {}) == [(1,)]
    database.dispose()

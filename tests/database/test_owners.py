from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from sqlalchemy import event

from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.database.owners import OwnerLives

HOLD = """
import sys
from timeoutmgr.database import Database
from timeoutmgr.database.owners import OwnerLives
OwnerLives(Database(sys.argv[1])).begin(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["sqlite_url", "postgres_url", "mysql_url"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(request.getfixturevalue(request.param))
    yield made
    made.dispose()


@pytest.fixture
def mine(database: Database) -> OwnerLives:
    return OwnerLives(database)


@pytest.fixture
def others(database: Database) -> OwnerLives:
    """What another process would see: it has none of our owners in its memory."""
    return OwnerLives(database)


@pytest.mark.behaviour(48)
def test_a_living_owner_is_not_gone(mine: OwnerLives, others: OwnerLives, unique: str) -> None:
    mine.begin(unique)

    assert others.gone([unique]) == set()
    mine.end(unique)


@pytest.mark.behaviour(48)
def test_an_owner_that_ended_is_gone(mine: OwnerLives, others: OwnerLives, unique: str) -> None:
    mine.begin(unique)
    mine.end(unique)

    assert others.gone([unique]) == {unique}


@pytest.mark.behaviour(48)
def test_an_owner_that_never_lived_is_gone(others: OwnerLives, unique: str) -> None:
    assert others.gone([unique]) == {unique}


@pytest.mark.behaviour(48)
def test_an_owner_of_a_killed_process_is_gone(
    database: Database, others: OwnerLives, unique: str
) -> None:
    url = database.url.render_as_string(hide_password=False)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, url, unique],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert others.gone([unique]) == set()

        process.kill()
        process.wait()

    assert _eventually_gone(others, unique)


def test_only_the_dead_of_several_are_gone(
    mine: OwnerLives, others: OwnerLives, unique: str
) -> None:
    mine.begin(f"{unique}-a")
    mine.begin(f"{unique}-b")
    mine.end(f"{unique}-b")

    assert others.gone([f"{unique}-a", f"{unique}-b"]) == {f"{unique}-b"}
    mine.end(f"{unique}-a")


def test_our_own_owners_are_never_gone(mine: OwnerLives, unique: str) -> None:
    mine.begin(unique)

    assert mine.gone([unique]) == set()
    mine.end(unique)


def test_nobody_asked_for_is_nobody_gone(mine: OwnerLives) -> None:
    assert mine.gone([]) == set()


def test_begin_and_end_twice_is_fine(mine: OwnerLives, unique: str) -> None:
    mine.begin(unique)
    mine.begin(unique)
    assert mine.holds(unique)

    mine.end(unique)
    mine.end(unique)
    assert not mine.holds(unique)


def test_a_renewed_life_is_held(mine: OwnerLives, others: OwnerLives, unique: str) -> None:
    mine.begin(unique)
    mine.renew(unique)

    assert mine.holds(unique)
    assert others.gone([unique]) == set()
    mine.end(unique)


def test_an_owner_is_told_by_its_bytes(mine: OwnerLives, others: OwnerLives, unique: str) -> None:
    mine.begin(unique.upper())

    assert others.gone([unique.lower()]) == {unique.lower()}
    mine.end(unique.upper())


@pytest.mark.parametrize("url", ["postgres_url", "mysql_url"])
def test_a_life_does_not_wait_for_the_pool(
    url: str, unique: str, request: pytest.FixtureRequest
) -> None:
    settings = DatabaseSettings(pool_size=1, connect_timeout=1)
    database = Database(request.getfixturevalue(url), settings)
    lives = OwnerLives(database)

    # The pool may grow to twice its size.
    with database.begin(), database.begin():
        lives.begin(unique)

    assert lives.holds(unique)
    lives.end(unique)
    database.dispose()


@pytest.mark.parametrize("url", ["postgres_url", "mysql_url"])
def test_a_life_that_ended_leaves_no_connection_behind(
    url: str, unique: str, request: pytest.FixtureRequest
) -> None:
    database = Database(request.getfixturevalue(url))
    lives = OwnerLives(database)
    ended: list[object] = []
    event.listen(database.apart.pool, "close", lambda driver, _record: ended.append(driver))

    lives.begin(unique)
    before = len(ended)
    lives.end(unique)

    assert (before, len(ended)) == (0, 1)
    database.dispose()


def _eventually_gone(lives: OwnerLives, owner: str) -> bool:
    # A server notices the end of a connection a moment after the kernel does.
    return any(lives.gone([owner]) == {owner} for _ in range(2000))

"""The rights that the page of dead-letter queues gives to operators are enough, not too many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from tests.deadletter.making import Nodes, a_stored_copy, queues
from timeoutmgr.database import Database
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.store import DeadLetterStore

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "dead-letter-queues.md"


@pytest.fixture(params=["postgres", "mysql"])
def nodes(
    request: pytest.FixtureRequest, store_of: Callable[[str], DeadLetterStore], unique: str
) -> Nodes:
    return Nodes(store_of(request.param), unique)


@pytest.fixture
def operators(nodes: Nodes, unique: str) -> Iterator[QueueManager]:
    """The node of a user with just the grants of the page."""
    database = nodes.database
    is_postgres = database.dialect.name == "postgresql"
    user = unique if is_postgres else f"{unique}@'%'"
    create = f"CREATE ROLE {user} LOGIN PASSWORD 'x'" if is_postgres else f"CREATE USER {user}"
    identified = "" if is_postgres else " IDENTIFIED BY 'x'"
    url = make_url(str(database.engine.url.render_as_string(hide_password=False)))
    with database.begin() as connection:
        connection.execute(text(create + identified))
        for grant in _grants(is_postgres):
            ours = grant.replace("timeoutmgr_", "dead_").replace("shop.", f"{url.database}.")
            connection.execute(text(ours.replace("operators", user)))
    theirs = Database(url.set(username=unique, password="x"))
    with closing(DeadLetterStore(theirs, prefix="dead_", clock=nodes.clock)) as store:
        yield QueueManager(store=store, node=nodes.manager().node)
    theirs.dispose()
    with database.begin() as connection:
        if is_postgres:
            connection.execute(text(f"DROP OWNED BY {user}"))
        connection.execute(text(f"DROP {'ROLE' if is_postgres else 'USER'} {user}"))


def _grants(is_postgres: bool) -> list[str]:
    """Return the statements of the page for a kind of database."""
    blocks = re.findall(r"```sql\n(GRANT .*?)```", _PAGE.read_text(), re.DOTALL)
    [found] = [block for block in blocks if ("shop." in block) is not is_postgres]
    return [each.strip() for each in found.split(";") if each.strip()]


def test_an_operator_looks_receives_and_deletes(nodes: Nodes, operators: QueueManager) -> None:
    for name in ("m1", "m2", "m3"):
        nodes.manager().place(a_stored_copy(name))
    dead = queues(operators)[0]
    operators.store.check()

    with dead.receive() as copy:
        assert copy is not None
    deleted = dead.delete([a_stored_copy("m2")])

    assert (copy.message.id, deleted) == ("m1", 1)
    assert [each.message.id for each in dead.peek()] == ["m3"]


def test_an_operator_places_nothing(nodes: Nodes, operators: QueueManager) -> None:
    with pytest.raises(Exception, match="denied") as refused:
        operators.place(a_stored_copy())

    assert any(isinstance(each, DBAPIError) for each in (refused.value, refused.value.__cause__))
    assert queues(nodes.manager())[0].count() == 0

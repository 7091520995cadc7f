from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import event, inspect

from tests.persistence.delayed.conftest import SECOND, Shelf
from tests.persistence.making import rolled_back, timeout
from timeoutmgr import TransactionMode
from timeoutmgr.contracts import Timeout
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    MessageRejected,
    SchemaMissing,
)
from timeoutmgr.message.message import Message
from timeoutmgr.persistence import SqlDelayedMessageStore

MIB = 1024 * 1024
SCOPE = TransactionMode.TRANSACTION_SCOPE


@pytest.mark.behaviour(85)
def test_the_oldest_that_is_due_is_fetched_first(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    now = shelf.now()
    store.store(timeout("young", now - SECOND))
    store.store(timeout("old", now - 2 * SECOND))
    store.store(timeout("future", now + 600 * SECOND))

    with store.transaction() as transaction:
        found = store.fetch_next_due_timeout(shelf.clock.now(), transaction=transaction)

    assert found is not None
    assert found.id == "old"
    assert [one.id for one in shelf.fetch(store)] == ["old", "young"]


@pytest.mark.behaviour(85)
def test_nothing_due_is_none(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    store.store(timeout("future", shelf.now() + 600 * SECOND))

    with store.transaction() as transaction:
        assert store.fetch_next_due_timeout(shelf.clock.now(), transaction=transaction) is None


def test_a_message_comes_back_as_it_was_stored(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    whole = timeout("naïve ✓", shelf.now() - SECOND, saga="saga", body=bytes(range(256)))

    store.store(whole)

    assert shelf.fetch(store) == [whole]


def test_large_bodies_are_fetched_in_portions(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    begin = shelf.now() - 10 * SECOND
    bodies = [b"a" * (5 * MIB), b"small", b"c" * (5 * MIB), b"d" * (5 * MIB)]
    stored = [timeout(f"t{n}", begin + n * SECOND, body=body) for n, body in enumerate(bodies)]
    store.store_many(stored)

    looks: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "LIMIT" in statement and "body" in statement:
            looks.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", note)
    sub_batches = [fetched_and_removed(shelf, store) for _ in range(2)]
    event.remove(store.database.engine, "before_cursor_execute", note)
    sub_batches.append(fetched_and_removed(shelf, store))

    assert [one for sub_batch in sub_batches for one in sub_batch] == stored
    assert [[one.id for one in sub_batch] for sub_batch in sub_batches] == [
        ["t0", "t1"],
        ["t2"],
        ["t3"],
    ]
    assert len(looks) == 2  # none twice, to see whether there is more


def fetched_and_removed(shelf: Shelf, store: SqlDelayedMessageStore) -> list[Timeout]:
    with store.transaction() as transaction:
        found = store.fetch_due(shelf.clock.now(), 10, transaction=transaction)
        assert store.remove_many(found, transaction=transaction) == len(found)
        return found


@pytest.mark.behaviour(85)
def test_a_fetch_passes_by_messages_that_another_has_fetched(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    now = shelf.now()
    store.store_many([timeout(f"t{n}", now - (9 - n) * SECOND) for n in range(4)])
    other = shelf.store()

    with store.transaction() as ours, other.transaction() as theirs:
        first = store.fetch_due(shelf.clock.now(), 2, transaction=ours)
        second = other.fetch_due(shelf.clock.now(), 4, transaction=theirs)

    assert [one.id for one in first] == ["t0", "t1"]
    assert [one.id for one in second] == ["t2", "t3"]
    assert [one.id for one in shelf.fetch(other)] == ["t0", "t1", "t2", "t3"]


@pytest.mark.behaviour(86)
def test_remove_tells_whether_the_row_was_there(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    one = timeout("one", shelf.now() - SECOND)
    store.store(one)

    with store.transaction() as transaction:
        store.fetch_due(shelf.clock.now(), 1, transaction=transaction)
        assert store.remove(one, transaction=transaction)
        assert not store.remove(one, transaction=transaction)

    assert not store.remove(one)
    assert store.count() == 0


@pytest.mark.behaviour(86, 90, 92)
def test_a_failure_is_counted_and_puts_the_row_off(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    now = shelf.now()
    failing, fine = timeout("failing", now - 9 * SECOND), timeout("fine", now - SECOND)
    store.store_many([failing, fine])

    assert store.increment_failure_count(failing, now + 600 * SECOND)
    assert not store.increment_failure_count(timeout("nobody"), now)

    assert [one.id for one in shelf.fetch(store)] == ["fine"]
    assert store.increment_failure_count(failing, now - 5 * SECOND)
    assert [(one.id, one.attempts, one.due) for one in shelf.fetch(store)] == [
        ("failing", 2, failing.due),
        ("fine", 0, fine.due),
    ]


@pytest.mark.behaviour(87)
def test_next_is_when_the_first_is_to_be_fetched(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    now = shelf.now()
    assert store.next() is None
    store.store(timeout("far", now + 900 * SECOND))
    store.store(timeout("near", now + 600 * SECOND))

    assert store.next() == now + 600 * SECOND
    store.increment_failure_count(timeout("near"), now + 1000 * SECOND)
    assert store.next() == now + 900 * SECOND


@pytest.mark.behaviour(34)
def test_an_id_that_is_stored_is_stored_once(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    now = shelf.now()
    store.store_many([timeout("one", now - 2 * SECOND), timeout("one", now - SECOND)])
    store.store(timeout("one", now - 3 * SECOND))

    assert [one.due for one in shelf.fetch(store)] == [now - 2 * SECOND]


def test_a_fetch_that_begins_at_the_first_known_row_misses_nothing(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    now, other = shelf.now(), shelf.store()
    store.store_many([timeout(f"t{n}", now - SECOND) for n in range(6)])
    with store.transaction() as transaction:
        first = store.fetch_due(shelf.clock.now(), 2, transaction=transaction)
        store.remove_many(first, transaction=transaction)

    other.store(timeout("before", now - 9 * SECOND))
    store.store(timeout("ours", now - 8 * SECOND))

    assert [one.id for one in shelf.fetch(store, 1)] == ["ours"] or not shelf.is_postgres
    assert [one.id for one in shelf.fetch(store)] == ["before", "ours", "t2", "t3", "t4", "t5"]


def test_a_message_that_is_not_removed_is_free_after_each_end_of_the_transaction(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    store.store_many([timeout("a", shelf.now() - 2 * SECOND), timeout("b", shelf.now() - SECOND)])

    def fails() -> None:
        with store.transaction() as transaction:
            assert len(store.fetch_due(shelf.clock.now(), 5, transaction=transaction)) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()

    assert [one.id for one in shelf.fetch(store)] == ["a", "b"]


@pytest.mark.behaviour(94)
def test_in_a_common_transaction_a_rollback_undoes_all_of_it(shelf: Shelf) -> None:
    store = shelf.store(SCOPE)
    store.store(timeout("there", shelf.now() - SECOND))

    with rolled_back(shelf.database) as transaction:
        store.store(timeout("new", shelf.now() - SECOND), transaction=transaction)
        found = store.fetch_due(shelf.clock.now(), 5, transaction=transaction)
        assert {one.id for one in found} == {"there", "new"}
        assert store.remove_many(found, transaction=transaction) == 2

    with shelf.database.begin() as transaction:
        found = store.fetch_due(shelf.clock.now(), 5, transaction=transaction)
    assert [one.id for one in found] == ["there"]


@pytest.mark.behaviour(46, 85)
def test_concurrent_fetches_never_return_the_same_message(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    expected = {f"t{n}" for n in range(120)}
    store.store_many([timeout(name, shelf.now() - SECOND) for name in sorted(expected)])
    got: list[str] = []
    stores = [shelf.store() for _ in range(3)]

    def drain(mine: SqlDelayedMessageStore) -> None:
        for _ in range(1000):
            with mine.transaction() as transaction:
                found = mine.fetch_due(shelf.clock.now(), 7, transaction=transaction)
                removed = mine.remove_many(found, transaction=transaction)
            assert removed == len(found)
            got.extend(one.id for one in found)
            if not mine.count():
                return

    threads = [threading.Thread(target=drain, args=(one,)) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(got) == sorted(expected)


@pytest.mark.behaviour(122)
def test_setting_up_twice_is_fine(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    store.setup_infrastructure(shelf.endpoint)

    assert store.count() == 0


@pytest.mark.behaviour(84, 123)
def test_without_its_table_the_store_does_not_start(shelf: Shelf) -> None:
    with pytest.raises(SchemaMissing, match="timeoutmgr install"):
        shelf.store(install=False)


def test_the_table_is_called_after_the_endpoint(
    shelf: Shelf, store: SqlDelayedMessageStore
) -> None:
    assert inspect(shelf.database.engine).has_table(f"{shelf.endpoint}.delayed")


@pytest.mark.behaviour(98)
@pytest.mark.parametrize(
    "name", ['a "quoted" one', "ba`ck]tick", "per%cent", "with 'apostrophe'", "sélect;--", "%s :x"]
)
def test_any_printable_name_is_quoted(shelf: Shelf, unique: str, name: str) -> None:
    store = shelf.store(table=f"{unique}{name}")
    store.store(timeout("one", shelf.now() - SECOND))

    [found] = shelf.fetch(store)
    assert store.remove(found)


@pytest.mark.parametrize("character", ["n", "ü"])
def test_the_longest_name_is_installed(shelf: Shelf, unique: str, character: str) -> None:
    room = 55 - len(unique)
    name = unique + character * (room // len(character.encode()))
    store = shelf.store(table=name)
    store.setup_infrastructure(shelf.endpoint)

    assert f"{name}.version" in store.ddl(shelf.endpoint)
    assert store.count() == 0


def test_a_name_that_differs_in_case_alone_is_refused(sqlite_url: str) -> None:
    first, second, third = (SqlDelayedMessageStore(sqlite_url) for _ in range(3))
    renamed = SqlDelayedMessageStore(sqlite_url, table="Sales.delayed")
    first.setup_infrastructure("Sales")

    for refused in (second.setup_infrastructure, lambda name: second.initialize(name, SCOPE)):
        with pytest.raises(
            ConfigurationError, match=r"takes the table 'Sales\.delayed' of another"
        ):
            refused("sales")

    first.initialize("Sales", SCOPE)
    renamed.initialize("sales", SCOPE)
    third.setup_infrastructure("SALES-2")
    for store in (first, second, third, renamed):
        store.close()


@pytest.mark.parametrize("last", ["😀", " "])
def test_a_name_that_mysql_cannot_have_is_refused_there(
    shelf: Shelf, unique: str, last: str
) -> None:
    if shelf.is_sqlite or shelf.is_postgres:
        assert shelf.store(table=unique + last).count() == 0
        return
    with pytest.raises(ConfigurationError, match=r"MySQL .* give another name with table="):
        SqlDelayedMessageStore(shelf.url, table=unique + last)


@pytest.mark.behaviour(126)
def test_endpoints_and_tables_are_apart(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    other = shelf.store(endpoint=f"{shelf.endpoint}-other")
    third = shelf.store(table=f"{shelf.endpoint} third")

    store.store(timeout("one", shelf.now() - SECOND))

    assert (other.count(), third.count()) == (0, 0)


def test_a_store_is_that_of_one_endpoint(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    with pytest.raises(ConfigurationError, match="make another store for 'stranger'"):
        store.initialize("stranger", SCOPE)


@pytest.mark.parametrize("name", ["", "x" * 56, "ü" * 28, "line\nbreak"])
def test_a_name_that_some_database_would_change_is_refused(sqlite_url: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="1 to 55 bytes"):
        SqlDelayedMessageStore(sqlite_url, table=name)


def test_an_endpoint_with_too_long_a_name_must_name_its_table(sqlite_url: str) -> None:
    store = SqlDelayedMessageStore(sqlite_url)

    with pytest.raises(ConfigurationError, match="table="):
        store.setup_infrastructure("e" * 48)


def test_a_schema_on_sqlite_is_refused(sqlite_url: str) -> None:
    with pytest.raises(CombinationRefused, match="Name another table"):
        SqlDelayedMessageStore(sqlite_url, schema="sales")


@pytest.mark.behaviour(126)
def test_a_schema_is_created_and_used(postgres_url: str, unique: str) -> None:
    shelf = Shelf(postgres_url, unique)
    with shelf.closing:
        store = shelf.store(schema=f"{unique}s")
        store.store(timeout("one"))

        assert inspect(shelf.database.engine).has_table(f"{unique}.delayed", schema=f"{unique}s")


@pytest.mark.parametrize(
    "broken",
    [
        lambda: timeout("x" * 256),
        lambda: timeout("nul\0"),
        lambda: timeout("one", destination="x" * 256),
    ],
)
def test_text_that_some_database_would_change_is_rejected(
    store: SqlDelayedMessageStore, broken: Callable[[], object]
) -> None:
    with pytest.raises(MessageRejected):
        store.store(broken())  # type: ignore[arg-type]  # a lambda of a parameter

    assert store.count() == 0


def test_an_uninitialized_store_says_so(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="not initialized"):
        SqlDelayedMessageStore(sqlite_url).next()


def test_the_ddl_creates_table_and_index(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    text = store.ddl(shelf.endpoint)

    assert f"{shelf.endpoint}.delayed" in text
    assert "CREATE UNIQUE INDEX" in text


def test_a_large_body_is_stored_whole(shelf: Shelf, store: SqlDelayedMessageStore) -> None:
    large = timeout("large", shelf.now() - SECOND, body=b"x" * 1_000_000)
    store.store(large)

    [found] = shelf.fetch(store)
    assert found.message == Message(
        id=large.message.id, headers=large.message.headers, body=large.message.body
    )

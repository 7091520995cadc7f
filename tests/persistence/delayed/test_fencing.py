from __future__ import annotations

import pytest

from tests.persistence.delayed.conftest import SECOND, Shelf
from tests.persistence.making import NOW, timeout
from timeoutmgr.persistence.delayed.store import CLAIM_TIME


@pytest.fixture
def file(sqlite_url: str, unique: str) -> Shelf:
    return Shelf(sqlite_url, unique)


def test_other_messages_can_be_stored_while_a_message_is_locked(file: Shelf) -> None:
    with file.closing:
        store = file.store()
        store.store(timeout("one", NOW - SECOND))

        with store.transaction() as transaction:
            assert store.fetch_due(NOW, 5, transaction=transaction)
            store.store(timeout("two", NOW - SECOND))
            file.store().store(timeout("three", NOW - SECOND))

        assert [one.id for one in file.fetch(store)] == ["one", "three", "two"]


def test_the_messages_of_a_dead_process_are_free_at_once(file: Shelf) -> None:
    with file.closing:
        dead, living = file.store(), file.store()
        dead.store(timeout("one", NOW - SECOND))
        dead.transaction().__enter__().due(NOW, 5)  # never ended, as when it is killed
        assert file.fetch(living) == []

        dead._liveness.release_all()

        assert [one.id for one in file.fetch(living)] == ["one"]


def test_a_lock_lapses_and_its_owner_then_removes_nothing(file: Shelf) -> None:
    with file.closing:
        paused, other = file.store(), file.store()
        one = timeout("one", NOW - SECOND)
        paused.store(one)

        with paused.transaction() as stale:
            assert paused.fetch_due(NOW, 5, transaction=stale) == [one]
            later = NOW + CLAIM_TIME
            with other.transaction() as fresh:
                assert other.fetch_due(later, 5, transaction=fresh) == [one]
                assert not paused.remove(one, transaction=stale)
                assert other.remove(one, transaction=fresh)


def test_a_late_count_of_a_failure_does_not_end_another_lock(file: Shelf) -> None:
    with file.closing:
        slow, other = file.store(), file.store()
        slow.store(timeout("one", NOW - SECOND))
        [failed] = file.fetch(slow)

        with other.transaction() as transaction:
            [one] = other.fetch_due(NOW, 5, transaction=transaction)
            assert slow.increment_failure_count(failed, NOW + SECOND)

            assert other.remove(one, transaction=transaction)

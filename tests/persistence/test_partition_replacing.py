"""A partition is replaced while all processes go on, and without a wait for any of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from tests.persistence.installations import Make, dispatch_all
from tests.persistence.making import NOW, SECOND, dispatch, timeout
from tests.persistence.ranging import Installation, fill, tend
from timeoutmgr.contracts import CancelResult, ChangeResult, TimeoutFilter
from timeoutmgr.errors import StorageConflict
from timeoutmgr.persistence.sql.partitions import conversion as replacing
from timeoutmgr.persistence.sql.partitions.catalog import ALL, DAY, Change, fresh


def test_everybody_goes_on_while_ranges_are_copied(old: Installation, make: Make) -> None:
    """Concurrent work neither loses, doubles, revives nor advances a timeout."""
    store = old.store()
    kept = fill(store, 3_000, NOW + DAY, 500 * DAY)
    cancelled_ids = fill(store, 300, NOW + DAY + 1, 490 * DAY)
    moved = fill(store, 300, NOW + DAY + 2, 480 * DAY)
    due = fill(store, 600, NOW - DAY, DAY // 2)
    other = make("convert")
    stored: list[str] = []
    sent: list[str] = []
    cancelled: list[CancelResult] = []
    changed: list[ChangeResult] = []

    def storing() -> None:
        mine = old.store()
        for n in range(60):
            batch = [timeout(f"new {n} {m}", NOW + m * 40 * DAY + n * SECOND) for m in range(1, 11)]
            mine.store_many(batch)
            stored.extend(one.id for one in batch)

    def cancelling() -> None:
        mine = old.store()
        cancelled.extend(mine.cancel(name) for name in cancelled_ids)

    def rescheduling() -> None:
        mine = old.store()
        for n, name in enumerate(moved):
            changed.append(mine.reschedule(name, NOW + (n % 500 + 1) * DAY))

    def dispatching() -> None:
        mine = old.store()
        while len(sent) < len(due):
            sent.extend(dispatch(mine, mine.claim(NOW, 20, "o")))

    workers = (storing, cancelling, rescheduling, dispatching)
    with _running(*workers, lambda: _tend_until_fresh(other)):
        _tend_until_fresh(old)

    assert list(old.ranges) == fresh(NOW)
    assert sorted(sent) == sorted(due)
    assert set(cancelled) == {CancelResult.CANCELLED}
    assert set(changed) == {ChangeResult.CHANGED}
    pending = store.list(TimeoutFilter(), limit=10_000)
    assert sorted(one.id for one in pending) == sorted([*kept, *moved, *stored])
    by_name = {one.id: one.due for one in pending}
    assert [by_name[name] for name in moved] == [
        NOW + (n % 500 + 1) * DAY for n in range(len(moved))
    ]
    assert old.leftovers() == []
    old.clock.at = NOW + 600 * DAY
    assert sorted(dispatch_all(old)) == sorted([*kept, *moved, *stored])


def test_a_dispatcher_at_work_is_not_waited_for(new: Installation) -> None:
    store = new.store()
    store.store_many([timeout("a")])
    far = new.of(NOW + 20 * DAY)
    assert far.start is not None
    chunk = store.claim(NOW, 9, "o")
    new.clock.at = far.start - DAY

    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        store.run_maintenance()
        assert far in new.ranges
        assert [one.id for one in locked.timeouts] == ["a"]

    tend(store)
    assert far not in new.ranges


def test_a_writer_at_work_is_not_waited_for(old: Installation) -> None:
    store = old.store()
    fill(store, 1_500, NOW + DAY, 400 * DAY)

    with old.persistence.database.begin() as connection:
        store.store_many([timeout("open", NOW + DAY)], transaction=connection)
        with pytest.raises(StorageConflict):
            replacing.replace(old.whole, _conversion(), most=10_000)
        with pytest.raises(StorageConflict):
            replacing.prepare(old.whole, _conversion())
        assert list(old.ranges) == [ALL]

    tend(store)
    assert list(old.ranges) == fresh(NOW)
    assert store.count(TimeoutFilter()) == 1_501


def test_a_table_that_is_never_free_is_left_in_peace_after_a_few_tries(new: Installation) -> None:
    store = new.store()
    new.clock.at = NOW + 30 * DAY

    with new.persistence.database.begin() as connection:
        connection.execute(text(f"LOCK TABLE {new.read_layout().whole} IN SHARE MODE"))
        tries = [store.run_maintenance() for _ in range(10)]

    assert tries == [True] * 9 + [False]
    tend(store)
    assert list(new.ranges) == fresh(new.clock.at)


def _conversion() -> Change:
    return Change((ALL,), tuple(fresh(NOW)))


def _tend_until_fresh(installation: Installation) -> None:
    store = installation.store()
    while list(installation.ranges) != fresh(NOW):
        store.run_maintenance()
    tend(store)


@contextmanager
def _running(*works: Callable[[], None]) -> Iterator[None]:
    """Run *works* in threads beside the body; raise the first error of a thread."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []

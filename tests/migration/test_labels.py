"""Labels go where their timeouts go, and leave no row behind."""

from __future__ import annotations

from dataclasses import replace

from tests.migration.conftest import HOUR, Move, names, pending, some
from tests.migration.test_aborting import _with_state
from tests.persistence.making import NOW
from tests.persistence.test_labels import kept
from timeoutmgr.contracts import Outcome, OutcomeKind, Timeout, TimeoutFilter
from timeoutmgr.message.labels import label_headers
from timeoutmgr.message.message import with_headers
from timeoutmgr.migration import BatchState
from timeoutmgr.migration.batch_step import hide, send


def labelled(one: Timeout) -> Timeout:
    given = label_headers({"task": "t", "name": one.id})
    return replace(one, message=with_headers(one.message, {**one.message.headers, **given}))


def rows_of(timeouts: list[Timeout]) -> list[tuple[str, int, str]]:
    return sorted(
        (one.id, one.key.due, label) for one in timeouts for label in ("task=t", f"name={one.id}")
    )


def test_all_labels_arrive_and_none_is_left(moves: Move) -> None:
    given = [labelled(one) for one in some(8)]
    moves.source.store_many(given)
    moves.clock.at = given[0].due
    chunk = moves.source.claim(moves.clock.at, 1, "o")
    [tried] = chunk.keys
    with moves.source.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        later = NOW + 2 * HOUR
        locked.close(
            [Outcome(key=tried, kind=OutcomeKind.RETRY, at=moves.clock.at, next_try=later)]
        )
    moves.clock.at = NOW

    moves.run()

    arrived = pending(moves.target)
    assert sorted(names(arrived)) == sorted(names(given))
    assert max(one.key.due for one in arrived) == later
    assert kept(moves.target) == rows_of(arrived)
    assert kept(moves.source) == []
    found = moves.target.list(TimeoutFilter(labels=("name=t003",)))
    assert names(found) == ["t003"]


def test_after_an_abort_each_store_has_the_labels_of_its_timeouts(moves: Move) -> None:
    moves.source.store_many([labelled(one) for one in some(9)])
    parts = moves.parts()
    run = moves.begin(parts)
    batches = [*parts.ledger.batches(run.id)]
    send(parts, run, hide(parts, run, batches[0]))
    halfway = hide(parts, run, batches[1])
    items = parts.source.read(run.id, halfway)
    parts.ledger.move_batch(run.id, _with_state(halfway, BatchState.SENDING))
    parts.target.deliver(run.id, halfway, items[:1])
    parts.close()

    moves.abort()

    assert len(pending(moves.target)) == 4
    for store in (moves.source, moves.target):
        assert kept(store) == rows_of(pending(store))

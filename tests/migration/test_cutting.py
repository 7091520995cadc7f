"""A store is cut into batches, the nearest due first, and none larger than fits into memory."""

from __future__ import annotations

import pytest

from tests.migration.conftest import HOUR, Move, pending
from tests.persistence.making import NOW, timeout
from timeoutmgr.migration import Window
from timeoutmgr.migration import runs as cutting


def test_batches_are_cut_nearest_due_first_also_among_many_of_one_instant(moves: Move) -> None:
    moves.source.store_many([timeout(f"t{number}", NOW + HOUR) for number in range(8)])
    moves.source.store_many([timeout("a", NOW + 2 * HOUR)])
    parts = moves.parts()

    ranges = [*parts.source.ranges(Window(), 3)]

    assert [(one.first.id, one.last.id, one.count) for one in ranges] == [
        ("t0", "t2", 3),
        ("t3", "t5", 3),
        ("t6", "a", 3),
    ]
    assert [*parts.source.ranges(Window(), 4)][-1].count == 1


def test_a_batch_of_large_bodies_has_as_many_as_fit_into_memory(
    moves: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "MOST_BYTES", 1_000)
    sizes = [500, 500, 1, 2_000, 600, 300, 100, 1, 10]
    moves.source.store_many(
        [timeout(f"t{n}", NOW + HOUR + n, body=bytes(size)) for n, size in enumerate(sizes)]
    )
    parts = moves.parts()

    ranges = [*parts.source.ranges(Window(), 3)]

    assert [(one.first.id, one.last.id, one.count) for one in ranges] == [
        ("t0", "t1", 2),
        ("t2", "t2", 1),
        ("t3", "t3", 1),
        ("t4", "t6", 3),
        ("t7", "t8", 2),
    ]
    report = moves.run()
    assert (report.batches, report.collected) == (5, 9)
    assert len(pending(moves.target)) == 9

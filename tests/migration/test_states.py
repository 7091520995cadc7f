"""The two state machines, exhaustively."""

from __future__ import annotations

import pytest

from timeoutmgr.migration.runs import (
    BatchState,
    MigrationRunState,
    batch_may_become,
    run_may_become,
)

RUN_STEPS = {
    ("planned", "running"),
    ("planned", "aborting"),
    ("planned", "aborted"),
    ("running", "completed"),
    ("running", "aborting"),
    ("aborting", "aborted"),
}
BATCH_STEPS = {
    ("pending", "hidden"),
    ("hidden", "sending"),
    ("hidden", "returned"),
    ("sending", "done"),
    ("sending", "returned"),
}


@pytest.mark.parametrize("now", MigrationRunState)
@pytest.mark.parametrize("then", MigrationRunState)
def test_a_run_makes_only_the_drawn_steps(now: MigrationRunState, then: MigrationRunState) -> None:
    drawn = now is then or (now.value, then.value) in RUN_STEPS

    assert run_may_become(now, then) is drawn
    assert now.is_over is (now.value in {"completed", "aborted"})


@pytest.mark.parametrize("now", BatchState)
@pytest.mark.parametrize("then", BatchState)
def test_a_batch_makes_only_the_drawn_steps(now: BatchState, then: BatchState) -> None:
    drawn = now is then or (now.value, then.value) in BATCH_STEPS

    assert batch_may_become(now, then) is drawn
    assert now.is_open is (now.value in {"hidden", "sending"})

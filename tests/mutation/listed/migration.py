"""Migrations: a moved timeout is in one place, whichever process dies or comes late."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_LEAVING = "persistence/sql/migration/source.py"
_ARRIVING = "persistence/sql/migration/target.py"
_MOVING = "timeoutmgr/migration/batch_step.py"
_RETURNING = "timeoutmgr/migration/batch_step.py"
_LEDGER = "persistence/sql/migration/ledger.py"
_CLAIMING = "tests/migration/test_claiming.py"
_STORES = "tests/migration/test_store_to_store.py"

MUTANTS = (
    Mutant(
        name="a hidden timeout can be cancelled",
        promise="What is on its way is never cancelled and delivered.",
        file="persistence/sql/commands.py",
        before="        if row is None or row.hidden_by is not None:\n",
        after="        if row is None:\n",
        tests=(
            "tests/migration/test_hiding.py::"
            "test_on_its_way_and_after_it_a_timeout_cannot_be_cancelled_or_moved_here[sqlite]",
        ),
    ),
    Mutant(
        name="the fence of a run is not looked at",
        promise="After an abort a late process delivers nothing.",
        file=_ARRIVING,
        before="        if state != OPEN:\n",
        after="        if state is None:\n",
        tests=(
            "tests/migration/test_aborting.py::"
            "test_after_an_abort_the_target_takes_nothing_from_a_late_process[sqlite]",
        ),
    ),
    Mutant(
        name="what left leaves no tombstone",
        promise="A redelivered store message does not bring back what was moved.",
        file=_LEAVING,
        before="""\
        self._context.writing.close_keys(connection, ids, TimeoutState.MIGRATED, at)
        reach("leaving.keys_closed")
        record(
""",
        after="""\
        reach("leaving.keys_closed")
        record(
""",
        tests=(
            "tests/migration/test_hiding.py::"
            "test_on_its_way_and_after_it_a_timeout_cannot_be_cancelled_or_moved_here[sqlite]",
        ),
    ),
    Mutant(
        name="what left PostgreSQL leaves a key that says pending",
        promise="A redelivered store message does not bring back what was moved.",
        file="persistence/sql/migration/source.py",
        before=".values(state=_STATE, closed_at=at)",
        after=".values(closed_at=at)",
        tests=(
            "tests/migration/test_hiding.py::"
            "test_on_its_way_and_after_it_a_timeout_cannot_be_cancelled_or_moved_here[postgres]",
        ),
    ),
    Mutant(
        name="what is due soon is moved as well",
        promise="Nothing is late by being moved.",
        file="timeoutmgr/migration/runs.py",
        before="max(cutoff, now + self.safety)",
        after="max(cutoff, now)",
        tests=(
            "tests/migration/test_windows.py::"
            "test_a_timeout_due_within_the_safety_window_is_left_to_the_source[sqlite]",
        ),
    ),
    Mutant(
        name="an abort does not ask the target",
        behaviour=134,
        promise="An abort puts back only what is not at the target.",
        file=_RETURNING,
        before="    if batch.state is BatchState.SENDING and parts.target.knows_what_it_has:\n",
        after="    if batch.state is BatchState.DONE and parts.target.knows_what_it_has:\n",
        tests=(
            "tests/migration/test_aborting.py::"
            "test_an_abort_puts_back_only_timeouts_that_are_not_at_the_target[sqlite]",
        ),
    ),
    Mutant(
        name="what is hidden and not written down is not looked for",
        behaviour=134,
        promise="An abort leaves another product's table whole.",
        file=_RETURNING,
        before="    if batch.state is not BatchState.PENDING or ",
        after="    if batch.state is not BatchState.HIDDEN or ",
        tests=(
            "tests/crash/test_foreign_table.py::"
            "test_an_abort_that_dies_at_one_point_after_the_other_is_finished",
        ),
    ),
    Mutant(
        name="a batch that was read in part goes on",
        promise="Counts that do not agree stop a run.",
        file=_MOVING,
        before="    if first != second:\n",
        after="    if first < second:\n",
        tests=(
            f"{_STORES}::test_counts_that_do_not_agree_stop_the_run_with_everything_in_its_place[sqlite]",
        ),
    ),
    Mutant(
        name="one store under two names is not noticed",
        promise="A store that is moved into itself loses nothing.",
        file="timeoutmgr/migration/run.py",
        before="    if parts.source.is_same_store_as_target(run.id):\n",
        after="    if False:\n",
        tests=(
            "tests/migration/test_preparing.py::"
            "test_one_store_under_two_names_is_noticed_before_anything_is_lost[sqlite]",
        ),
    ),
    Mutant(
        name="a chunk of a level is acknowledged before it is stored",
        behaviour=132,
        promise="A drain that dies loses nothing.",
        file="timeoutmgr/migration/levels/drain.py",
        before="        delivered = _accept(parts, run, batch, relay, messages)\n",
        after="        relay.ack([one.relayed for one in messages])\n"
        '        reach("draining.delivered")\n'
        "        delivered = _accept(parts, run, batch, relay, messages)\n",
        tests=(
            "tests/crash/test_draining.py::"
            "test_a_drain_that_dies_at_one_point_after_the_other_is_finished",
        ),
    ),
    Mutant(
        name="a batch is written by who has lost it",
        promise="A process that lost its life and does not know gets no further.",
        file="persistence/sql/migration/ledger.py",
        before="        if name != batch.claim:\n",
        after="        if False:\n",
        tests=(
            f"{_CLAIMING}::test_a_worker_that_lost_its_batch_writes_nothing_more_of_it[sqlite]",
        ),
    ),
    Mutant(
        name="a batch that another has in hand is taken",
        promise="No two move one batch at once.",
        file=_LEDGER,
        before="batches.c.no.not_in(others)",
        after="batches.c.no.not_in([])",
        tests=(f"{_CLAIMING}::test_workers_get_different_batches_the_nearest_due_first[sqlite]",),
    ),
    Mutant(
        name="a worker goes on for a runner that another has followed",
        promise="What outlives its runner gets no further batch.",
        file=_LEDGER,
        before="        if runner != run.runner:\n",
        after="        if runner is None:\n",
        tests=(
            f"{_CLAIMING}::test_no_batch_is_claimed_for_a_runner_that_another_runner_replaced[sqlite]",
        ),
    ),
    Mutant(
        name="what a mover failed at is tried by the next",
        promise="What failed is not sent once more at once.",
        file="timeoutmgr/migration/movers.py",
        before="            parts.ledger.set_aside(run, batch)\n",
        after="            pass\n",
        tests=(
            "tests/migration/test_movers.py::"
            "test_what_a_mover_failed_at_is_left_by_the_others_and_moved_by_the_next_run",
        ),
    ),
)

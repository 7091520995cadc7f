"""Batches of handlers: settle begun messages alone, undo failed ones alone, give back the rest."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_PUMP = "timeoutmgr/transport/pump.py"
_PROGRESS = "timeoutmgr/transport/batch_progress.py"
_PROGRESS_TESTS = "tests/transport/test_batch_progress.py"
_BATCHES = "tests/transport/sql/test_handler_batches.py"
_GIVING = "tests/transport/sql/test_giving_back.py"
_UNDONE_ALONE = (
    f"{_BATCHES}::test_a_failed_message_leaves_no_effect_and_takes_none_from_its_neighbours"
)

MUTANTS = (
    Mutant(
        name="a message that was not begun is acknowledged",
        promise="Only messages that a handler has begun leave the queue.",
        file=_PUMP,
        before="                self._settle_handled(progress.begun, work)\n",
        after="                self._settle_handled(progress.batch, work)\n",
        tests=(f"{_GIVING}::test_a_slow_handler_with_the_only_writer_is_not_waited_for",),
    ),
    Mutant(
        name="the effects of a failed message are kept",
        promise="A failed message leaves no effect in the commit of its neighbours.",
        file="timeoutmgr/endpoint/handlers.py",
        before="            context.undo(with_all=alone or isinstance(error, UNDOING_ALL))\n",
        after="",
        tests=(_UNDONE_ALONE,),
    ),
    Mutant(
        name="a message that was begun is given back",
        promise="A message is handled here or given back, and never both.",
        file=_PROGRESS,
        before="            behind = self._withdrawn()\n",
        after="            behind = [*self._begun[-1:], *self._withdrawn()]\n",
        tests=(
            f"{_PROGRESS_TESTS}::test_messages_behind_a_slow_one_are_given_back_and_never_begun",
        ),
    ),
    Mutant(
        name="messages are given back after the end of their batch",
        promise="The receiver is its pump's alone again before the batch is acknowledged.",
        file=_PROGRESS,
        before="            if self._is_closed or not self._begun or self._is_relieved:\n",
        after="            if not self._begun or self._is_relieved:\n",
        tests=(f"{_PROGRESS_TESTS}::test_nothing_is_given_back_after_the_end_of_the_batch",),
    ),
    Mutant(
        name="giving back waits for the writer that waits for it",
        promise="A slow handler on SQLite ends when it ends, not 20 seconds later.",
        file="timeoutmgr/transport/sql/receiver.py",
        before="patient=False)\n",
        after="patient=True)\n",
        tests=(f"{_GIVING}::test_a_slow_handler_with_the_only_writer_is_not_waited_for",),
    ),
    Mutant(
        name="messages with lost leases are begun",
        promise="After a lost lease no further message of the batch is handled here.",
        file=_PUMP,
        before="self._leave(progress.withdraw(), opened.receiver)",
        after="self._leave(progress.begun, opened.receiver)",
        tests=(f"{_GIVING}::test_no_message_that_waits_is_begun_after_a_lost_lease",),
    ),
)

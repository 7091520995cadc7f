"""Options and owners of queues that kombu declared."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_SQL = "timeoutmgr/transport/sql"
_TESTS = "tests/transport/sql/test_queue_options.py"

MUTANTS = (
    Mutant(
        name="lower priorities first",
        promise="Messages of a higher priority arrive first.",
        file=f"{_SQL}/options.py",
        before="-1 - min(max(asked, 0), highest)",
        after="-1 - highest + min(max(asked, 0), highest)",
        tests=(
            f"{_TESTS}::test_higher_priorities_arrive_first_and_equal_priorities_in_order[sqlite]",
        ),
    ),
    Mutant(
        name="consumers are given messages whose time is over",
        promise="A message whose time to live is over is never received.",
        file=f"{_SQL}/statements.py",
        before="messages.discard_at.is_(None) | (messages.discard_at > self.now)",
        after="messages.discard_at.is_(None) | (messages.discard_at > 0)",
        tests=(f"{_TESTS}::test_a_message_whose_time_to_live_is_over_is_never_received",),
    ),
    Mutant(
        name="a full queue takes one more message",
        promise="A full queue refuses a message.",
        file=f"{_SQL}/limits.py",
        before="name: limit - self._length(name)",
        after="name: limit + 1 - self._length(name)",
        tests=(f"{_TESTS}::test_a_full_queue_refuses_a_message_and_keeps_its_messages[sqlite]",),
    ),
    Mutant(
        name="a durable queue goes with its dead owner",
        promise="Only a temporary queue goes with its dead owner.",
        file=f"{_SQL}/owned_queues.py",
        before="if left is None and options.is_temporary:",
        after="if left is None:",
        tests=(f"{_TESTS}::test_a_durable_queue_that_expires_outlives_its_dead_consumer",),
    ),
    Mutant(
        name="a queue in use expires",
        promise="A queue with a consumer does not expire.",
        file=f"{_SQL}/owned_queues.py",
        before="self._set_consuming(queue, 1, connection)",
        after="self._set_consuming(queue, 0, connection)",
        tests=(f"{_TESTS}::test_an_unused_queue_expires_and_a_consumed_queue_does_not",),
    ),
    Mutant(
        name="a queue goes with its first owner",
        promise="A temporary queue goes with the last of its owners.",
        file=f"{_SQL}/owned_queues.py",
        before='left = connection.execute(self._statements.of_queue, {"queue": queue}).first()',
        after="left = None",
        tests=(
            f"{_TESTS}::test_a_killed_process_leaves_its_durable_queue_and_nothing_else[sqlite]",
        ),
    ),
)

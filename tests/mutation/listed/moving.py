"""Moving due timeouts into queues of the same database."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_MOVING = "persistence/sql/dispatch/in_database.py"
_ROWS = "timeoutmgr/transport/sql/queues.py"
_TESTS = "tests/persistence/test_moving.py"

MUTANTS = (
    Mutant(
        name="what has the id is moved, wherever it stands now",
        promise="A timeout that was moved on in time is not sent by an old order.",
        file=_MOVING,
        before="if (row[0], row[1]) in asked and self._allows(row[2])",
        after="if self._allows(row[2])",
        tests=(f"{_TESTS}::test_a_rescheduled_timeout_is_left_at_its_new_due_time",),
    ),
    Mutant(
        name="a claim ends with the first of its timeouts",
        promise="What a claim covers is handed out to nobody else while it is not closed.",
        file=_MOVING,
        before='token if len(moved) == len(asked) else ""',
        after="token",
        tests=(f"{_TESTS}::test_a_claim_ends_with_the_last_of_its_timeouts_and_not_before",),
    ),
    Mutant(
        name="a header that steers a broker travels on",
        promise="Headers that steer a broker are not passed on.",
        file=_ROWS,
        before="sorted(BROKER_HEADERS)",
        after="sorted(BROKER_HEADERS - {'cc'})",
        tests=(
            f"{_TESTS}::test_a_message_that_needs_more_than_a_move_is_left_and_its_neighbours_are_not"
            "[a header that steers a broker]",
        ),
    ),
    Mutant(
        name="messages are queued as they are found",
        promise="Within a chunk messages are queued in the order in which they are due.",
        file=_ROWS,
        before=".order_by(*order)",
        after=".order_by(source.message_id.desc())",
        tests=(f"{_TESTS}::test_messages_are_queued_in_the_order_in_which_they_are_due",),
    ),
    Mutant(
        name="a move tells other processes of no queue",
        promise="A receiver in another process is woken by the commit of a move.",
        file=_MOVING,
        before='given["announced"] = announced',
        after='given["announced"] = "[]"',
        tests=(f"{_TESTS}::test_other_processes_are_woken_by_the_commit_of_a_move_and_not_before",),
    ),
    Mutant(
        name="a claim goes on behind one that was undone",
        promise="What a transaction claimed that came to nothing is claimed next.",
        file="persistence/sql/claim/claimer.py",
        before="after_commit(connection, lambda: self._go_on_behind(result))",
        after="self._go_on_behind(result)",
        tests=(
            "tests/persistence/test_bursts.py::"
            "test_a_claim_in_a_transaction_goes_on_behind_the_last_committed_claim[sqlite]",
        ),
    ),
)

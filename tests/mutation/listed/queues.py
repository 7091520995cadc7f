"""Our queue in a database: order, leases, and one transaction."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_SQL = "timeoutmgr/transport/sql"
_STATEMENTS = f"{_SQL}/statements.py"
_LEASES = f"{_SQL}/leases.py"
_TESTS = "tests/transport/sql"

MUTANTS = (
    Mutant(
        name="messages out of their order",
        promise="Messages of a queue are handed out in the order in which they came.",
        file=_STATEMENTS,
        before="self.order = self.in_queue, [messages.sequence]",
        after="self.order = self.in_queue, [messages.sequence.desc()]",
        tests=(
            f"{_TESTS}/test_queue.py::"
            "test_messages_arrive_in_the_order_in_which_they_were_sent[sqlite]",
        ),
    ),
    Mutant(
        name="a leased message is free for all",
        promise="A leased message goes to nobody else.",
        file=_STATEMENTS,
        before="(messages.available_at <= self.now) & (messages.lease_until <= self.now)",
        after="messages.available_at <= self.now",
        tests=(
            f"{_TESTS}/test_leases.py::test_a_leased_message_goes_to_no_receiver_of_another_transport[sqlite]",
        ),
    ),
    Mutant(
        name="an acknowledgement takes the lease of another owner",
        promise="A lost lease settles nothing.",
        file=_STATEMENTS,
        before='chosen & mine & (messages.delivery_count == bindparam("delivery"))',
        after='chosen & (bindparam("me") != "") & (bindparam("delivery") > 0)',
        tests=(
            f"{_TESTS}/test_leases.py::"
            "test_a_message_leased_again_after_a_lapse_cannot_be_acknowledged_by_the_old_owner[sqlite]",
        ),
    ),
    Mutant(
        name="an acknowledgement takes a later lease of the same owner",
        promise="An older delivery settles nothing of a newer one.",
        file=_STATEMENTS,
        before='(messages.delivery_count == bindparam("delivery"))',
        after='(bindparam("delivery") > 0)',
        tests=(
            f"{_TESTS}/test_leases.py::test_an_older_lease_of_the_same_owner_is_not_honoured[sqlite]",
        ),
    ),
    Mutant(
        name="a lost lease is not told",
        promise="A step whose message another consumer has is undone.",
        file=_LEASES,
        before="        if settled < len(tags):\n",
        after="        if settled < 0:\n",
        tests=(
            f"{_TESTS}/test_transactions.py::test_a_lost_lease_raises_inside_the_transaction[sqlite]",
        ),
    ),
    Mutant(
        name="the lease of a living owner is freed",
        promise="Only the leases of the dead are free before their time.",
        file=_LEASES,
        before="        dead = self.session_locks.dead_owners(others) if others else set()\n",
        after="        dead = others\n",
        tests=(
            f"{_TESTS}/test_leases.py::test_a_leased_message_goes_to_no_receiver_of_another_transport[sqlite]",
        ),
    ),
    Mutant(
        name="the leases of the dead are not freed",
        promise="What a killed consumer had in hand is back at once.",
        file=_LEASES,
        before="        dead = self.session_locks.dead_owners(others) if others else set()\n",
        after="        dead = set[str]()\n",
        tests=(
            f"{_TESTS}/test_leases.py::test_messages_of_a_killed_consumer_return_at_once[sqlite]",
        ),
    ),
    Mutant(
        name="the acknowledgement is committed before its transaction",
        promise="Settling, storing and sending are one transaction.",
        file=_LEASES,
        before="return self._database.run(settle) if connection is None else settle(connection)",
        after="return self._database.run(settle)",
        tests=(
            f"{_TESTS}/test_transactions.py::"
            "test_a_rollback_undoes_receipt_and_send_and_keeps_the_lease[postgres]",
        ),
    ),
    Mutant(
        name="a send is committed before its transaction",
        promise="What is sent in a transaction that rolls back was never sent.",
        file=f"{_SQL}/queues.py",
        before="kept = self._insert(rows, names, connection)\n",
        after="kept = self._database.run(lambda own: self._insert(rows, names, own))\n",
        tests=(
            f"{_TESTS}/test_transactions.py::"
            "test_a_rollback_undoes_receipt_and_send_and_keeps_the_lease[postgres]",
        ),
    ),
    Mutant(
        name="receivers are woken before the commit",
        promise="A receiver is woken by what it can see.",
        file=f"{_SQL}/queues.py",
        before="            after_commit(connection, lambda: self._wakeups.notify(there))\n",
        after="            self._wakeups.notify(there)\n",
        tests=(
            f"{_TESTS}/test_transactions.py::test_a_rolled_back_send_wakes_no_receiver[sqlite]",
        ),
    ),
    Mutant(
        name="a rollback does what was to follow the commit",
        promise="What follows a commit never follows a rollback.",
        file="timeoutmgr/database/commits.py",
        before="""\
    pending = None if connection.invalidated else connection.info.get(_KEY)
    if pending is not None:
""",
        after="""\
    pending = None if connection.invalidated else connection.info.get(_KEY)
    if pending is not None:
        pending.committed += pending.open
""",
        tests=(
            f"{_TESTS}/test_transactions.py::test_a_rolled_back_send_wakes_no_receiver[sqlite]",
        ),
    ),
    Mutant(
        name="an undone acknowledgement lets the message go",
        promise="After a rollback the message is still its consumer's, and its lease is kept.",
        file=f"{_SQL}/receiver.py",
        before="            after_commit(transaction, lambda: self._forget(tags))\n",
        after="            self._forget(tags)\n",
        tests=(
            f"{_TESTS}/test_transactions.py::"
            "test_a_rollback_undoes_receipt_and_send_and_keeps_the_lease[sqlite]",
        ),
    ),
    Mutant(
        name="a lease whose answer was lost is left alone",
        promise="A message that no consumer has is free.",
        file=_LEASES,
        before="                self._doubtful[queue] = front\n",
        after="",
        tests=(
            f"{_TESTS}/test_unreleased_leases.py::"
            "test_a_lease_of_kombu_whose_answer_was_lost_is_released_beside_the_kept_leases",
        ),
    ),
    Mutant(
        name="a process hears of its own message again",
        promise="A wakeup costs one look.",
        file=f"{_SQL}/wakeups.py",
        before="        if self._own_signature() not in queues:\n",
        after="        if queues:\n",
        tests=(
            f"{_TESTS}/test_waiting.py::"
            "test_a_process_does_not_hear_of_its_own_message_a_second_time",
        ),
    ),
)

"""The delayed message store: attempts, pauses, and the order of steps."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_DUE = "satellites/delayed_store/adapter.py"
_STEP = "satellites/delivery/dispatch.py"
_DUE_TESTS = "tests/satellites/test_due.py"
_DEAD_LETTER_TESTS = "tests/satellites/test_delayed_dead_letters.py"

MUTANTS = (
    Mutant(
        name="a row goes although the error queue did not take its copy",
        behaviour=91,
        promise="The error queue has a message before its row is removed.",
        file=_STEP,
        before="        if answer is SendResult.CONFIRMED:\n",
        after="        if answer:\n",
        tests=(f"{_DUE_TESTS}::test_without_an_error_queue_each_row_stays",),
    ),
    Mutant(
        name="an outage costs an attempt",
        promise="While no answer comes no message loses an attempt.",
        file=_STEP,
        before="return self.is_undeliverable or self.answer is SendResult.REFUSED",
        after="return True",
        tests=(f"{_DUE_TESTS}::test_an_outage_of_the_broker_costs_no_attempt",),
    ),
    Mutant(
        name="a failing message is not put off",
        behaviour=92,
        promise="A failing row backs off, and those behind it flow.",
        file=_DUE,
        before="self.batches.now() + back_off(timeout.attempts)",
        after="self.batches.now()",
        tests=(f"{_DUE_TESTS}::test_a_failing_row_backs_off_and_delays_no_other",),
    ),
    Mutant(
        name="what others hold is looked at without a rest",
        behaviour=87,
        promise="What is due and in other hands makes no hot loop.",
        file="satellites/delayed_store/adapter.py",
        before="return self.now() + _EMPTY_POLL_DELAY",
        after="return self.now()",
        tests=(
            f"{_DUE_TESTS}::test_a_due_message_locked_by_another_process_is_tried_again_a_second_later",
        ),
    ),
    Mutant(
        name="due by this host's clock alone",
        behaviour=26,
        promise="Nothing is early by the store's clock.",
        file="satellites/delayed_store/receiver.py",
        before="        now = self.batches.now()\n",
        after="        now = self.clock.now()\n",
        tests=(
            "tests/satellites/test_delayed.py::"
            "test_a_message_that_is_not_due_by_the_stores_clock_is_stored",
        ),
    ),
    Mutant(
        name="initialized before it is set up",
        behaviour=83,
        promise="The store is set up before it is initialized.",
        file="timeoutmgr/features/delayed_delivery.py",
        before="""\
                self.set_up()
            self.store.initialize(self.endpoint, self.mode)
""",
        after="""\
                self.store.initialize(self.endpoint, self.mode)
                self.set_up()
            self.store.initialize(self.endpoint, self.mode)
""",
        tests=(
            "tests/features/test_delayed_delivery.py::"
            "test_set_up_runs_once_before_initialize_runs_once",
        ),
    ),
    Mutant(
        name="a row goes although its dead letter has no place",
        promise="What cannot be delivered is kept until it lies in a dead-letter queue.",
        file="satellites/delivery/forwarder.py",
        before="""\
            settled=settlement.settled,
            postponed=settlement.postponed,
""",
        after="            settled=[*settlement.settled, *settlement.postponed],\n",
        tests=(
            f"{_DEAD_LETTER_TESTS}::"
            "test_while_the_dead_letter_store_is_away_it_rests_and_neighbours_are_sent_once",
        ),
    ),
    Mutant(
        name="a full node holds up its neighbours",
        promise="A full node holds up only what is to be buried.",
        file="timeoutmgr/deadletter/policies.py",
        before="work.scope is None or isinstance(error, NodeFull)",
        after="work.scope is None",
        tests=(f"{_DEAD_LETTER_TESTS}::test_in_one_transaction_a_full_node_postpones_its_message",),
    ),
    Mutant(
        name="a kept message is kept for the queue of the delayed ones",
        promise="Its acknowledgement finds what its source keeps.",
        file="timeoutmgr/message/routes.py",
        before="    return named or outgoing.destination\n",
        after="    return outgoing.destination\n",
        tests=(f"{_DEAD_LETTER_TESTS}::test_a_kept_message_has_arrived_where_it_is_finally_for",),
    ),
)

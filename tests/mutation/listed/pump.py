"""The pump and its unit of work: settle last, undo together, lose nothing while parts are away."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_PUMP = "timeoutmgr/transport/pump.py"
_WORK = "timeoutmgr/transport/work.py"
_HANDLERS = "timeoutmgr/endpoint/handlers.py"
_TESTS = "tests/transport/test_pump.py"
_WORK_TESTS = "tests/transport/test_work.py"

MUTANTS = (
    Mutant(
        name="ack before the step",
        promise="A message is acknowledged only when its step has committed.",
        file=_PUMP,
        before="""\
            try:
                self._what.step(progress.batch, work)
            except HandlerStopped as error:
                failure = self._failure_of(error)
                if failure is error:
                    raise
                raise failure from error
            finally:
                progress.close()
            reach("pump.handled")
            if self._around.mode is not TransactionMode.NONE:
                self._settle_handled(progress.begun, work)
""",
        after="""\
            try:
                if self._around.mode is not TransactionMode.NONE:
                    self._settle_handled(progress.begun, work)
                self._what.step(progress.batch, work)
            finally:
                progress.close()
            reach("pump.handled")
""",
        tests=(f"{_TESTS}::test_a_message_is_acknowledged_only_after_its_step",),
    ),
    Mutant(
        name="consuming goes on while the storage is away",
        behaviour=32,
        promise="During an outage of the storage nothing is consumed.",
        file=_PUMP,
        before="""\
            except StorageUnavailable as error:
                self._sit_out(error)
""",
        after="""\
            except StorageUnavailable as error:
                self._around.stop.wait(self._broker.failure(error))
""",
        tests=(
            "tests/transport/test_pump_outages.py::"
            "test_during_an_outage_of_the_storage_nothing_is_consumed",
        ),
    ),
    Mutant(
        name="an outage counts as the message's fault",
        behaviour=32,
        promise="Nothing is moved to the error queue because a part was away.",
        file=_PUMP,
        before="""\
            if self._around.mode is not TransactionMode.NONE:
                raise
            # They have left""",
        after="""\
            # They have left""",
        tests=(
            "tests/transport/test_pump_outages.py::"
            "test_while_the_storage_is_away_messages_are_neither_acknowledged_nor_moved",
        ),
    ),
    Mutant(
        name="an empty look proves that the storage works",
        promise="Only the storage itself ends its outage.",
        file="timeoutmgr/transport/delivery_policy.py",
        before="        if not proved:\n",
        after="        if not proved and self.breaker is None:\n",
        tests=(
            "tests/transport/test_pump_outages.py::"
            "test_an_empty_receive_does_not_disarm_a_storage_that_is_away",
        ),
    ),
    Mutant(
        name="a pump that works ends the outages of all pumps",
        promise="Only the pump that met an outage ends it.",
        file=_PUMP,
        before="        if self._is_cut_off:\n            self._end_cut_off()\n        for",
        after="        self._end_cut_off()\n        for",
        tests=(
            "tests/transport/test_pump_outages.py::"
            "test_a_pump_that_works_ends_no_outage_that_another_pump_met",
        ),
    ),
    Mutant(
        name="an outage triggers amid a handler that takes long",
        promise="A handler that takes long after a short outage triggers nothing.",
        file="timeoutmgr/resilience/breakers.py",
        before="        self._is_retrying = True\n",
        after="        self._is_retrying = False\n",
        tests=(
            "tests/transport/test_pump_outages.py::"
            "test_only_while_a_handler_takes_long_an_outage_that_may_be_over_does_not_trigger",
        ),
    ),
    Mutant(
        name="settled before the error queue has the copy",
        behaviour=91,
        promise="A message leaves its queue only when the error queue has it.",
        file=_PUMP,
        before="""\
        with Work(opened.session, opened.receiver, self._around.mode) as work:
            [result]""",
        after="""\
        with Work(opened.session, opened.receiver, self._around.mode) as work:
            work.ack([received])
            [result]""",
        tests=(
            "tests/transport/test_pump_error_queue.py::"
            "test_a_message_stays_in_its_queue_until_the_error_queue_confirms_its_copy",
        ),
    ),
    Mutant(
        name="an unknown answer of the error queue counts as taken",
        behaviour=91,
        promise="Only a confirmed copy in the error queue settles its message.",
        file=_PUMP,
        before="            if result is not SendResult.CONFIRMED:\n",
        after="            if result is SendResult.UNROUTABLE:\n",
        tests=(
            "tests/transport/test_pump_error_queue.py::"
            "test_a_message_stays_in_its_queue_until_the_error_queue_confirms_its_copy",
        ),
    ),
    Mutant(
        name="a copy that the error queue refuses is not made smaller",
        promise="A message goes into the error queue whole, or as whole as the queue accepts it.",
        file="timeoutmgr/transport/error_queue.py",
        before="            if _is_refused(answers[place]):\n",
        after="            if isinstance(answers[place], InvalidMessage):\n",
        tests=(
            "tests/transport/test_error_queue.py::"
            "test_a_refused_copy_is_followed_by_a_minimal_copy",
        ),
    ),
    Mutant(
        name="one bad message sinks its batch",
        promise="A message that fails costs its neighbours nothing.",
        file=_PUMP,
        before="""\
            if len(progress.begun) > 1:
                return progress.begun
""",
        after="""\
            if len(progress.begun) > 1:
                for received in progress.begun:
                    self._move_to_error(received, error, session, receiver)
                return ()
""",
        tests=(
            "tests/transport/test_pump_failures.py::"
            "test_the_neighbours_of_a_rejected_message_are_not_rejected_with_it",
        ),
    ),
    Mutant(
        name="waking before the commit",
        behaviour=41,
        promise="The poller is woken only by what it can see.",
        file=_WORK,
        before="""\
        try:
            self._stack.__exit__(kind, error, trace)
""",
        after="""\
        try:
            if error is None:
                self._follow()
                self._after_commit.clear()
            self._stack.__exit__(kind, error, trace)
""",
        tests=(f"{_WORK_TESTS}::test_an_after_commit_callback_runs_after_the_commit",),
    ),
    Mutant(
        name="a commit whose answer is lost wakes nobody",
        behaviour=41,
        promise="A timeout whose commit was not answered is not an interval late.",
        file=_WORK,
        before="            if error is None:  # the commit was sent, and may have happened\n",
        after="            if False:\n",
        tests=(
            f"{_WORK_TESTS}::test_an_after_commit_callback_runs_also_if_the_answer_of_the_commit_is_lost",
        ),
    ),
    Mutant(
        name="a send that was not taken goes unnoticed",
        promise="What a handler sends is taken, or its message is handled again.",
        file=_HANDLERS,
        before="        require_confirmed([sent], [answer])\n",
        after="",
        tests=(
            "tests/transport/sql/test_handler_batches.py::"
            "test_a_failed_message_leaves_no_effect_and_takes_none_from_its_neighbours",
        ),
    ),
    Mutant(
        name="a dispatch is undone with the receive, its closing not",
        promise="A row is removed only when its message stands for good.",
        file=_WORK,
        before="transaction=self.scope) if outgoing",
        after="transaction=self.transaction) if outgoing",
        tests=(f"{_WORK_TESTS}::test_an_isolated_send_stands_alone_outside_transaction_scope",),
    ),
)

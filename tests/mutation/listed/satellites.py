"""Sender, poller and dispatcher: never early, never lost, the same id."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_DISPATCHER = "satellites/timeout_manager/dispatcher.py"
_STEP = "satellites/delivery/dispatch.py"
_DISPATCHER_TESTS = "tests/satellites/test_dispatcher.py"
_POLLER = "satellites/poller.py"
_POLLER_TESTS = "tests/satellites/test_poller.py"

MUTANTS = (
    Mutant(
        name="a delay is rounded down",
        behaviour=26,
        promise="No message is early, not even by less than a microsecond.",
        file="timeoutmgr/message/validation.py",
        before="math.ceil(delay * 1_000_000)",
        after="int(delay * 1_000_000)",
        tests=(
            "tests/message/test_validation.py::test_a_part_of_a_microsecond_counts_as_a_whole_microsecond",
        ),
    ),
    Mutant(
        name="the poller is woken in the step",
        behaviour=41,
        promise="The poller is woken after the commit.",
        file="satellites/timeout_manager/timeouts.py",
        before="            work.after_commit(lambda: self.wake(earliest))\n",
        after="            self.wake(earliest)\n",
        tests=("tests/satellites/test_timeouts.py::test_the_poller_is_woken_after_the_commit",),
    ),
    Mutant(
        name="what arrives goes straight on although it is not due",
        behaviour=25,
        promise="Due is judged by the store's clock, to the microsecond.",
        file="satellites/timeout_manager/timeouts.py",
        before="if timeout.due <= now]",
        after="if timeout.due <= now + 1]",
        tests=(
            "tests/satellites/test_timeouts.py::"
            "test_transaction_scope_sends_a_due_message_straight_on_and_never_early",
        ),
    ),
    Mutant(
        name="a delayed retry has the id of the delay before it",
        behaviour=127,
        promise="A delayed retry of what was dispatched already is not dropped.",
        file="timeoutmgr/message/routes.py",
        before='message.id if retry is None else f"{message.id}|{retry}"',
        after="message.id",
        tests=(
            "tests/satellites/test_timeouts.py::"
            "test_a_delayed_retry_of_a_dispatched_timeout_is_another_timeout",
        ),
    ),
    Mutant(
        name="a chunk is sent before the one ahead of it is closed",
        promise="A crash repeats no more than one chunk of a dispatcher.",
        file="satellites/delivery/dispatch.py",
        before="            self._close_last()\n            next(chunk)\n",
        after="            next(chunk)\n            self._close_last()\n",
        tests=(
            "tests/satellites/test_overlap.py::"
            "test_a_chunk_is_locked_while_its_predecessor_is_confirmed_and_sent_behind_it",
        ),
    ),
    Mutant(
        name="what was sent stays open where the next chunk fails",
        promise="What was sent is recorded, whatever becomes of what follows.",
        file="satellites/delivery/dispatch.py",
        before="must be recorded.\n        self._close_last()\n",
        after="must be recorded.\n        if kind is None:\n            self._close_last()\n",
        tests=(
            "tests/satellites/test_overlap.py::"
            "test_a_sent_chunk_is_closed_if_the_next_chunk_fails[take]",
        ),
    ),
    Mutant(
        name="chunks of one transaction overlap",
        promise="A chunk that was ordered twice is sent once.",
        file=_DISPATCHER,
        before="OverlappedDispatch(overlaps=work.scope is None)",
        after="OverlappedDispatch(overlaps=True)",
        tests=(
            "tests/satellites/test_chunks_in_hand.py::"
            "test_in_transaction_scope_one_chunk_is_locked_at_a_time",
        ),
    ),
    Mutant(
        name="a chunk is closed whole though others hold some of it",
        promise="Whoever found rows in other hands does not end the claim on them.",
        file="persistence/sql/dispatch/outcomes.py",
        before="        and not passed_by\n",
        after="",
        tests=(
            "tests/persistence/test_taking.py::test_the_claim_outlives_a_chunk_with_a_row_that_another_has_locked[postgres]",
        ),
    ),
    Mutant(
        name="what does not fit is not sent in the transaction of the rest",
        promise="A chunk is sent whole in one transaction, however large its bodies are.",
        file=_DISPATCHER,
        before="        while left and work.scope is not None:\n",
        after="        while left and work.scope is None:\n",
        tests=(
            "tests/persistence/test_bodies.py::"
            "test_in_one_transaction_a_dispatcher_sends_all_of_a_chunk_of_large_bodies[sqlite]",
        ),
    ),
    Mutant(
        name="published after the removal is committed",
        behaviour=57,
        promise="A message is sent and confirmed before its row is removed.",
        file=_STEP,
        before="                sending = start_each(prepared.outgoing, work)\n",
        after="""\
                work.after_commit(lambda: work.send_isolated(prepared.outgoing))
                sending = lambda: [SendResult.CONFIRMED] * len(prepared.outgoing)
""",
        tests=(f"{_DISPATCHER_TESTS}::test_a_timeout_is_sent_before_it_is_removed",),
    ),
    Mutant(
        name="an unknown confirm closes as dispatched",
        promise="What no confirm came for stays, and is sent again.",
        file="satellites/delivery/forwarder.py",
        before="        if result is SendResult.CONFIRMED:\n",
        after="        if result in (SendResult.CONFIRMED, SendResult.UNKNOWN):\n",
        tests=(
            "tests/satellites/test_trying_again.py::"
            "test_an_unknown_answer_never_moves_a_timeout_to_the_error_queue",
        ),
    ),
    Mutant(
        name="an unknown confirm leaves no mark",
        promise="A later cancel says that the message may have been sent.",
        file=_DISPATCHER,
        before="maybe_sent=answer is SendResult.UNKNOWN",
        after="maybe_sent=False",
        tests=("tests/satellites/test_doubt.py::test_a_cancel_after_an_unknown_confirm_says_so",),
    ),
    Mutant(
        name="removed although the error queue did not take it",
        promise="A message that cannot be delivered is kept until the error queue has it.",
        file=_STEP,
        before="        if answer is SendResult.CONFIRMED:\n",
        after="        if answer is not SendResult.UNKNOWN:\n",
        tests=(
            "tests/satellites/test_undeliverable.py::"
            "test_a_timeout_stays_without_a_confirmed_copy_in_the_error_queue",
        ),
    ),
    Mutant(
        name="one attempt too many at a full queue",
        behaviour=59,
        promise="A message that is refused five times goes to the error queue.",
        file="satellites/delivery/forwarder.py",
        before="timeout.attempts + 1 >= attempts",
        after="timeout.attempts >= attempts",
        tests=(
            "tests/satellites/test_trying_again.py::"
            "test_a_timeout_that_is_refused_five_times_goes_to_the_error_queue",
        ),
    ),
    Mutant(
        name="a message id per dispatch",
        behaviour=22,
        promise="A repeat has the message id of the first.",
        file="satellites/delivery/forwarder.py",
        before="return with_headers(timeout.message, given)",
        after="""\
return Message(
        id=f"{timeout.message.id}@{at}",
        headers=given,
        body=timeout.message.body,
    )
""",
        tests=(
            "tests/satellites/test_delivering.py::test_a_delivered_message_keeps_id_body_and_headers",
        ),
    ),
    Mutant(
        name="what cannot be sent at all keeps its chunk back",
        behaviour=59,
        promise="A row that no broker can carry goes to the error queue, its neighbours are sent.",
        file="timeoutmgr/transport/work.py",
        before="    if len(outgoing) == 1:\n",
        after="""\
    if outgoing:
        return [SendResult.REFUSED] * len(outgoing)
    if len(outgoing) == 1:
""",
        tests=(
            "tests/satellites/test_undeliverable.py::"
            "test_a_message_that_no_broker_can_carry_goes_to_the_error_queue_and_its_neighbours_are_sent",
        ),
    ),
    Mutant(
        name="what is ordered ahead of its time is sent at once",
        promise="Nothing is sent before it is due, by the clock of the store.",
        file=_DISPATCHER,
        before="            if early > 0:\n",
        after="            if early > self.ahead:\n",
        tests=(
            "tests/satellites/test_early_orders.py::"
            "test_a_timeout_ordered_early_is_sent_when_it_is_due",
        ),
    ),
    Mutant(
        name="a claim that was not handed on is kept",
        behaviour=43,
        promise="What could not be handed on is free at once.",
        file=_POLLER,
        before="                self.store.release(token, maybe_sent=maybe)\n",
        after="",
        tests=("tests/satellites/test_released_claims.py::test_a_failing_send_releases_the_claim",),
    ),
    Mutant(
        name="a claim in doubt is released as if nobody had it",
        promise="A chunk that a dispatcher may have is not handed out again under its hands.",
        file=_POLLER,
        before="{token: result is SendResult.UNKNOWN for",
        after="{token: False for",
        tests=(
            "tests/satellites/test_doubt.py::"
            "test_ids_that_the_dispatcher_may_have_are_not_claimed_again_meanwhile",
        ),
    ),
    Mutant(
        name="of several chunks only the first is looked after",
        promise="Each chunk that was not taken is free again, whatever became of the others.",
        file=_POLLER,
        before="            for one, result in zip(chunks, results, strict=True)\n",
        after="            for one, result in zip(chunks[:1], results[:1], strict=True)\n",
        tests=(
            "tests/satellites/test_released_claims.py::"
            "test_refused_chunks_of_a_joint_send_are_released",
        ),
    ),
    Mutant(
        name="ids that were not taken count as handed on",
        behaviour=43,
        promise="A claim is kept only for ids that are on their way.",
        file=_POLLER,
        before="            if result is not SendResult.CONFIRMED\n",
        after="            if result is SendResult.UNROUTABLE\n",
        tests=("tests/satellites/test_released_claims.py::test_a_failing_send_releases_the_claim",),
    ),
    Mutant(
        name="the claim is not in the transaction of its ids",
        behaviour=63,
        promise="In one transaction claim and control message exist together or not at all.",
        file=_POLLER,
        before="                chunk = self._claim(chunks, transaction)\n",
        after="                chunk = self._claim(chunks, None)\n",
        tests=(
            f"{_POLLER_TESTS}::"
            "test_in_transaction_scope_claim_and_control_message_are_one_transaction",
        ),
    ),
    Mutant(
        name="a wake during a poll is lost",
        behaviour=40,
        promise="The poller does not sleep past a row that was stored while it looked.",
        file="satellites/schedule.py",
        before="for due in (next_due, self._woken) if due is not None",
        after="for due in (next_due,) if due is not None",
        tests=("tests/satellites/test_schedule.py::test_a_wake_during_a_poll_is_kept_for_its_end",),
    ),
)

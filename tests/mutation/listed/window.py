"""The confirm window and the AMQP receiver: answers of the broker, and their messages."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_WINDOW = "timeoutmgr/transport/amqp/dispatch.py"
_TESTS = "tests/transport/test_confirm_window.py"
_TAGS = "tests/transport/test_confirm_tags.py"
_BULK = "timeoutmgr/sender/bulk.py"
_BURSTS = "tests/sender/test_bulk_bursts.py"
_RECEIVER = "timeoutmgr/transport/amqp/receiver.py"
_AMQP_TESTS = "tests/transport/test_amqp.py"

MUTANTS = (
    Mutant(
        name="a nack counts as confirmed",
        promise="A message that the broker refused is sent again.",
        file=_WINDOW,
        before="partial(self._settle, answer=SendResult.REFUSED)",
        after="partial(self._settle, answer=SendResult.CONFIRMED)",
        tests=(f"{_TESTS}::test_a_full_queue_refuses",),
    ),
    Mutant(
        name="a returned message counts as delivered",
        promise="A message without a queue goes to the error queue, and not nowhere.",
        file=_WINDOW,
        before="SendResult.UNROUTABLE if is_back else answer",
        after="answer",
        tests=(
            f"{_TESTS}::test_a_message_to_a_missing_queue_is_unroutable_and_its_neighbours_are_not",
        ),
    ),
    Mutant(
        name="of one id to two queues the other one was returned",
        promise="A return is put to the message and the queue that it is of.",
        file=_WINDOW,
        before="pair = publishing.method, publishing.message_id",
        after="pair = next(iter(self._returned))",
        tests=(f"{_TAGS}::test_a_return_belongs_to_the_queue_that_it_names",),
    ),
    Mutant(
        name="no confirm counts as confirmed",
        promise="What no confirm came for is unknown, and is kept.",
        file=_WINDOW,
        before="result or SendResult.UNKNOWN for",
        after="result or SendResult.CONFIRMED for",
        tests=(
            f"{_TESTS}::test_without_answers_all_results_are_unknown_and_the_connection_is_replaced",
        ),
    ),
    Mutant(
        name="a confirm of all up to a tag takes one more",
        promise="A confirm counts for no message behind its own.",
        file=_WINDOW,
        before="lambda one: one <= tag,",
        after="lambda one: one <= tag + 1,",
        tests=(f"{_TAGS}::test_a_confirm_of_all_up_to_a_tag_ends_at_it",),
    ),
    Mutant(
        name="of a message sent twice both came back",
        promise="A return is of one message, and what was taken is not said to be lost.",
        file=_WINDOW,
        before="        self._returned[pair] -= 1\n",
        after="",
        tests=(
            f"{_TAGS}::test_a_return_of_a_message_twice_under_way_counts_for_the_send_"
            "confirmed_first",
        ),
    ),
    Mutant(
        name="a return outlives what it was of",
        promise="A message that was taken is not said to have no queue for an older one's sake.",
        file=_WINDOW,
        before="            self._returned.clear()",
        after="            pass",
        tests=(
            f"{_TAGS}::test_a_return_of_no_message_under_way_does_not_count_for_a_later_message",
        ),
    ),
    Mutant(
        name="one start is waited for with another's answers",
        promise="What has no answer within its time is given up, and nothing else with it.",
        file=_WINDOW,
        before="self._wait(lambda: not started.unanswered)",
        after="self._wait(lambda: not self._waiting)",
        tests=(f"{_TAGS}::test_a_finish_waits_for_the_answers_of_its_own_start_only",),
    ),
    Mutant(
        name="a large window has no more time than a small one",
        promise="A migration's batch does not end unknown because it is large.",
        file=_WINDOW,
        before="self._each = each or size",
        after="self._each = size",
        tests=(f"{_TAGS}::test_the_time_out_of_a_window_starts_anew_after_each_confirmed_part",),
    ),
    Mutant(
        name="more is under way than a window holds",
        promise="No more messages than the window's size are in doubt at a time.",
        file=_WINDOW,
        before="room = self._size - len(self._waiting)",
        after="room = self._size",
        tests=(f"{_TAGS}::test_no_more_messages_than_the_window_size_are_under_way",),
    ),
    Mutant(
        name="what is said after a lost answer is believed",
        promise="A connection that left an answer out is not believed any more.",
        file=_WINDOW,
        before="        self._waiting.clear()\n",
        after="",
        tests=(f"{_TAGS}::test_an_answer_after_a_lost_answer_is_ignored",),
    ),
    Mutant(
        name="what is not written in an alarm counts as written",
        promise="A confirm counts for no message but its own, whatever was refused in between.",
        file=_WINDOW,
        before="            return SendResult.REFUSED\n",
        after="            self._tag += 1\n            return SendResult.REFUSED\n",
        tests=(f"{_TAGS}::test_a_message_not_written_in_an_alarm_is_refused_and_uses_no_tag",),
    ),
    Mutant(
        name="of a bulk the last that was not begun is forgotten",
        promise="Nothing that a bulk has drawn is forgotten.",
        file=_BULK,
        before="is_confirmed += [False] * (len(self.items) - len(is_confirmed))",
        after="is_confirmed += [False] * (len(self.items) - len(is_confirmed) - 1) + [True]",
        tests=(f"{_BURSTS}::test_a_lost_broker_reports_the_sent_messages_and_returns_the_rest",),
    ),
    Mutant(
        name="of a bulk the message that is wrong is forgotten",
        promise="Nothing that a bulk has drawn is forgotten.",
        file=_BULK,
        before="return again + self.refused",
        after="return again or self.refused",
        tests=(f"{_BURSTS}::test_a_wrong_message_behind_a_refused_message_is_reported_too",),
    ),
    Mutant(
        name="one acknowledgement over a gap",
        promise="What is still in hand is not acknowledged with what came after it.",
        file=_RECEIVER,
        before="                if number not in numbers:\n                    break\n",
        after="                if number not in numbers:\n                    continue\n",
        tests=(
            "tests/transport/test_amqp_receiving.py::"
            "test_acknowledged_messages_are_deleted_and_the_rest_come_back",
        ),
    ),
    Mutant(
        name="an acknowledgement of a lost connection is taken for done",
        promise="A step whose message went to another process is undone.",
        file="timeoutmgr/transport/unsettled_messages.py",
        before="        if len(tags) < len(received):\n            raise self._lost()\n",
        after="",
        tests=(
            "tests/transport/test_amqp_connections.py::"
            "test_a_receiver_connects_again_and_unacknowledged_messages_come_back",
            "tests/transport/test_amqp_connections.py::"
            "test_an_acknowledgement_on_a_lost_connection_raises",
        ),
    ),
)

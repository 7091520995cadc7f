"""The confirm window and the AMQP receiver: what the broker said, and of which message."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_WINDOW = "timeoutmgr/transport/dispatch.py"
_TESTS = "tests/transport/test_confirm_window.py"
_RECEIVER = "timeoutmgr/transport/rabbitmq_receiver.py"
_AMQP_TESTS = "tests/transport/test_amqp.py"

MUTANTS = (
    Mutant(
        name="a nack counts as confirmed",
        promise="A message that the broker refused is sent again.",
        file=_WINDOW,
        before="            self._results[one] = SendResult.REFUSED\n",
        after="            self._results[one] = SendResult.CONFIRMED\n",
        tests=(f"{_TESTS}::test_a_full_queue_refuses",),
    ),
    Mutant(
        name="a returned message counts as delivered",
        promise="A message without a queue goes to the error queue, and not nowhere.",
        file=_WINDOW,
        before="SendResult.UNROUTABLE if one in self._returned else SendResult.CONFIRMED",
        after="SendResult.CONFIRMED",
        tests=(
            f"{_TESTS}::test_a_message_to_a_missing_queue_is_unroutable_and_its_neighbours_are_not",
        ),
    ),
    Mutant(
        name="of one id to two queues the other one was returned",
        promise="A return is put to the message and the queue that it is of.",
        file=_WINDOW,
        before="self._returnable.get((key, ",
        after="self._returnable.get((next(iter(self._returnable))[0], ",
        tests=(f"{_TESTS}::test_of_one_id_to_two_queues_the_missing_one_is_unroutable",),
    ),
    Mutant(
        name="no confirm counts as confirmed",
        promise="What no confirm came for is unknown, and is kept.",
        file=_WINDOW,
        before="else SendResult.UNKNOWN)",
        after="else SendResult.CONFIRMED)",
        tests=(
            f"{_TESTS}::test_without_answers_all_is_unknown_and_the_connection_is_not_used_again",
        ),
    ),
    Mutant(
        name="a confirm of all up to a tag takes one more",
        promise="A confirm counts for no message behind its own.",
        file=_WINDOW,
        before="            if one > tag:\n",
        after="            if one > tag + 1:\n",
        tests=(
            "tests/transport/test_confirm_tags.py::test_a_confirm_of_all_up_to_a_tag_ends_at_it",
        ),
    ),
    Mutant(
        name="one acknowledgement over a gap",
        promise="What is still in hand is not acknowledged with what came after it.",
        file=_RECEIVER,
        before="                if number not in numbers:\n                    break\n",
        after="                if number not in numbers:\n                    continue\n",
        tests=(f"{_AMQP_TESTS}::test_what_is_acknowledged_is_gone_and_what_is_not_comes_back",),
    ),
    Mutant(
        name="an acknowledgement of a lost connection is taken for done",
        promise="A step whose message went to another process is undone.",
        file=_RECEIVER,
        before="""\
            if not self._is_live(one):
                raise LeaseLost(self._lost())
""",
        after="""\
            if not self._is_live(one):
                continue
""",
        tests=(
            f"{_AMQP_TESTS}::test_a_receiver_connects_again_and_what_was_in_hand_comes_back",
            f"{_AMQP_TESTS}::test_an_acknowledgement_on_a_lost_connection_is_not_taken_for_done",
        ),
    ),
)

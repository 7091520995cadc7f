"""Coroutine handlers, handlers of lists, and the savepoints of both."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_COROUTINES = "timeoutmgr/endpoint/coroutines.py"
_LISTS = "timeoutmgr/endpoint/list_handlers.py"
_SESSION = "timeoutmgr/endpoint/handler_session.py"
_LOOP_TESTS = "tests/endpoint/test_event_loop.py"
_MODEL = "tests/model/test_handlers.py"
_BATCHES = "tests/transport/sql/test_handler_batches.py"

MUTANTS = (
    Mutant(
        name="a coroutine has the context variables of another message",
        promise="Context variables of a message are seen by its own handlers alone.",
        file=_COROUTINES,
        before="create_task(_guarded(begin), context=context)",
        after="create_task(_guarded(begin))",
        tests=(
            f"{_LOOP_TESTS}"
            "::test_each_coroutine_has_the_context_variables_of_the_thread_that_began_it",
        ),
    ),
    Mutant(
        name="a stop cancels the coroutines of the next start",
        promise="An endpoint that starts again runs its handlers.",
        file=_COROUTINES,
        before="        self._loop.call_soon_threadsafe(self._resume)\n",
        after="        self._resume()\n",
        tests=(
            f"{_LOOP_TESTS}"
            "::test_a_start_right_after_a_stop_runs_coroutines_while_others_use_the_loop",
        ),
    ),
    Mutant(
        name="a coroutine that ignores its cancellation keeps the stop",
        promise="A stop takes shutdown_timeout and little more.",
        file=_COROUTINES,
        before="                self._loop.call_later(seconds + GRACE, self._give_up),\n",
        after="",
        tests=(
            f"{_LOOP_TESTS}::test_a_coroutine_that_ignores_its_cancellation_does_not_keep_the_stop",
        ),
    ),
    Mutant(
        name="a stop uses up an attempt of its message",
        promise="A message of a cancelled handler stays in its queue.",
        file=_COROUTINES,
        before="        if error is not None and task in self._cancelled:\n",
        after="        if False:\n",
        tests=(
            f"{_LOOP_TESTS}"
            "::test_an_error_of_a_coroutine_while_it_is_cancelled_is_no_failure_of_its_message",
        ),
    ),
    Mutant(
        name="a middleware leaves its handlers running",
        promise="A message is settled after its handlers have ended.",
        file="timeoutmgr/endpoint/middleware.py",
        before="    elif not call_next.has_ended:\n",
        after="    elif False:\n",
        tests=(
            "tests/endpoint/test_middleware.py"
            "::test_a_middleware_that_does_not_await_its_call_next_once_fails_its_message",
        ),
    ),
    Mutant(
        name="the effects of a failed list are kept",
        promise="A failed message leaves no effect in the commit of its neighbours.",
        file=_LISTS,
        before="            first.undo(with_all=self._alone or isinstance(error, UNDOING_ALL))\n",
        after="",
        tests=(f"{_MODEL}::test_a_failed_list_leaves_each_of_its_messages_whole",),
    ),
    Mutant(
        name="the messages of a failed list are acknowledged",
        promise="No message of a failed list is acknowledged without its effects.",
        file=_LISTS,
        before="            self._handle([each])\n",
        after="            pass\n",
        tests=(f"{_MODEL}::test_a_failed_list_leaves_each_of_its_messages_whole",),
    ),
    Mutant(
        name="messages wait behind a slow list",
        promise="No message waits behind a slow neighbour.",
        file=_LISTS,
        before="            if received is batch[-1]:\n",
        after="            if False:\n",
        tests=(
            "tests/endpoint/test_list_handlers.py"
            "::test_messages_behind_a_slow_list_are_given_back_meanwhile",
        ),
    ),
    Mutant(
        name="a lost transaction is not noticed at the release of its savepoint",
        promise="A batch is acknowledged in the transaction in which its handlers ran.",
        file=_SESSION,
        before="                savepoint.commit()\n",
        after="                pass\n",
        tests=(f"{_MODEL}::test_a_transaction_that_the_database_ended_is_handled_again",),
    ),
    Mutant(
        name="a session outlives its handler",
        promise="A message has effects only in its own part of the transaction.",
        file=_SESSION,
        before="            self._session.get_bind = _refuse_bind",
        after="            del _refuse_bind",
        tests=(
            f"{_BATCHES}"
            "::test_a_session_that_outlives_its_handler_writes_into_no_transaction_of_others",
        ),
    ),
    Mutant(
        name="a typed message arrives with a null in place of a NaN",
        promise="A handler gets an object equal to the sent object.",
        file="timeoutmgr/message/classes.py",
        before='            if b"null" in body and ',
        after="            if False and ",
        tests=(
            "tests/endpoint/test_typed_messages.py"
            "::test_a_float_that_would_arrive_as_null_is_refused_when_it_is_sent",
        ),
    ),
)

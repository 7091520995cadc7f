"""Breakers and recoverability: once, in time, and by the clock that cannot be set."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_BREAKERS = "timeoutmgr/resilience/breakers.py"
_TESTS = "tests/resilience/test_breakers.py"
_RECOVERY = "timeoutmgr/resilience/recovery.py"
_RECOVERY_TESTS = "tests/resilience/test_recovery.py"

MUTANTS = (
    Mutant(
        name="a success does not disarm",
        behaviour=69,
        promise="An outage that ended in time is never told.",
        file=_BREAKERS,
        before="            was, self._state = self._state, BreakerState.DISARMED\n",
        after="            was = self._state\n",
        tests=(f"{_TESTS}::test_a_breaker_disarmed_in_time_does_not_trigger",),
    ),
    Mutant(
        name="every failure starts the wait again",
        promise="An outage is told after the wait, however often is tried.",
        file=_BREAKERS,
        before="            if self._state is BreakerState.DISARMED:\n",
        after="            if self._state is not BreakerState.TRIGGERED:\n",
        tests=(f"{_TESTS}::test_later_failures_do_not_start_the_wait_again",),
    ),
    Mutant(
        name="one outage triggers again and again",
        behaviour=70,
        promise="One outage is told once.",
        file=_BREAKERS,
        before="            self._state = BreakerState.TRIGGERED\n",
        after="",
        tests=(f"{_TESTS}::test_a_breaker_triggers_once_in_one_outage",),
    ),
    Mutant(
        name="the wait is a moment too long",
        behaviour=69,
        promise="An outage is told when it has lasted exactly the wait.",
        file=_BREAKERS,
        before="lasted < self._wait",
        after="lasted <= self._wait",
        tests=(f"{_TESTS}::test_a_breaker_triggers_exactly_after_the_wait_without_success",),
    ),
    Mutant(
        name="a breaker by the wall clock",
        behaviour=54,
        promise="Setting the clock neither makes nor hides an outage.",
        file=_BREAKERS,
        before="""\
        self._wait = time_to_wait.total_seconds()
        self._on_trigger = on_trigger
        self._clock = clock
""",
        after="""\
        self._wait = time_to_wait.total_seconds()
        self._on_trigger = on_trigger
        self._clock = type("Wall", (), {"monotonic": lambda _self: clock.now() / 1_000_000})()
""",
        tests=(f"{_TESTS}::test_a_step_of_the_wall_clock_neither_triggers_nor_delays",),
    ),
    Mutant(
        name="failures only look at the breaker when they come",
        behaviour=77,
        promise="An attempt that hangs cannot hide an outage.",
        file=_BREAKERS,
        before="            if not is_armed or lasted < self._wait:\n",
        after="            if not is_armed or lasted < self._wait + TRIGGERED_PAUSE:\n",
        tests=(f"{_TESTS}::test_an_attempt_that_hangs_cannot_hide_an_outage",),
    ),
    Mutant(
        name="a rate triggers at its limit",
        behaviour=74,
        promise="A rate is told above its limit and not at it.",
        file=_BREAKERS,
        before="len(self._failures) <= self._most",
        after="len(self._failures) < self._most",
        tests=(
            f"{_TESTS}::test_a_rate_triggers_once_above_thirty_times_the_rate_in_thirty_seconds",
            f"{_TESTS}::test_a_rate_that_stays_below_the_limit_never_triggers",
        ),
    ),
    Mutant(
        name="a rate never forgets",
        behaviour=74,
        promise="Failures older than the window do not count.",
        file=_BREAKERS,
        before="            self._failures.popleft()\n",
        after="            break\n",
        tests=(f"{_TESTS}::test_a_rate_that_stays_below_the_limit_never_triggers",),
    ),
    Mutant(
        name="one immediate attempt too many",
        promise="A failing message is tried as often as is set.",
        file=_RECOVERY,
        before="attempt < settings.immediate",
        after="attempt <= settings.immediate",
        tests=(f"{_RECOVERY_TESTS}::test_a_satellite_tries_five_times_and_then_gives_up",),
    ),
    Mutant(
        name="one delayed retry too many",
        behaviour=127,
        promise="A failing message is delayed as often as is set.",
        file=_RECOVERY,
        before="delayed_retries(message) < settings.delayed",
        after="delayed_retries(message) <= settings.delayed",
        tests=(f"{_RECOVERY_TESTS}::test_there_are_three_delayed_retries",),
    ),
    Mutant(
        name="a rejected message is tried again",
        promise="What no retry can mend is not retried.",
        file=_RECOVERY,
        before="        return Recovery.MOVE_TO_ERROR\n    if attempt",
        after="        pass\n    if attempt",
        tests=(f"{_RECOVERY_TESTS}::test_a_rejected_message_is_not_tried_again",),
    ),
    Mutant(
        name="a delayed retry gets a message id of its own",
        behaviour=128,
        promise="A retry is the same message once more.",
        file="timeoutmgr/endpoint/handlers.py",
        before="replace(message, headers=again)",
        after='replace(message, id=f"{message.id}+", headers=again)',
        tests=(
            "tests/endpoint/test_handlers.py::"
            "test_a_delayed_retry_carries_the_original_body_headers_and_id",
        ),
    ),
)

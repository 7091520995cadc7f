"""Rows of the page of behaviours on breakers, critical errors and outages."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, breaks

_BREAKERS = "timeoutmgr/resilience/breakers.py"
_BREAKERS_TESTS = "tests/resilience/test_breakers.py"
_CRITICAL = "timeoutmgr/resilience/critical.py"
_CRITICAL_TESTS = "tests/resilience/test_critical.py"
_FEATURE_TESTS = "tests/satellites/test_feature.py"

MUTANTS = (
    breaks(
        68,
        _BREAKERS,
        (
            "                self._state = BreakerState.ARMED\n",
            "                self._state = BreakerState.TRIGGERED\n",
        ),
        f"{_BREAKERS_TESTS}::test_the_first_failure_arms",
        name="the first failure is the end of the wait",
    ),
    breaks(
        71,
        _BREAKERS,
        ("TRIGGERED_PAUSE: Final = 10.0", "TRIGGERED_PAUSE: Final = 1.0"),
        f"{_BREAKERS_TESTS}::test_a_failure_pauses_ten_seconds_once_triggered",
        name="a triggered breaker pauses for a second",
    ),
    breaks(
        72,
        _BREAKERS,
        ("first is not by and", "first is by and"),
        f"{_FEATURE_TESTS}::"
        "test_two_breakers_that_trigger_at_the_same_moment_do_not_silence_each_other",
        name="each of two breakers reports the same outage",
    ),
    breaks(
        73,
        _BREAKERS,
        (
            'logger.critical("the action of breaker %s failed", name, exc_info=True, extra=extra)',
            "pass",
        ),
        f"{_BREAKERS_TESTS}::"
        "test_an_action_that_raises_is_logged_and_the_breaker_counts_as_triggered",
        name="a failing action is not logged",
    ),
    breaks(
        75,
        _BREAKERS,
        (
            "            was, self._state = self._state, BreakerState.DISARMED\n",
            "            was = BreakerState.ARMED\n",
        ),
        f"{_BREAKERS_TESTS}::test_an_outage_that_comes_and_goes_below_the_wait_never_triggers",
        name="short outages are added up",
    ),
    breaks(
        76,
        "timeoutmgr/features/delayed_delivery.py",
        (
            "            self.store.initialize(self.endpoint, self.mode)\n",
            "            self._started = True\n"
            "            self.store.initialize(self.endpoint, self.mode)\n",
        ),
        "tests/features/test_delayed_delivery.py::"
        "test_a_store_that_is_away_is_started_when_it_is_back",
        name="a store that is away at the start is never initialized",
    ),
    breaks(
        78,
        _CRITICAL,
        (
            "context = CriticalErrorContext(error, exception, stop)",
            "context = CriticalErrorContext(str(exception), exception, stop)",
        ),
        f"{_CRITICAL_TESTS}::test_a_hook_gets_error_exception_and_stop",
        name="a hook gets the exception for the sentence",
    ),
    breaks(
        79,
        _CRITICAL,
        (
            "kept, self._latched = self._latched, []\n            for",
            "kept = list(self._latched)\n            for",
        ),
        f"{_CRITICAL_TESTS}::test_each_error_before_the_start_reaches_the_hooks_once_after_it",
        name="an early error is told at every start",
    ),
    breaks(
        80,
        _CRITICAL,
        ('begin_thread(partial(self._run, context), "timeoutmgr-critical")', "self._run(context)"),
        f"{_CRITICAL_TESTS}::test_hooks_run_off_the_thread_that_raises",
        name="a hook runs on the thread that raises",
    ),
    breaks(
        81,
        _CRITICAL,
        ("_stop if action is CriticalAction.STOP", "_log if action is CriticalAction.STOP"),
        f"{_CRITICAL_TESTS}::test_the_default_action_stops_so_that_the_sentence_is_true",
        name="by default a critical error is logged alone",
    ),
    breaks(
        82,
        _CRITICAL,
        ("                continue\n", "                return\n"),
        f"{_CRITICAL_TESTS}::test_a_hook_that_raises_is_logged_and_the_next_one_runs",
        name="a hook that raises is the last",
    ),
    breaks(
        84,
        "timeoutmgr/transport/capabilities.py",
        ("store is not None and not same_database", "store is None and not same_database"),
        "tests/transport/test_capabilities.py::"
        "test_a_combination_that_breaks_a_promise_is_refused_with_reason_and_remedy",
        name="one transaction over two databases is accepted",
    ),
    Mutant(
        name="a process writes on into a file that was removed",
        promise="What is confirmed is where every process of the file sees it.",
        file="timeoutmgr/database/sqlite_writers.py",
        before="        if not own == self._file == file_at(self._names):\n",
        after="        if False:\n",
        tests=(
            "tests/database/test_sqlite_writers.py"
            "::test_nothing_is_written_into_a_file_that_was_renamed_until_it_is_back",
        ),
    ),
    Mutant(
        name="a fork does not wait for the uses of a file",
        promise="A forked child may send, whatever the threads of its parent do.",
        file="timeoutmgr/database/sqlite_writers.py",
        before="            if time.monotonic() > deadline:\n",
        after="            if True:\n",
        tests=(
            "tests/database/test_sqlite_writers.py"
            "::test_a_fork_waits_until_the_reads_of_other_threads_end",
        ),
    ),
    Mutant(
        name="a fork leaves the idle connections of a file open",
        promise="What a forked child commits is kept, whatever its parent closes.",
        file="timeoutmgr/database/sqlite_writers.py",
        before="                    owner.close_idle()\n",
        after="                    pass\n",
        tests=(
            "tests/database/test_sqlite_writers.py"
            "::test_what_a_child_commits_is_kept_when_its_parent_closes_the_file",
        ),
    ),
)

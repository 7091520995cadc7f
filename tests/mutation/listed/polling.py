"""Rows of the page of behaviours on polls, claims, dispatches and error copies."""

from __future__ import annotations

from tests.mutation.mutant import breaks

_SCHEDULE = "satellites/schedule.py"
_SCHEDULE_TESTS = "tests/satellites/test_schedule.py"
_POLLER = "satellites/poller.py"
_CLAIMER = "persistence/sql/claim/claimer.py"
_CLAIM_TESTS = "tests/persistence/test_claiming.py"
_MANAGER = "satellites/timeout_manager"

MUTANTS = (
    breaks(
        36,
        _SCHEDULE,
        ("min([now + self._interval, *asked])", "min([now + 2 * self._interval, *asked])"),
        f"{_SCHEDULE_TESTS}::test_the_next_poll_is_at_the_next_due_time_within_the_interval",
        name="an idle poller rests for two intervals",
    ),
    breaks(
        37,
        _SCHEDULE,
        ("for due in (next_due, self._woken)", "for due in (self._woken,)"),
        f"{_SCHEDULE_TESTS}::test_the_next_poll_is_at_the_next_due_time_within_the_interval",
        name="the next poll is an interval away, whatever is due before",
    ),
    breaks(
        38,
        _SCHEDULE,
        ("self._next is None or self._next <= due:", "self._next is None or due:"),
        f"{_SCHEDULE_TESTS}::test_an_earlier_due_time_pulls_the_next_poll_forward",
        name="an earlier due time leaves the next poll where it is",
    ),
    breaks(
        39,
        _SCHEDULE,
        ("self._next is None or self._next <= due:", "self._next is None or self._next == due:"),
        f"{_SCHEDULE_TESTS}::test_a_later_due_time_does_not_cause_a_poll",
        name="a later due time moves the next poll",
    ),
    breaks(
        42,
        _SCHEDULE,
        (
            "            self._polling = True\n            self._woken = None\n",
            "            self._polling = True\n",
        ),
        f"{_SCHEDULE_TESTS}::test_after_a_pushed_poll_the_normal_cycle_resumes",
        name="a wake causes a second poll",
    ),
    breaks(
        44,
        _CLAIMER,
        ("self._cursor.position().start, active))", "self._cursor.position().start, active))[1:]"),
        f"{_CLAIM_TESTS}::"
        "test_a_row_that_comes_late_before_a_claimed_range_is_found_at_once[sqlite]",
        name="keys before the claims in force are not seen",
    ),
    breaks(
        46,
        _CLAIMER,
        ("        active.sort(key=lambda claim: claim.interval.first)\n", "        active = []\n"),
        f"{_CLAIM_TESTS}::test_pollers_that_compete_with_writers_claim_nothing_twice[sqlite]",
        name="a poller claims what another poller has",
    ),
    breaks(
        49,
        _CLAIMER,
        (
            "self._keys.first(locked.connection, position.start, limit)",
            'self._keys.first(locked.connection, Key(0, ""), limit)',
        ),
        f"{_CLAIM_TESTS}::test_the_oldest_go_first_however_old[sqlite]",
        name="due times before 1970 are not read",
    ),
    breaks(
        51,
        _POLLER,
        (
            "        while not self.stopping():\n            began",
            "        while True:\n            began",
        ),
        "tests/satellites/test_poller.py::test_a_stop_ends_the_poll_after_the_present_chunk",
        name="a poll goes on after a stop",
    ),
    breaks(
        52,
        _SCHEDULE,
        ("max(now, not_before, earliest)", "max(not_before, earliest)"),
        f"{_SCHEDULE_TESTS}::test_the_next_poll_is_at_the_next_due_time_within_the_interval",
        name="the next poll lies in the past",
    ),
    breaks(
        52,
        "timeoutmgr/message/validation.py",
        ("    if not EARLIEST <= due <= LATEST:\n", "    if due < EARLIEST:\n"),
        "tests/message/test_validation.py::test_a_delay_past_the_year_9999_is_refused_at_the_door",
        name="a due time beyond the calendar is let in",
    ),
    breaks(
        53,
        f"{_MANAGER}/feature.py",
        ("min(self.poll_interval, max(wait, timedelta(seconds=1)))", "timedelta(hours=1)"),
        "tests/acceptance/test_waking.py::"
        "test_the_next_poll_finds_a_row_inserted_without_notice[sql_sqlite+sqlite]",
        name="a poller waits for notices alone",
    ),
    breaks(
        54,
        _POLLER,
        ("if (was_set or overdue) and", "if False and"),
        "tests/satellites/test_poller_clocks.py::"
        "test_a_poll_that_moved_away_with_the_wall_clock_is_forced_by_the_watchdog",
        name="nobody sees that the wall clock was set",
    ),
    breaks(
        55,
        f"{_MANAGER}/timeouts.py",
        ("self.store.now(transaction=work.scope) if timeouts else 0", "self.clock.now()"),
        "tests/satellites/test_timeouts.py::test_due_is_judged_by_the_databases_clock",
        name="what arrives is due by the host's clock",
    ),
    breaks(
        56,
        _POLLER,
        (
            "        except Exception as error:\n            not_before",
            "        except TimeoutManagerError as error:\n            not_before",
        ),
        "tests/satellites/test_poller_failures.py::test_the_loop_outlives_every_error",
        name="the poller knows its own errors alone",
    ),
    breaks(
        58,
        f"{_MANAGER}/dispatcher.py",
        ('self.telemetry.count("timeouts_gone")', "pass"),
        "tests/satellites/test_dispatcher.py::"
        "test_an_unknown_single_id_is_a_counted_benign_outcome",
        name="an unknown id is not counted",
    ),
    breaks(
        60,
        "satellites/delayed_store/adapter.py",
        ('self.telemetry.count("delayed_gone", missing)', "pass"),
        "tests/satellites/test_due.py::test_a_removal_that_comes_second_is_benign_and_counted",
        name="a removal that comes second is not counted",
    ),
    breaks(
        61,
        "timeoutmgr/transport/work.py",
        ("transaction=self.scope) if outgoing", "transaction=None) if outgoing"),
        "tests/satellites/test_dispatcher.py::"
        "test_in_transaction_scope_a_failed_removal_takes_the_send_back",
        name="a dispatch is sent outside of the one transaction",
    ),
    breaks(
        62,
        "satellites/delivery/forwarder.py",
        (
            "return with_headers(timeout.message, given)",
            "return Message(\n"
            '        id=f"{timeout.message.id}-{timeout.attempts}-{at}",\n'
            "        headers=given,\n"
            "        body=timeout.message.body,\n"
            "    )",
        ),
        "tests/satellites/test_due.py::"
        "test_where_the_removal_fails_the_message_goes_out_again_under_the_same_id",
        name="what goes out again has another id",
    ),
    breaks(
        64,
        "satellites/delivery/forwarder.py",
        ("result is SendResult.UNROUTABLE", "result is None"),
        "tests/satellites/test_due.py::test_a_missing_destination_goes_to_the_error_queue_whole",
        name="a message for a missing destination stays stored",
    ),
    breaks(
        65,
        "timeoutmgr/resilience/error_copy.py",
        ("headers.PROCESSING_ENDPOINT: endpoint,", "headers.PROCESSING_ENDPOINT: queue,"),
        "tests/resilience/test_error_copy.py::test_a_copy_says_where_when_and_why",
        name="an error copy names a queue as its endpoint",
    ),
    breaks(
        66,
        "persistence/memory_store.py",
        (
            "            self._close(outcome.key, state.value, state, outcome.at)\n",
            "            pass\n",
        ),
        "tests/satellites/test_dispatcher.py::"
        "test_a_control_message_for_dispatched_timeouts_sends_nothing",
        name="a repeated order is dispatched once more",
    ),
    breaks(
        67,
        f"{_MANAGER}/feature.py",
        (
            "Satellite(consumption=storing, concurrency=self.concurrency)",
            "Satellite(consumption=storing)",
        ),
        "tests/satellites/test_feature.py::test_its_concurrency_is_that_of_both_satellites",
        name="one thread stores, whatever is configured",
    ),
    breaks(
        120,
        _CLAIMER,
        ("if row.due <= locked.until]", "if row.due < locked.until]"),
        f"{_CLAIM_TESTS}::test_a_timeout_is_claimed_from_its_microsecond_on[sqlite]",
        name="what is due now is not due",
    ),
    breaks(
        121,
        "persistence/sql/rows.py",
        ('"due": timeout.key.due,', '"due": timeout.key.due // 1000 * 1000,'),
        "tests/persistence/test_storing.py::test_microseconds_and_the_last_instant_are_kept[sqlite]",
        name="a due time is stored to the millisecond",
    ),
    breaks(
        124,
        _CLAIMER,
        ("Burst(enabled=Burst not in without)", "Burst(enabled=False)"),
        "tests/persistence/test_bursts.py::test_within_a_burst_a_claim_reads_on_from_the_last_key[sqlite]",
        name="every claim reads from the beginning of the key",
    ),
    breaks(
        125,
        "timeoutmgr/database/failures.py",
        ("        return Failure.CONFLICT\n", "        return Failure.AWAY\n"),
        "tests/database/test_failures.py::test_a_deadlock_or_a_lock_not_had_is_a_conflict",
        name="a deadlock counts as an outage",
    ),
    breaks(
        126,
        "persistence/sql/claim/rows.py",
        (
            "(timeouts.c.endpoint == context.endpoint, timeouts.c.hidden_by.is_(None))",
            "(timeouts.c.hidden_by.is_(None),)",
        ),
        f"{_CLAIM_TESTS}::test_endpoints_do_not_see_each_other[sqlite]",
        name="an endpoint claims the timeouts of all endpoints",
    ),
    breaks(
        139,
        _POLLER,
        ('"clock_offset_seconds", seconds)', '"clock_offset_seconds", offset)'),
        "tests/satellites/test_poller_clocks.py::test_the_clocks_offset_is_measured_and_reported",
        name="the offset of the clocks is exported in microseconds",
    ),
)

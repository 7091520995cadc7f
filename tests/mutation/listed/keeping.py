"""Rows of the page of behaviours on a delayed message store and on dead letters."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, breaks

_ROWS = "persistence/delayed/rows.py"
_STORE_TESTS = "tests/persistence/delayed/test_store.py"
_DUE = "satellites/delayed_store/adapter.py"
_LOOP = "satellites/delayed_store/adapter.py"
_DUE_TESTS = "tests/satellites/test_due.py"
_SETTINGS_TESTS = "tests/features/test_delayed_delivery.py"
_EXPIRY_TESTS = "tests/deadletter/test_expiry.py"
_NATIVE_TESTS = "tests/deadletter/test_native.py"
_SOURCES_TESTS = "tests/deadletter/test_sources.py"

MUTANTS = (
    breaks(
        85,
        _ROWS,
        ("if not database.dialect.row_locks:", "if False:"),
        f"{_STORE_TESTS}::test_a_fetch_passes_by_messages_that_another_has_fetched[sqlite]",
        name="what another process has fetched is fetched again",
    ),
    breaks(
        86,
        _ROWS,
        (
            "        return execute_many(connection, self._remove_claimed, held)\n",
            "        execute_many(connection, self._remove_claimed, held)\n"
            "        return len(held)\n",
        ),
        f"{_STORE_TESTS}::test_remove_tells_whether_the_row_was_there[sqlite]",
        name="a removal answers for rows that were not there",
    ),
    breaks(
        88,
        _ROWS,
        ("[_row(timeout) for timeout in timeouts]", "[_row(timeout) for timeout in timeouts[:20]]"),
        "tests/acceptance/test_delayed_store.py::"
        "test_many_messages_of_one_instant_all_come_once[sql_sqlite+sqlite]",
        name="of many messages in a batch the first twenty are stored",
    ),
    breaks(
        89,
        _LOOP,
        ("self._lanes > 1", "self._lanes > 2"),
        f"{_DUE_TESTS}::test_while_one_batch_is_sent_the_next_is_fetched",
        name="the next batch is fetched after the one before it",
    ),
    breaks(
        90,
        _ROWS,
        ("attempts=rows.attempts + 1,", "attempts=rows.attempts,"),
        f"{_STORE_TESTS}::test_a_failure_is_counted_and_puts_the_row_off[sqlite]",
        name="a failed attempt is not counted",
    ),
    breaks(
        93,
        _DUE,
        ("self.recovery.failure(error)", "self.dispatch.failure(error)"),
        f"{_DUE_TESTS}::test_error_handling_that_fails_and_fails_trips_the_recovery_breaker",
        name="failed error handling arms the breaker of the dispatch",
    ),
    breaks(
        94,
        _DUE,
        ("scope = transaction if self.mode is _SCOPE else None", "scope = None"),
        f"{_DUE_TESTS}::test_in_transaction_scope_a_failed_removal_takes_the_send_back",
        name="a due message is sent outside of the one transaction",
    ),
    breaks(
        95,
        "timeoutmgr/endpoint/configuration.py",
        (
            "            check_destination(self.error_queue, Limits())\n",
            "            check_destination(self.error_queue or 'error', Limits())\n",
        ),
        f"{_SETTINGS_TESTS}::test_a_delayed_store_without_an_error_queue_does_not_start",
        name="an endpoint starts without an error queue",
    ),
    breaks(
        96,
        "satellites/timeout_manager/timeouts.py",
        ("if name in _ROUTING or name.startswith(prefix))", "if name in _ROUTING)"),
        "tests/satellites/test_delayed.py::"
        "test_properties_in_transit_are_never_visible_to_the_receiver",
        name="the properties of another sender are delivered",
    ),
    breaks(
        97,
        _LOOP,
        (
            "        try:\n            while not (drain.over or self._stopping()):\n",
            "        try:\n            while not drain.over:\n",
        ),
        f"{_DUE_TESTS}::test_a_stop_finishes_the_current_batch_and_fetches_no_more",
        name="a stop waits until nothing is due",
    ),
    breaks(
        98,
        "timeoutmgr/database/texts.py",
        ('r"[A-Za-z_][A-Za-z0-9_]{0,40}"', 'r"[A-Za-z_][A-Za-z0-9_. ]{0,40}"'),
        "tests/database/test_identifiers.py::test_a_name_that_needs_quotes_is_refused",
        name="a schema may have a dot or a space",
    ),
    breaks(
        99,
        _LOOP,
        (
            "            first = self._batches.store.next()\n",
            "            first = self._batches.store.next()\n"
            '            self.__dict__.setdefault("looks", []).append(first)\n',
        ),
        f"{_DUE_TESTS}::test_a_hundred_thousand_rounds_leave_nothing_behind",
        name="every round leaves its answer behind",
    ),
    breaks(
        100,
        "timeoutmgr/deadletter/service.py",
        ("    dead_letter: bool = True\n", "    dead_letter: bool = False\n"),
        "tests/deadletter/test_levels.py::"
        "test_the_endpoint_asks_for_dead_letters_and_the_messages_own_level_wins",
        name="dead letters are off by default",
    ),
    breaks(
        101,
        "timeoutmgr/deadletter/service.py",
        ("queue.endswith((TIMEOUTS, DELAYED))", "queue.endswith(DELAYED)"),
        f"{_SOURCES_TESTS}::test_a_delayed_message_always_uses_the_dead_letter_queue",
        name="a message on its way to the timeout manager leaves no dead letter",
    ),
    breaks(
        102,
        "timeoutmgr/sender/composer.py",
        ("    return to_timespan(limit)\n", "    return to_timespan(timedelta(hours=1))\n"),
        f"{_SOURCES_TESTS}::test_in_one_transaction_each_message_keeps_its_own_time_to_be_received",
        name="all messages have one time to be received",
    ),
    breaks(
        103,
        "timeoutmgr/endpoint/handlers.py",
        ("limit is None or not self.expiry.discard:", "limit is None:"),
        f"{_SOURCES_TESTS}::test_the_receivers_discarding_can_be_put_off_or_allow_for_clocks",
        name="expired messages are discarded against the settings",
    ),
    breaks(
        104,
        "timeoutmgr/contracts/dead_letters.py",
        ("    NACK_PURGED = 0x8001\n", "    NACK_PURGED = 0x8101\n"),
        "tests/deadletter/test_classes.py::test_the_22_message_classes_have_msmqs_numbers",
        name="a class has a number of its own",
    ),
    breaks(
        104,
        "timeoutmgr/deadletter/service.py",
        (
            "        return replace(one, time_to_live=duration_micros(lifetime))\n",
            "        return one\n",
        ),
        f"{_EXPIRY_TESTS}::test_an_expired_message_of_an_unread_queue_is_a_dead_letter[sqlite]",
        name="a message in a queue that nobody reads never expires",
    ),
    breaks(
        100,
        "timeoutmgr/deadletter/expiry.py",
        ("if not self.dead_letters.wants_dead_letter(message):", "if False:"),
        f"{_EXPIRY_TESTS}::"
        "test_an_expired_message_that_asks_for_no_dead_letter_is_discarded[sqlite]",
        name="an expired message that asks for no dead letter goes to the error queue",
    ),
    breaks(
        103,
        "timeoutmgr/deadletter/feature.py",
        ("if self.discard_expired and isinstance(", "if isinstance("),
        f"{_EXPIRY_TESTS}::"
        "test_where_late_messages_are_not_discarded_none_expires_in_a_queue[sqlite]",
        name="messages expire in queues although late messages are not to be discarded",
    ),
    breaks(
        104,
        "timeoutmgr/deadletter/native.py",
        ("        if not wants_dead_letter:\n            return False\n", ""),
        f"{_NATIVE_TESTS}::test_a_queue_is_asked_once_a_minute_whether_messages_may_expire_there",
        name="a message that asks for no dead letter expires into the collector",
    ),
    breaks(
        104,
        "satellites/delivery/dispatch.py",
        ("            self.forwarder.unsent(prepared, work)\n", ""),
        "tests/satellites/test_dead_letters.py::test_an_outage_counts_as_time_to_reach_the_queue",
        name="an outage is no time to reach the queue",
    ),
    breaks(
        104,
        "timeoutmgr/deadletter/name_parser.py",
        (
            "    if text[: len(_PREFIX)].upper() == _PREFIX:\n        return True\n",
            "",
        ),
        "tests/deadletter/test_names.py::"
        "test_a_text_with_the_prefix_is_never_the_name_of_a_plain_queue",
        name="a format name with the prefix is the name of a plain queue",
    ),
    Mutant(
        name="a business queue is refused for the end of its name",
        promise="a queue is a satellite's only if such an endpoint is installed",
        file="timeoutmgr/message/validation.py",
        before="if is_satellite_queue(destination) and limits.is_satellite(destination):",
        after="if is_satellite_queue(destination):",
        tests=(
            "tests/message/test_validation.py::"
            "test_a_queue_that_is_only_named_like_a_satellites_is_a_destination",
        ),
    ),
)

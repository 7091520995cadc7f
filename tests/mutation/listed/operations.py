"""Rows of the page of behaviours on installations, migrations and commands of operators."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, breaks

_PLAN_TESTS = "tests/migration/test_preparing.py"
_INSTALLATION = "timeoutmgr/endpoint/installation.py"
_RUNS = "timeoutmgr/migration/runs.py"
_ALL_ARRIVE = (
    "tests/migration/test_store_to_store.py::"
    "test_all_arrive_with_all_that_they_are_and_the_counts_agree[sqlite]"
)

MUTANTS = (
    breaks(
        138,
        "timeoutmgr/endpoint/timeouts.py",
        ("                if not dry_run:\n", "                if dry_run or not dry_run:\n"),
        "tests/endpoint/test_timeouts.py::"
        "test_a_reroute_changes_the_destination_of_the_timeouts_that_match",
        name="a dry run of a reroute reroutes",
    ),
    breaks(
        138,
        "timeoutmgr/endpoint/timeouts.py",
        ("        self._require_destination(to)\n", ""),
        "tests/endpoint/test_timeouts.py::"
        "test_a_reroute_to_a_queue_that_no_message_may_go_to_changes_nothing",
        name="a reroute asks not whether a message may go there",
    ),
    breaks(
        122,
        _INSTALLATION,
        (
            "        # The target of dead messages must exist before queues that refer to it.\n",
            "        session.delete_queues(rest)\n",
        ),
        "tests/acceptance/test_installers.py::"
        "test_installing_twice_changes_nothing[sql_sqlite+sqlite]",
        name="a second installation begins with empty queues",
    ),
    breaks(
        123,
        "timeoutmgr/database/upgrade.py",
        ('            "`timeoutmgr install`"\n', '            "the installer"\n'),
        "tests/persistence/test_schema.py::test_check_names_the_command_until_installed[sqlite]",
        name="a missing schema is told without the command",
    ),
    breaks(
        129,
        "timeoutmgr/endpoint/assembly.py",
        ("    if not can_delay:\n", "    if not can_delay and asked.delayed < 0:\n"),
        "tests/endpoint/test_assembly.py::"
        "test_delayed_retries_that_nothing_can_delay_are_refused_when_asked_for",
        name="delayed retries that nothing can delay are accepted",
    ),
    breaks(
        129,
        "timeoutmgr/endpoint/assembly.py",
        (
            "    if mode is TransactionMode.NONE:\n        raise",
            "    if mode is None:\n        raise",
        ),
        "tests/endpoint/test_assembly.py::"
        "test_delayed_retries_without_transactions_are_refused_when_asked_for",
        name="delayed retries without transactions are accepted",
    ),
    breaks(
        140,
        "timeoutmgr/endpoint/canary.py",
        ("return None if state is TimeoutState.DISPATCHED else", "return None if state else"),
        "tests/endpoint/test_canary.py::"
        "test_a_late_canary_raises_an_alarm_and_one_critical_error_for_an_outage",
        name="a canary that waits in the store counts as delivered",
    ),
    breaks(
        141,
        "timeoutmgr/endpoint/purge.py",
        ("    if satellites:\n", "    if satellites is not None:\n"),
        "tests/acceptance/test_purge_and_canary.py::"
        "test_a_purge_leaves_the_queues_of_satellites_unless_asked[sql_sqlite+sqlite-False]",
        name="a purge removes the messages of the satellites unasked",
    ),
    breaks(
        130,
        "timeoutmgr/migration/run.py",
        (
            "    survey = parts.source.survey(terms.window)\n",
            "    survey = parts.source.survey(terms.window)\n"
            '    parts.ledger.create("preview", terms, (), parts.runner)\n',
        ),
        f"{_PLAN_TESTS}::test_a_preview_tells_all_and_changes_nothing[sqlite]",
        name="a preview writes a run down",
    ),
    breaks(
        131,
        "timeoutmgr/migration/run.py",
        ("        for parts, terms in endpoints\n", "        for parts, terms in endpoints[:1]\n"),
        "tests/cli/test_migrate.py::test_a_problem_of_one_endpoint_stops_the_move_of_all_endpoints",
        name="the first endpoint of a migration is examined alone",
    ),
    breaks(
        133,
        _RUNS,
        ('"cutoff": self.window.cutoff,', '"cutoff": (self.window.cutoff or 0) // 1000 * 1000,'),
        f"{_PLAN_TESTS}::test_a_run_is_resumed_on_its_own_terms_only",
        name="the terms of a run are compared to the millisecond",
    ),
    breaks(
        135,
        "timeoutmgr/migration/batch_step.py",
        ("new=new, known=known, returned=used", "known=new + known, returned=used"),
        _ALL_ARRIVE,
        name="new timeouts are counted as known",
    ),
    Mutant(
        name="a timeout of a used id leaves the source",
        promise="A timeout stays at the source if the target has other content under its id.",
        file="timeoutmgr/migration/batch_step.py",
        before="for item in items} - used",
        after="for item in items}",
        tests=(
            "tests/migration/test_store_to_store.py"
            "::test_a_timeout_whose_id_has_other_content_at_the_target_stays[sqlite]",
        ),
    ),
    breaks(
        136,
        "persistence/sql/migration/target.py",
        (
            "row = to_row(self._context.endpoint, item.timeout)\n",
            'row = to_row(self._context.endpoint, item.timeout)\n            row["due"] += 1\n',
        ),
        _ALL_ARRIVE,
        name="a move makes a timeout late by a microsecond",
    ),
    breaks(
        137,
        "timeoutmgr/migration/levels/target.py",
        ("        if survey.latest is not None:\n", "        if survey.latest is None:\n"),
        "tests/migration/test_into_levels.py::test_every_problem_is_named_and_nothing_moves",
        name="a due time beyond the levels is not reported",
    ),
    breaks(
        138,
        "timeoutmgr/endpoint/timeouts.py",
        (
            "result in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT)",
            "result is ChangeResult.MAYBE_SENT",
        ),
        "tests/endpoint/test_timeouts.py::"
        "test_a_rescheduled_timeout_has_its_new_due_time_and_wakes_the_poller",
        name="a rescheduled timeout wakes nobody",
    ),
    breaks(
        141,
        _INSTALLATION,
        (
            "    _require_queues(parts)\n",
            "    session = settings.transport.session()\n"
            "    session.delete_queues(parts.queues)\n"
            "    session.close()\n"
            "    create_queues(parts)\n"
            "    _require_queues(parts)\n",
        ),
        "tests/acceptance/test_crashes.py::"
        "test_the_next_start_delivers_messages_that_became_due_during_a_pause[sql_sqlite+sqlite]",
        name="a start empties the queues",
    ),
)

"""Storing, claiming, taking, closing and changing in a SQL database."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_TESTS = "tests/persistence"
_CLAIMING = "persistence/sql/claim/claimer.py"
_CLAIMING_TESTS = f"{_TESTS}/test_claiming.py"
_TAKING = "persistence/sql/dispatch/lock.py"
_TAKING_TESTS = f"{_TESTS}/test_taking.py"
_CLOSING = "persistence/sql/dispatch/outcomes.py"
_CHANGING = "persistence/sql/commands.py"
_CHANGING_TESTS = f"{_TESTS}/test_changing.py"
_STORING = "persistence/sql/insert.py"
_STORING_TESTS = f"{_TESTS}/test_storing.py"
_CONDITIONS = "persistence/sql/rows.py"

MUTANTS = (
    # --- storing
    Mutant(
        name="a redelivered store message is stored again",
        behaviour=34,
        promise="An id is stored once in its life.",
        file=_STORING,
        before="if not self._insert_keys(connection, [item]):\n",
        after="if self._insert_keys(connection, [item]) not in (0, 1):\n",
        tests=(
            f"{_STORING_TESTS}::test_a_redelivery_does_not_revive_a_dispatched_timeout[sqlite]",
        ),
    ),
    Mutant(
        name="of one id twice in a batch the last counts",
        promise="What was sent first under an id is what is delivered.",
        file=_STORING,
        before="for item in sorted(batch, key=lambda one:",
        after="for item in sorted(reversed(batch), key=lambda one:",
        tests=(f"{_STORING_TESTS}::test_of_one_id_twice_in_a_batch_the_first_counts[sqlite]",),
    ),
    Mutant(
        name="storing commits by itself inside a caller's transaction",
        promise="What is sent inside a transaction exists if that commits.",
        file=_STORING,
        before="""\
        with connection.begin_nested():
            return work(connection)
""",
        after="""\
        return self._context.database.run(work)
""",
        tests=(
            "tests/persistence/test_storing_inside.py::"
            "test_new_timeouts_come_and_go_with_the_callers_transaction[postgres]",
        ),
    ),
    # --- claiming
    Mutant(
        name="a claim ignores the claims in force",
        behaviour=47,
        promise="What is claimed is not handed out again.",
        file=_CLAIMING,
        before="        active = self._drop_ended(locked, claims)\n",
        after="        active: list[Claim] = []\n",
        tests=(f"{_CLAIMING_TESTS}::test_a_claimed_key_is_not_claimed_again[sqlite]",),
    ),
    Mutant(
        name="a claim takes what is due within a second",
        promise="Nothing is handed out before its microsecond.",
        file=_CLAIMING,
        before="until = now + request.ahead\n",
        after="until = now + 1_000_000\n",
        tests=(f"{_CLAIMING_TESTS}::test_next_due_is_the_next_in_the_future[sqlite]",),
    ),
    Mutant(
        name="a look takes now for not yet",
        promise="A timeout is handed out from its microsecond on.",
        file=_CLAIMING,
        before="if first.due > (int(first.now)",
        after="if first.due >= (int(first.now)",
        tests=(
            f"{_CLAIMING_TESTS}"
            "::test_a_row_of_another_process_is_claimed_from_its_microsecond_on[sqlite]",
        ),
    ),
    Mutant(
        name="the bound on ids in flight is one of each chunk",
        behaviour=50,
        promise="Ids in flight stay well below what a claim's time allows.",
        file=_CLAIMING,
        before="most - in_flight",
        after="most",
        tests=(f"{_CLAIMING_TESTS}::test_no_more_ids_are_in_flight_than_is_set",),
    ),
    Mutant(
        name="a claim reaches over the claim of another",
        promise="Intervals in force never overlap.",
        file=_CLAIMING,
        before="gap.start, gap.end, locked.until",
        after="gap.start, None, locked.until",
        tests=(
            "tests/persistence/test_intervals.py::test_a_claim_ends_where_the_next_one_begins[sqlite]",
        ),
    ),
    Mutant(
        name="a burst goes on behind what was stored before it",
        promise="What this process stores before a burst goes next.",
        file=_CLAIMING,
        before="        self._cursor.notify_stored(due)\n        self._burst.stop()\n",
        after="        self._cursor.notify_stored(due)\n",
        tests=(
            "tests/persistence/test_bursts.py::"
            "test_a_row_that_this_process_stores_before_a_burst_goes_next[sqlite]",
        ),
    ),
    Mutant(
        name="a burst without an end",
        promise="What others store before a burst is not starved by it.",
        file="persistence/sql/claim/hints.py",
        before="            if self._chunks >= LONGEST_BURST:\n",
        after="            if not self._chunks:\n",
        tests=(
            "tests/persistence/test_bursts.py::"
            "test_an_endless_burst_does_not_starve_rows_before_it[sqlite]",
        ),
    ),
    Mutant(
        name="the horizon is never left",
        promise="What another process stores before the horizon is found.",
        file="persistence/sql/claim/hints.py",
        before="            if self._clock.monotonic() >= self._full_scan:\n",
        after="            if False:\n",
        tests=(
            "tests/persistence/test_bursts.py::"
            "test_a_row_that_another_process_stores_before_a_burst_goes_within_a_second[sqlite]",
        ),
    ),
    Mutant(
        name="a claim never lapses",
        behaviour=48,
        promise="What a process that hangs has claimed is free in the end.",
        file=_CLAIMING,
        before="            over = claim.claimed_until <= locked.now or claim.owner in dead\n",
        after="            over = claim.owner in dead\n",
        tests=(f"{_CLAIMING_TESTS}::test_a_claim_lapses_by_the_clock[sqlite]",),
    ),
    Mutant(
        name="a lapsed claim is dropped over the heads of those at work",
        promise="What a dispatcher has in hand is not handed out, whatever the clock says.",
        file=_CLAIMING,
        before="        return flag_free_rows(connection, self._context, claim.interval)\n",
        after="""\
        flag_free_rows(connection, self._context, claim.interval)
        return True
""",
        tests=(
            f"{_TAKING_TESTS}::"
            "test_a_lapsed_claim_is_not_replaced_while_its_rows_are_locked[postgres]",
        ),
    ),
    Mutant(
        name="a release in doubt ends the claim of a dispatcher at work",
        promise="Only who has a claim in hand ends it.",
        file=_CLAIMING,
        before="            return not claim.is_locked  # a dispatcher fenced the claim\n",
        after="            return True\n",
        tests=(f"{_TAKING_TESTS}::test_a_release_in_doubt_leaves_a_dispatcher_at_work[sqlite]",),
    ),
    # --- pages
    Mutant(
        name="a page skips what is due at the instant it begins at",
        promise="Pages cover everything once.",
        file=_CONDITIONS,
        before="after: Final = partial(_compared, gt)\n",
        after="after: Final = lambda _context, due, _id, key: due > key[0]\n",
        tests=(f"{_TESTS}/test_looking.py::test_pages_cover_everything_once_in_order[sqlite]",),
    ),
    Mutant(
        name="behind a claim the rest of its last instant is not seen",
        behaviour=45,
        promise="More rows of one instant than a chunk holds all go out.",
        file="persistence/sql/claim/hints.py",
        before='    return Key(key.due, key.id + "\\x01")\n',
        after='    return Key(key.due + 1, "")\n',
        tests=(
            f"{_CLAIMING_TESTS}::test_more_rows_of_one_instant_than_a_page_all_go_out_once[sqlite]",
        ),
    ),
    # --- taking
    Mutant(
        name="due is not looked at again when taking",
        promise="What was moved after its claim is not sent early.",
        file=_TAKING,
        before="return timeouts.c.hidden_by.is_(None), timeouts.c.due <= latest",
        after="return (timeouts.c.hidden_by.is_(None),)",
        tests=(
            "tests/persistence/test_early.py::"
            "test_a_row_that_is_not_due_is_not_locked_although_it_is_asked_for[postgres]",
        ),
    ),
    Mutant(
        name="two dispatchers pass one fence",
        promise="What is in hand is left out for others, where rows cannot be locked.",
        file=_TAKING,
        before="                    claims.c.taken_by.is_(None),\n",
        after="",
        tests=(f"{_TAKING_TESTS}::test_a_locked_row_is_left_out_for_other_dispatchers[sqlite]",),
    ),
    Mutant(
        name="rows are taken without a lock",
        promise="What is in hand is left out for others, where rows can be locked.",
        file=_TAKING,
        before=".with_for_update(\n            skip_locked=True, of=timeouts\n        )",
        after="",
        tests=(f"{_TAKING_TESTS}::test_a_locked_row_is_left_out_for_other_dispatchers[postgres]",),
    ),
    Mutant(
        name="no claim before the publish",
        promise="A crash after the publish leaves a trace for a later cancel.",
        file=_TAKING,
        before='        context.database.run(work)\n        reach("taking.claim_added")\n',
        after='        reach("taking.claim_added")\n',
        tests=(
            f"{_TAKING_TESTS}::"
            "test_a_control_message_without_its_claim_still_leaves_a_trace[postgres]",
        ),
    ),
    Mutant(
        name="what was taken and not closed bears no mark",
        promise="A cancel says so where the message may have been sent.",
        file=_TAKING,
        before="                flag_maybe_sent(connection, self._context, list(rows))\n",
        after="                pass\n",
        tests=(
            f"{_TAKING_TESTS}::test_leaving_without_close_gives_back_and_says_maybe_sent[sqlite]",
        ),
    ),
    Mutant(
        name="all bodies of a chunk are in hand together",
        promise="What a process has in memory has a bound, whatever it is given.",
        file="persistence/sql/dispatch/lock.py",
        before="if number and total > TOGETHER:",
        after="if number and total > TOGETHER and not rows:",
        tests=(f"{_TESTS}/test_bodies.py::test_large_bodies_are_locked_in_sub_batches[sqlite]",),
    ),
    # --- closing
    Mutant(
        name="no tombstone after a dispatch",
        promise="A redelivered store message does not bring back what was dispatched.",
        file=_CLOSING,
        before="            self._context.writing.close_keys(connection, ids, state, at)\n",
        after="            self._context.writing.close_keys(connection, [], state, at)\n",
        tests=(
            f"{_TAKING_TESTS}::test_dispatched_and_failed_timeouts_are_removed_for_good[sqlite]",
        ),
    ),
    Mutant(
        name="who is passed by ends the claim of who holds the rows",
        promise="A claim ends with the dispatcher that works under it.",
        file=_CLOSING,
        before="            lapse(connection, self._context, token)\n",
        after="            remove_claims(connection, self._context, [token])\n",
        tests=(
            f"{_TAKING_TESTS}::"
            "test_a_dispatcher_that_is_passed_by_leaves_the_claim_to_its_holder[postgres]",
        ),
    ),
    Mutant(
        name="a claim that is passed by is kept to its time-out",
        promise="What a change held at the moment of its dispatch is dispatched right after it.",
        file=_CLOSING,
        before="            lapse(connection, self._context, token)\n",
        after="            pass\n",
        tests=(
            f"{_TAKING_TESTS}::"
            "test_a_claim_on_a_row_that_a_change_held_ends_with_the_change[postgres]",
        ),
    ),
    Mutant(
        name="COPY leaves a row out",
        behaviour=45,
        promise="A batch is stored wholly or not at all.",
        file="timeoutmgr/database/batch_inserts.py",
        before="        for row in rows:\n",
        after="        for row in rows[1:]:\n",
        tests=(
            f"{_CLAIMING_TESTS}::test_more_rows_of_one_instant_than_a_page_all_go_out_once[postgres]",
        ),
    ),
    Mutant(
        name="history is not in the transaction of what it tells of",
        promise="History says what happened, and nothing that was undone.",
        file="persistence/sql/rows.py",
        before="    context.writing.insert_rows(connection, context.tables.history, entries)\n",
        after="""\
    context.database.run(
        lambda own: context.writing.insert_rows(own, context.tables.history, entries)
    )
""",
        tests=(f"{_TESTS}/test_history.py::test_history_is_undone_with_its_outcome[failed]",),
    ),
    # --- changing
    Mutant(
        name="a cancel of what was never seen leaves no tombstone",
        behaviour=31,
        promise="A store message that comes after the cancel is dropped.",
        file=_CHANGING,
        before=(
            "        return insert_missing("
            "connection, self._context.tables.keys, [tombstone]) == 1\n"
        ),
        after="        return bool(tombstone)\n",
        tests=(
            f"{_STORING_TESTS}::test_a_store_message_that_comes_after_the_cancel_is_dropped[sqlite]",
        ),
    ),
    Mutant(
        name="a cancel overtakes a dispatcher at work",
        promise="A cancel says too late while the message is being sent.",
        file=_CHANGING,
        before="one.claimed_until > now and one.owner not in dead]",
        after="one.claimed_until > now and one.owner in dead]",
        tests=(f"{_CHANGING_TESTS}::test_a_change_of_a_locked_row_is_too_late[sqlite]",),
    ),
    Mutant(
        name="a cancel is sure where a claim ended without a word",
        promise="A cancel says cancelled only where nothing was sent.",
        file=_CHANGING,
        before="        return _LockedTimeout(row, bool(row.maybe_sent or claims))\n",
        after="        return _LockedTimeout(row, False)\n",
        tests=(f"{_CHANGING_TESTS}::test_a_claim_that_lapsed_leaves_maybe_sent[sqlite]",),
    ),
    Mutant(
        name="a reschedule does not raise the version",
        promise="What was moved is told from what was stored by its version.",
        file=_CHANGING,
        before="due=due, version=key.version + 1",
        after="due=due, version=key.version",
        tests=(
            "tests/persistence/test_versions.py::test_every_reschedule_raises_the_version[sqlite]",
        ),
    ),
    Mutant(
        name="a reschedule leaves the key at the old due time",
        promise="A rescheduled timeout is found by its id.",
        file=_CHANGING,
        before="self._change_key.values(due=due, version",
        after="self._change_key.values(version",
        tests=(
            f"{_TESTS}/test_looking.py::test_key_of_follows_a_timeout_until_it_is_closed[sqlite]",
        ),
    ),
    Mutant(
        name="a clear does not reach what its consumer stored",
        promise="A clear goes by the order of the queue.",
        file="timeoutmgr/contracts/sagas.py",
        before="return place.receiver == self.place.receiver or place.at < self.place.since",
        after="return place.at < self.place.since",
        behaviour=31,
        tests=(
            "tests/satellites/test_timeouts.py::"
            "test_a_clear_goes_by_the_order_of_the_queue_and_by_no_senders_clock",
        ),
    ),
    Mutant(
        name="a message that a consumer had is stored though its saga was cleared",
        promise="A clear is remembered for messages that a consumer had.",
        file="timeoutmgr/contracts/sagas.py",
        before="        return timeout.created <= self.sent\n",
        after="        return False\n",
        behaviour=31,
        tests=(
            "tests/satellites/test_timeouts.py::"
            "test_of_what_another_consumer_had_the_time_of_sending_decides",
        ),
    ),
    Mutant(
        name="clearing a saga takes what was sent after the order",
        promise="A saga's later timeouts outlive a clear that comes late.",
        file="timeoutmgr/contracts/sagas.py",
        before="if timeout_id in self.ahead or created <= self.sent:",
        after="if timeout_id in self.ahead or self.sent >= 0:",
        tests=(
            f"{_CHANGING_TESTS}::test_a_sagas_cancel_leaves_timeouts_that_were_sent_after_it[sqlite]",
        ),
    ),
    # --- purging
    Mutant(
        name="a tombstone is purged at half its age",
        promise="Tombstones outlive every redelivery.",
        file="persistence/sql/maintenance.py",
        before="        tombstones = duration_micros(settings.tombstone_retention)\n",
        after="        tombstones = duration_micros(settings.tombstone_retention) // 2\n",
        tests=(
            f"{_TESTS}/test_looking.py::"
            "test_tombstones_outlive_redeliveries_and_are_purged_in_the_end[sqlite]",
        ),
    ),
    # --- replacing
    Mutant(
        name="a message that its replacement overtook is a conflict",
        promise="Messages of one id count in the order in which they were sent.",
        file="persistence/remembered.py",
        before="RepeatKind.SUPERSEDED if self.overtook(timeout) else RepeatKind.CONFLICT",
        after="RepeatKind.CONFLICT",
        tests=(
            "tests/testing/test_conformance_stores.py::TestSqlite::"
            "test_a_message_behind_its_replacement_counts_as_replaced[pending]",
        ),
    ),
    Mutant(
        name="any message from before a replacement counts as replaced",
        promise="A message with other content under a used id is not lost.",
        file="persistence/remembered.py",
        before="    return replace(remembered, first=content).pack()\n",
        after="    return packed\n",
        tests=(
            "tests/testing/test_conformance_stores.py::TestSqlite::"
            "test_a_message_behind_its_replacement_counts_as_replaced[pending]",
        ),
    ),
)

"""Changes of many, pauses, the audit, and answers of a bounded cost."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_DISK = (
    "tests/persistence/test_moving.py::"
    "test_a_claim_and_a_move_wait_for_no_disk_and_what_others_count_on_does"
)
_SQL = "persistence/sql"
_PAUSING = "tests/persistence/test_pausing.py"
_BULK = "tests/persistence/test_bulk_runs.py"
_AUDIT = "tests/persistence/test_auditing.py"
_INSIGHT = "tests/persistence/test_insight.py"
_LABELS = "tests/persistence/test_labels.py"
_GOES_ON = (
    "tests/persistence/test_load_counts.py::"
    "test_a_process_goes_on_where_another_has_stopped_and_nothing_is_counted_twice"
)

MUTANTS = (
    Mutant(
        name="a part of a bucket is shown as the whole bucket",
        promise="A background count is shown when its bucket is counted to its end.",
        file=f"{_SQL}/load_counts.py",
        before="        until = one.end if end is None else one.tile(end.due)\n",
        after="        until = one.end if end is None else one.tile(end.due) + one.width\n",
        tests=(_GOES_ON,),
    ),
    Mutant(
        name="a pass forgets what is counted of its bucket",
        promise="A process goes on behind the last slice of another process.",
        file=f"{_SQL}/load_counts.py",
        before="            tallies[one.written] = one.tally\n",
        after="            pass\n",
        tests=(_GOES_ON,),
    ),
    Mutant(
        name="a lock for dispatch asks for no pause",
        promise="From the commit of a pause on no process sends what it holds.",
        file=f"{_SQL}/dispatch/lock.py",
        before="        if any([row[_PARKED_AT] is not None for row in answer]):\n",
        after="        if not answer and any([row[_PARKED_AT] is not None for row in answer]):\n",
        tests=(
            f"{_PAUSING}::"
            "test_from_the_commit_of_a_pause_on_no_process_sends_what_was_claimed[sqlite]",
        ),
    ),
    Mutant(
        name="a move inside the database asks for no pause",
        promise="From the commit of a pause on no process sends what it holds.",
        file=f"{_SQL}/dispatch/in_database.py",
        before="            parked_at(context).element.is_(None),\n",
        after="",
        tests=("tests/persistence/test_moving.py::test_a_timeout_that_a_pause_holds_is_not_moved",),
    ),
    Mutant(
        name="a move inside the database waits for the disk",
        promise="What only carries a message on inside the database commits lazily.",
        file=f"{_SQL}/dispatch/in_database.py",
        before="committed_lazily(locked.where(keyed, *can_go))",
        after="locked.where(keyed, *can_go)",
        tests=(_DISK,),
    ),
    Mutant(
        name="a claim whose messages leave the database does not wait for the disk",
        promise="What may have been sent is told.",
        file=f"{_SQL}/context.py",
        before="        if context.atomic:\n",
        after="        if context:\n",
        tests=(
            "tests/persistence/test_moving.py::"
            "test_a_claim_whose_messages_leave_the_database_waits_for_the_disk",
        ),
    ),
    Mutant(
        name="an acknowledgement with its effects does not wait for the disk",
        promise="What was settled stays settled.",
        file="timeoutmgr/transport/sql/leases.py",
        before="        read_by_index(connection, commit_lazily=lazily)\n",
        after="        read_by_index(connection, commit_lazily=True)\n",
        tests=(_DISK,),
    ),
    Mutant(
        name="a resume does not wait for a dispatcher that parks",
        promise="No row is parked for a pause that has ended.",
        file=f"{_SQL}/pauses.py",
        before="            .with_for_update(read=True)\n",
        after="",
        tests=(f"{_PAUSING}::test_a_dispatcher_that_parks_now_is_awaited_by_the_resume[postgres]",),
    ),
    Mutant(
        name="a parked timeout leaves its labels behind",
        promise="The rows of labels stand at the key of their timeout.",
        file=f"{_SQL}/pauses.py",
        before="PlaceMove(key, place, due_of(row), row.headers)",
        after="PlaceMove(key, place, due_of(row))",
        tests=(f"{_LABELS}::test_rows_of_labels_go_with_parked_timeouts_and_come_back[sqlite]",),
    ),
    Mutant(
        name="a bulk cancel leaves labels behind",
        promise="The rows of labels stand at the key of their timeout.",
        file=f"{_SQL}/row_changes.py",
        before="        self._labels.remove(connection, "
        "[(key, free[key][0].labelled) for key in ordered])\n",
        after="",
        tests=(f"{_LABELS}::test_rows_of_labels_go_with_a_bulk_run_and_its_undo[sqlite]",),
    ),
    Mutant(
        name="a bulk run changes what changed after its plan",
        promise="The selection of a bulk run is frozen.",
        file=f"{_SQL}/bulk_runs.py",
        before=" if found[0].version == versions[key]}",
        after="}",
        tests=(f"{_BULK}::test_what_is_stored_or_changed_after_the_plan_stays_out[sqlite]",),
    ),
    Mutant(
        name="a plan is applied at any time",
        promise="A plan is applied within a day.",
        file=f"{_SQL}/bulk_runs.py",
        before="> PLAN_KEPT:\n",
        after="> PLAN_KEPT**2:\n",
        tests=(f"{_BULK}::test_a_plan_is_applied_within_a_day[sqlite]",),
    ),
    Mutant(
        name="an undo does not see what the run has left",
        promise="An undo restores what the run has changed, and nothing else.",
        file=f"{_SQL}/bulk_runs.py",
        before="            if one.is_left:\n",
        after="            if one.is_left and run.undone:\n",
        tests=(f"{_BULK}::test_an_undo_leaves_what_the_run_has_left[sqlite]",),
    ),
    Mutant(
        name="a chain of the audit goes on before its commit",
        promise="The rows of the audit are whole chains, whatever transactions come to.",
        file=f"{_SQL}/audit.py",
        before="        after_commit(connection, partial(self._give_back, next_row))\n",
        after="        self._give_back(next_row)\n",
        tests=(f"{_AUDIT}::test_a_change_that_is_undone_leaves_no_row[sqlite]",),
    ),
    Mutant(
        name="an edited row of the audit is not found",
        promise="An edited row of the audit is found.",
        file="timeoutmgr/contracts/audit.py",
        before="        if row.digest() != row.hash:\n",
        after="        if not row.digest():\n",
        tests=(f"{_AUDIT}::test_an_edited_row_is_found[sqlite]",),
    ),
    Mutant(
        name="a failed attempt leaves no row in the audit",
        promise="The audit has failed and denied attempts.",
        file="timeoutmgr/endpoint/attempts.py",
        before="        _keep(store, entry)\n        raise\n",
        after="        raise\n",
        tests=(f"{_AUDIT}::test_a_denied_and_a_failed_attempt_are_kept[sqlite]",),
    ),
    Mutant(
        name="a cancel of many leaves no row in the audit",
        promise="Each change commits with a row of the audit.",
        file=f"{_SQL}/mass_cancel.py",
        before="            self._audit.write(connection, _audited(order, part))\n",
        after="            _audited(order, part)\n",
        tests=(f"{_AUDIT}::test_each_change_leaves_exactly_one_row[sqlite]",),
    ),
    Mutant(
        name="a count reads all rows",
        promise="An answer reads a bounded number of rows.",
        file=f"{_SQL}/searches.py",
        before="            left -= size\n",
        after="            left -= 0\n",
        tests=(
            "tests/persistence/test_searches.py::"
            "test_a_search_of_fast_rows_ends_behind_so_many_rows",
        ),
    ),
    Mutant(
        name="a count beside many retries reads all of them",
        promise="An answer reads a bounded number of rows.",
        file=f"{_SQL}/insight.py",
        before="            waiting_apart=waiting <= LOOKED_AT,\n",
        after="            waiting_apart=True,\n",
        tests=(f"{_INSIGHT}::test_a_filter_that_matches_nothing_reads_few_rows[9]",),
    ),
    Mutant(
        name="a bounded count calls itself exact",
        promise="An answer that ends at a bound says so.",
        file=f"{_SQL}/insight.py",
        before="exact=search.end is None)",
        after="exact=True)",
        tests=(
            "tests/persistence/test_counting.py::"
            "test_where_no_index_helps_only_the_first_rows_are_read[sqlite]",
        ),
    ),
)

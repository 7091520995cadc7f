"""Recurring timeouts: each occurrence has its one run."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_CHANGES = "timeoutmgr/recurrence/changes.py"
_MODEL = "tests/model/test_recurring.py"
_ONE_RUN = "Each occurrence of a schedule has one run, from any number of processes."

MUTANTS = (
    Mutant(
        name="a run that is sent late is not the one run",
        promise="With catch_up one there is one run for all missed occurrences.",
        file=_CHANGES,
        before="        if _runs_late(locked.run_state(record.run_id), first):\n",
        after="        if False:\n",
        tests=(f"{_MODEL}::test_after_an_outage_the_policy_decides_about_missed_occurrences",),
    ),
    Mutant(
        name="the id of a run does not name its instant",
        promise=_ONE_RUN,
        file=_CHANGES,
        before="definition.name, str(due), str(number))",
        after="definition.name, str(number))",
        tests=(f"{_MODEL}::test_each_occurrence_has_one_run_while_processes_run",),
    ),
    Mutant(
        name="an occurrence is done although its run was cancelled by a pause",
        promise=_ONE_RUN,
        file=_CHANGES,
        before="    done = record.done_until if is_cancelled else record.run_due\n",
        after="    done = record.run_due\n",
        tests=(f"{_MODEL}::test_after_a_pause_each_occurrence_has_one_run",),
    ),
    Mutant(
        name="a process stores a run of a schedule that was paused meanwhile",
        promise="A pause holds in all processes.",
        file=_CHANGES,
        before="""    result = Advance(record)
    if not record.is_paused and (record""",
        after="""    result = Advance(record)
    if (record""",
        tests=(f"{_MODEL}::test_after_a_pause_each_occurrence_has_one_run",),
    ),
    Mutant(
        name="missed occurrences are skipped",
        promise="With catch_up all each missed occurrence has a run.",
        file=_CHANGES,
        before="    if not missed or policy is CatchUp.ALL:\n",
        after="    if not missed:\n",
        tests=(f"{_MODEL}::test_after_an_outage_the_policy_decides_about_missed_occurrences",),
    ),
    Mutant(
        name="in the testing kit a schedule ends with a cancelled run",
        promise="The testing kit runs recurring timeouts as an endpoint does.",
        file="timeoutmgr/testing/kit/worker.py",
        before="            if record.run_due is not None and record.run_due > now:\n",
        after="            if False:\n",
        tests=(
            "tests/testing/test_kit_recurring.py"
            "::test_a_cancelled_run_is_left_out_and_the_next_run_comes",
        ),
    ),
)

"""Before the first batch: look, judge, write the plan down, or find the run to go on with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationRefused
from timeoutmgr.migration.clocks import offsets
from timeoutmgr.migration.ports import PlanInputs
from timeoutmgr.migration.runs import MigrationRun, Problem, Survey, Terms
from timeoutmgr.migration.states import MigrationRunState
from timeoutmgr.migration.window import SOON

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Preview of a run. With *problems* it would not start; with *warnings* it would."""

    terms: Terms
    survey: Survey
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def preview(parts: PlanInputs, terms: Terms) -> Preview:
    """Look at source and target; change nothing."""
    survey = parts.source.survey(terms.window)
    warnings = []
    if survey.earliest is not None and survey.earliest - parts.source.now() < SOON:
        warnings.append(
            "the nearest timeout is due in less than 4 hours; a run that is interrupted that long "
            "delivers it late"
        )
    apart = offsets(parts)
    warnings += [one.warning() for one in apart if not one.is_refused]
    return Preview(
        terms=terms,
        survey=survey,
        problems=(
            *(one.problem() for one in apart if one.is_refused),
            *survey.problems,
            *parts.target.problems(survey),
        ),
        warnings=tuple(warnings),
    )


def refuse_problems(found: Preview) -> None:
    """Raise MigrationRefused where *found* names a problem."""
    if found.problems:
        raise MigrationRefused(
            f"endpoint {found.terms.endpoint!r}: nothing was moved",
            [str(problem) for problem in found.problems],
        )


def refuse_clocks(parts: PlanInputs, endpoint: str) -> None:
    """Raise MigrationRefused if clocks are further apart than is accepted; log smaller offsets."""
    apart = offsets(parts)
    refused = [str(one.problem()) for one in apart if one.is_refused]
    if refused:
        raise MigrationRefused(f"endpoint {endpoint!r}: nothing was moved", refused)
    for one in apart:
        logger.warning(
            "migration of endpoint %s: %s",
            endpoint,
            one.warning(),
            extra={"event": "clock_offset", "endpoint": endpoint},
        )


def begin(parts: PlanInputs, terms: Terms, new_id: Callable[[], str]) -> MigrationRun:
    """Return the run of this runner: a new run, or the run left open.

    Raises MigrationRefused for any problem, for clocks that are too far apart, for terms that
    differ from an open run, and while another process works at the run.
    """
    refuse_clocks(parts, terms.endpoint)
    found = parts.ledger.open_run()
    if found is None:
        refuse_problems(preview(parts, terms))
        ranges = parts.source.ranges(terms.window, terms.batch)
        run = parts.ledger.create(new_id(), terms, ranges, parts.runner)
        reach("migration.planned")
    else:
        _refuse_others(found, terms)
        run = parts.ledger.acquire(found.id, parts.runner)
        reach("migration.taken_over")
    if run.state is not MigrationRunState.PLANNED:
        return run
    parts.source.prepare(run.id)
    reach("migration.prepared")
    parts.target.open(run.id)
    reach("migration.opened")
    if parts.source.is_same_store_as_target(run.id):
        parts.target.shut(run.id)
        parts.ledger.move_run(run.id, MigrationRunState.ABORTED)
        raise MigrationRefused(
            "source and target are the same tables",
            ["name another --from or --to; nothing was moved"],
        )
    parts.ledger.move_run(run.id, MigrationRunState.RUNNING)
    return run


def _refuse_others(run: MigrationRun, terms: Terms) -> None:
    if run.state is MigrationRunState.ABORTING:
        raise MigrationRefused(
            f"run {run.id} is being aborted", ["finish that first: `timeoutmgr migrate abort`"]
        )
    differences = run.terms.differences(terms)
    if differences:
        raise MigrationRefused(
            f"run {run.id} is open and has other terms; go on with the same, or abort it",
            differences,
        )

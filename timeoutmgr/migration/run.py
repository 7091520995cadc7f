"""Whole migrations between any source and target, for commands and other programs."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import MigrationRefused
from timeoutmgr.migration.clocks import offsets
from timeoutmgr.migration.movers import Movers
from timeoutmgr.migration.ports import MigrationLedger, PlanInputs
from timeoutmgr.migration.runs import (
    SOON,
    Batch,
    BatchState,
    MigrationRun,
    MigrationRunState,
    Problem,
    Survey,
    Terms,
)

logger = logging.getLogger(__name__)

# --- before the first batch: preview, check, write the plan, or find the run to continue ----------


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Preview of a run. *problems* would prevent its start, *warnings* would not."""

    terms: Terms
    survey: Survey
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def preview(parts: PlanInputs, terms: Terms) -> Preview:
    """Inspect source and target; change nothing."""
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
            *_one_store(parts),
            *(one.problem() for one in apart if one.is_refused),
            *survey.problems,
            *parts.target.problems(survey),
        ),
        warnings=tuple(warnings),
    )


def _one_store(parts: PlanInputs) -> Iterator[Problem]:
    """Yield the problem that source and target are one store, where each timeout would be known.

    If one store has two names (of its host, say), this is noticed when the run begins.
    """
    if parts.is_one_store:
        what = "source and target are the same tables"
        yield Problem(parts.source.describe(), what, "name another --from or --to")


def refuse_problems(found: Preview) -> None:
    """Raise MigrationRefused if *found* has a problem."""
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
        fields = {"event": "clock_offset", "endpoint": endpoint}
        logger.warning("migration of endpoint %s: %s", endpoint, one.warning(), extra=fields)


def begin(parts: PlanInputs, terms: Terms, new_id: Callable[[], str]) -> MigrationRun:
    """Return the run of this runner: a new run, or the open run.

    Raises MigrationRefused for any problem, for clocks that are too far apart, for terms that
    differ from an open run, and while another process works on the run.
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


# --- the report of a run, added up from its batches -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Counts of a whole run; see :class:`timeoutmgr.migration.Batch` for their meaning.

    *planned* may be more than *collected* (some were due, or cancelled, before their batch came) or
    less (some were stored into a range meanwhile).
    """

    run: str
    endpoint: str
    source: str
    target: str
    state: MigrationRunState
    batches: int
    batches_done: int
    planned: int
    collected: int
    new: int
    known: int
    returned: int
    repeated: int

    @property
    def verified(self) -> bool:
        """Whether each collected timeout is accounted for in one place."""
        return self.new + self.known + self.returned == self.collected

    def document(self) -> dict[str, Any]:
        """Return the report as plain values."""
        values = {
            "taken" if name == "collected" else name: value for name, value in asdict(self).items()
        }
        return {**values, "state": self.state.value, "verified": self.verified}


def report(ledger: MigrationLedger, run: MigrationRun, state: MigrationRunState) -> Report:
    """Return the report of *run*, which is (about to be) in *state*."""
    totals = ledger.totals(run.id)
    return Report(
        run=run.id,
        endpoint=run.terms.endpoint,
        source=run.terms.source,
        target=run.terms.target,
        state=state,
        batches=sum(totals.get(f"batches_{one.value}", 0) for one in BatchState),
        batches_done=totals.get(f"batches_{BatchState.DONE.value}", 0),
        planned=totals["planned"],
        collected=totals["taken"],
        new=totals["new"],
        known=totals["known"],
        returned=totals["returned"],
        repeated=totals["repeated"],
    )


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class AnyParticipants(PlanInputs, Protocol):
    """The participants of a run, with its loops."""

    def migrate(
        self, run: MigrationRun, on_batch: Callable[[Batch], None] = lambda _batch: None
    ) -> Report:
        """Move every batch that is not done; verify, and save the report."""
        ...

    def abort(self, run: MigrationRun) -> Report:
        """Abort *run*; timeouts at the target stay there."""
        ...

    def close(self) -> None:
        """Release the run, then close source and target."""
        ...


def refuse_any_problem(endpoints: Sequence[tuple[AnyParticipants, Terms]]) -> None:
    """Raise MigrationRefused for the problems of all *endpoints*, before anything is moved.

    An open run was checked when it began.
    """
    reasons = [
        f"{terms.endpoint}: {problem}"
        for parts, terms in endpoints
        if parts.ledger.open_run() is None
        for problem in preview(parts, terms).problems
    ]
    if reasons:
        raise MigrationRefused("nothing was moved", reasons)


def move_all(
    parts: AnyParticipants,
    terms: Terms,
    on_batch: Callable[[Batch], None] = lambda _batch: None,
    movers: Movers | None = None,
) -> Report:
    """Begin a run, or continue the open run, and move all of it; *movers* move batches first."""
    run = begin(parts, terms, lambda: uuid.uuid4().hex[:12])
    if movers is not None:
        found = report(parts.ledger, run, run.state)
        movers.move(run, found.batches - found.batches_done, on_batch)
    return parts.migrate(run, on_batch)


def give_up(parts: AnyParticipants, others: Mapping[str, str] = _NOTHING) -> Report | None:
    """Abort the open run; return None if there is none.

    Raises MigrationRefused if the run was between other places, or had different *others*: a batch
    that is sent to its end must not go to destinations under their old names.
    """
    found = parts.ledger.open_run()
    if found is None:
        return None
    ends = (parts.source.describe(), parts.target.describe())
    if (found.terms.source, found.terms.target) != ends:
        raise MigrationRefused(
            f"run {found.id} goes elsewhere",
            [f"it is from {found.terms.source} to {found.terms.target}; name both"],
        )
    if dict(found.terms.others) != dict(others):
        given_terms = " ".join(f"{name}={value!r}" for name, value in found.terms.others.items())
        raise MigrationRefused(
            f"run {found.id} has other terms",
            [f"it was begun with {given_terms or 'none'}; say the same"],
        )
    run = parts.ledger.acquire(found.id, parts.runner)
    return parts.abort(run)

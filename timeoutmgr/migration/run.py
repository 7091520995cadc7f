"""Whole migrations, of any source and target, for commands and other programs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from timeoutmgr.errors import MigrationRefused
from timeoutmgr.migration.plan import begin, preview
from timeoutmgr.migration.ports import PlanInputs
from timeoutmgr.migration.report import Report
from timeoutmgr.migration.runs import Batch, MigrationRun, Terms

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class AnyParticipants(PlanInputs, Protocol):
    """The participants of a run; they carry its loops."""

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

    A run that is open was looked at when it began.
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
    parts: AnyParticipants, terms: Terms, on_batch: Callable[[Batch], None] = lambda _batch: None
) -> Report:
    """Begin a run, or continue the open run, and move all of it."""
    run = begin(parts, terms, lambda: uuid.uuid4().hex[:12])
    return parts.migrate(run, on_batch)


def give_up(parts: AnyParticipants, others: Mapping[str, str] = _NOTHING) -> Report | None:
    """Abort the open run; None where there is none.

    Raises MigrationRefused where it was between other places, or was told *others* than these: a
    batch that is sent to its end must not go to destinations by their old names.
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

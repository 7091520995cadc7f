"""Whole migrations, whatever their ends are: what a command or another program calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from timeoutmgr.errors import MigrationRefused
from timeoutmgr.migration.draining import DrainParts, abort_drain, drain
from timeoutmgr.migration.parts import Parts
from timeoutmgr.migration.preparing import begin, preview
from timeoutmgr.migration.report import Report
from timeoutmgr.migration.running import abort, migrate
from timeoutmgr.migration.runs import Batch, Terms

AnyParts: TypeAlias = Parts | DrainParts
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def refuse_any_problem(endpoints: Sequence[tuple[AnyParts, Terms]]) -> None:
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
    parts: AnyParts, terms: Terms, on_batch: Callable[[Batch], None] = lambda _batch: None
) -> Report:
    """Begin a run, or go on with the open one, and move all of it."""
    run = begin(parts, terms, lambda: uuid.uuid4().hex[:12])
    if isinstance(parts, DrainParts):
        return drain(parts, run, on_batch)
    return migrate(parts, run, on_batch)


def give_up(parts: AnyParts, others: Mapping[str, str] = _NOTHING) -> Report | None:
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
        told = " ".join(f"{name}={value!r}" for name, value in found.terms.others.items())
        raise MigrationRefused(
            f"run {found.id} has other terms", [f"it was begun with {told or 'none'}; say the same"]
        )
    run = parts.ledger.take(found.id, parts.runner)
    return abort_drain(parts, run) if isinstance(parts, DrainParts) else abort(parts, run)

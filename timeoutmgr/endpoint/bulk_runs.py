"""Bulk runs of an endpoint's timeouts: plan, apply, undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

from timeoutmgr.contracts import Key, TimeoutFilter, TimeoutStore
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.bulk_runs import (
    BulkAction,
    BulkChange,
    BulkPlan,
    BulkRun,
    KeepsBulkRuns,
    selection_document,
)
from timeoutmgr.endpoint.attempts import attempt
from timeoutmgr.errors import InvalidMessage, Unsupported
from timeoutmgr.message.foreign import require_storable
from timeoutmgr.message.instants import LATEST, Micros, to_micros
from timeoutmgr.message.labels import NO_LABELS, Labels, label_texts
from timeoutmgr.message.validation import check_due, check_id

BY_API: Final = ChangedBy(channel="api")


class BulkRuns:
    """Changes many pending timeouts: a plan selects them for good, and an apply changes them.

    Each method raises Unsupported for a store that has no bulk runs.
    """

    def __init__(
        self,
        store: TimeoutStore,
        wake: Callable[[Micros], None],
        schema_expected: Callable[[], AbstractContextManager[None]],
        require_destination: Callable[[str], None],
    ) -> None:
        self._given = store
        self._wake = wake
        self._schema_expected = schema_expected
        self._require_destination = require_destination

    def plan(
        self,
        change: BulkChange,
        *,
        limit: int | None = None,
        by: ChangedBy = BY_API,
        export: Callable[[str], None] | None = None,
        **selection: Unpack[PlanKeywords],
    ) -> BulkPlan:
        """Select the timeouts with *ids*, or all that match, for a run; change nothing.

        *ids* are of timeouts or of messages. The run changes no timeout that is stored or changed
        after the plan. A plan can be applied for a day. *export* may save the timeouts first, by
        the ``keys`` of the run whose id it gets: the run can be applied only after *export* has
        returned. A timeout that is moved while the plan is made may be missed. Raises
        InvalidMessage for *ids* beside a filter and for a keyword without a value,
        DestinationNotAllowed or Unroutable for a wrong destination of a reroute.
        """
        which = _selected(selection)
        if limit is not None:
            checked_limit(limit)
        for instant in filter(None, (change.to, change.start, change.end)):
            check_due(instant)
        asked = {**selection_document(which, limit), **change.document()}
        with self._schema_expected(), attempt(self._given, change.action.value, by, asked):
            if change.action is BulkAction.REROUTE:
                self._require_destination(change.destination or "")
            return self._store.plan(which, change, by, limit=limit, export=export)

    def apply(
        self,
        run_id: str,
        *,
        by: ChangedBy = BY_API,
        progress: Callable[[int], None] = lambda _number: None,
    ) -> BulkRun:
        """Apply a plan, or go on with a run that was interrupted; return the run.

        Timeouts that were closed or changed since, or that a dispatcher has, are left. The function
        *progress* gets the number of timeouts of each batch that is done. The run stays RUNNING,
        and is ``unfinished``, if another process works on a batch. A run that is COMPLETED is
        returned as it is.
        """
        return self._carry_out(run_id, by, progress, undo=False)

    def undo(
        self,
        run_id: str,
        *,
        by: ChangedBy = BY_API,
        progress: Callable[[int], None] = lambda _number: None,
    ) -> BulkRun:
        """Undo a completed shift, move or spread, or go on with it; return the run.

        Timeouts that were closed or changed since are left as they are. The run stays UNDOING, and
        is ``unfinished``, if another process works on a batch. A run that is UNDONE is returned as
        it is.
        """
        return self._carry_out(run_id, by, progress, undo=True)

    def get(self, run_id: str) -> BulkRun | None:
        """Return a run, or None."""
        check_text("run_id", run_id)
        with self._schema_expected():
            return self._store.bulk_run(run_id)

    def list(self, *, limit: int = 100) -> Sequence[BulkRun]:
        """Return the newest runs, the newest first."""
        with self._schema_expected():
            return self._store.bulk_runs(limit=checked_limit(limit))

    def keys(self, run_id: str) -> Iterator[Key]:
        """Yield the keys that the plan of a run has selected."""
        check_text("run_id", run_id)
        number = 0
        with self._schema_expected():
            while page := self._store.bulk_keys(run_id, after=number - 1):
                yield from page
                number += 1

    @property
    def _store(self) -> KeepsBulkRuns:
        if isinstance(self._given, KeepsBulkRuns):
            return self._given
        raise Unsupported(
            "changing timeouts in bulk",
            f"the store {type(self._given).__name__} has no bulk runs",
            "Change the timeouts one by one, or use a SQL persistence",
        )

    def _carry_out(
        self, run_id: str, by: ChangedBy, progress: Callable[[int], None], *, undo: bool
    ) -> BulkRun:
        check_text("run_id", run_id)
        action = "undo" if undo else "apply"
        with self._schema_expected(), attempt(self._given, action, by, {"run_id": run_id}):
            self._store.begin_bulk(run_id, by, undo=undo)
            while (step := self._store.bulk_step(run_id)) is not None:
                if step.earliest is not None:
                    self._wake(step.earliest)
                progress(step.changed + step.left)
            return self._store.end_bulk(run_id, by)


def _selected(selection: Mapping[str, Any]) -> TimeoutFilter | Sequence[str]:
    """Return the ids, or else the filter. Raises InvalidMessage if both are given."""
    if "ids" not in selection:
        require_values(selection)
        return filter_of(**selection)
    ids, beside = selection["ids"], [name for name in selection if name != "ids"]
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise InvalidMessage(f"ids is a list of ids, got {ids!r:.80}; give a list, or a filter")
    if beside:
        raise InvalidMessage(
            f"a plan selects by ids or by a filter, got ids and {', '.join(beside)}; leave one out"
        )
    for each in ids:
        check_id(each)
    return ids


def require_values(selection: Mapping[str, Any]) -> None:
    """Raise InvalidMessage for a keyword without a value: the change would affect every timeout."""
    for name, value in selection.items():
        if not value:
            raise InvalidMessage(
                f"{name} is {value!r:.80}, by which nothing is selected; give a value, or leave "
                f"{name} out to change timeouts whatever it is"
            )


def checked_limit(limit: int) -> int:
    """Return *limit*, or the largest that a database takes; raise InvalidMessage if it is wrong."""
    if not isinstance(limit, int) or limit < 0:
        raise InvalidMessage(f"a limit is a whole number from 0, got {limit!r:.80}")
    return min(limit, LATEST)


def check_text(what: str, given: str | None) -> None:
    """Raise InvalidMessage unless *given* is None or a text that databases accept."""
    if not isinstance(given, str | None):
        raise InvalidMessage(f"{what} is a text, got {given!r:.80}; give a text")
    require_storable(what, given or "")


class SelectionKeywords(TypedDict, total=False):
    """The keywords that select pending timeouts, for type checkers; see ``Timeouts``."""

    saga_id: str | None
    destination: str | None
    due_from: datetime | None
    due_before: datetime | None
    labels: Labels
    message_type: str | None
    id_prefix: str | None


class PlanKeywords(SelectionKeywords, total=False):
    """The keywords that select the timeouts of a plan.

    Timeouts that are tried next at ``tried_from`` or later include timeouts with an earlier due
    time that a pause held back, or that waited for another try.
    """

    ids: Sequence[str]
    tried_from: datetime


def filter_of(
    *,
    due_from: datetime | None = None,
    due_before: datetime | None = None,
    tried_from: datetime | None = None,
    labels: Labels = NO_LABELS,
    **texts: str | None,
) -> TimeoutFilter:
    """Return the filter of SelectionKeywords. Raises InvalidMessage, TypeError for another name."""
    for name, text in texts.items():
        check_text(name, text)
    found = label_texts(labels)
    for name, values in labels.items():
        if not values:
            raise InvalidMessage(f"label {name!r:.80} has no value; give a value, or leave it out")
    return TimeoutFilter(
        due_from=None if due_from is None else to_micros(due_from),
        due_before=None if due_before is None else to_micros(due_before),
        tried_from=None if tried_from is None else to_micros(tried_from),
        tried_before=None,
        labels=found,
        **texts,
    )

"""Bulk runs: a change of all timeouts that a plan selected, in batches that survive a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.timeouts import Key, Timeout, TimeoutFilter
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, duration_micros, to_micros

SAMPLES: Final = 20
"""Number of timeouts that a plan shows."""
PLAN_KEPT: Final[Micros] = 86_400_000_000
"""Microseconds for which a plan can be applied."""


class BulkAction(StrEnum):
    """What a bulk run does with each of its timeouts."""

    SHIFT = "shift"
    """Add *by* to its due time."""
    MOVE = "move"
    """Make it due at the instant *to*."""
    SPREAD = "spread"
    """Spread all due times evenly from *start* to before *end*, in the present order."""
    CANCEL = "cancel"
    SEND_NOW = "send-now"
    RETRY = "retry"
    """If it waits for another try, try it now; the count of its attempts stays."""
    REROUTE = "reroute"
    """Send it to *destination* when it is due."""

    @property
    def is_undoable(self) -> bool:
        """Whether a run of this action can be undone."""
        return self in (BulkAction.SHIFT, BulkAction.MOVE, BulkAction.SPREAD)


_NEEDS: Final[Mapping[BulkAction, tuple[str, ...]]] = {
    BulkAction.SHIFT: ("by",),
    BulkAction.MOVE: ("to",),
    BulkAction.SPREAD: ("start", "end"),
    BulkAction.REROUTE: ("destination",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkChange:
    """An action and its values; times in microseconds.

    ``shift``, ``move`` and ``spread`` make a change from Python's times.
    """

    action: BulkAction
    by: Micros | None = None
    to: Micros | None = None
    start: Micros | None = None
    end: Micros | None = None
    destination: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that the action does not take, missing values, and wrong types."""
        if not isinstance(self.action, BulkAction):
            raise InvalidMessage(
                f"the action of a bulk change is a BulkAction, got {self.action!r:.80}; choose "
                f"BulkAction.{', BulkAction.'.join(BulkAction.__members__)}"
            )
        needs = _NEEDS.get(self.action, ())
        values = {name: value for name, value in asdict(self).items() if name != "action"}
        given = tuple(name for name, value in values.items() if value is not None)
        if given != needs:
            expected = " and ".join(needs) or "no values"
            got = ", ".join(given) or "none"
            raise InvalidMessage(f"{self.action} needs {expected}; got {got}")
        for name in given:
            _require_type(self.action, name, values[name])
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise InvalidMessage("spread needs a start before its end")

    @classmethod
    def shift(cls, by: timedelta) -> BulkChange:
        """Return the change that adds *by*, which may be negative, to each due time."""
        return cls(action=BulkAction.SHIFT, by=duration_micros(by))

    @classmethod
    def move(cls, to: datetime) -> BulkChange:
        """Return the change that makes each timeout due at the aware datetime *to*."""
        return cls(action=BulkAction.MOVE, to=to_micros(to))

    @classmethod
    def spread(cls, start: datetime, end: datetime) -> BulkChange:
        """Return the change that spreads due times from *start* to before *end*, both aware."""
        return cls(action=BulkAction.SPREAD, start=to_micros(start), end=to_micros(end))

    def new_due(self, first: Micros, rank: int, count: int, now: Micros) -> Micros:
        """Return the new due time of timeout number *rank* of *count*, which was due at *first*."""
        match self.action:
            case BulkAction.SHIFT:
                due = first + (self.by or 0)
            case BulkAction.MOVE:
                due = self.to or 0
            case BulkAction.SPREAD:
                start, end = self.start or 0, self.end or 0
                due = start + (end - start) * rank // max(count, 1)
            case _:
                due = now
        return min(max(due, EARLIEST), LATEST)

    def document(self) -> dict[str, Any]:
        """Return the action and its values for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> BulkChange:
        """Return the change of *document*, which a plan has kept.

        The values are not checked: an earlier version may have kept values that are refused now,
        and its runs must still be listed.
        """
        kept = object.__new__(cls)
        for each in fields(cls):
            object.__setattr__(kept, each.name, document.get(each.name))
        object.__setattr__(kept, "action", BulkAction(document["action"]))
        return kept


def _require_type(action: BulkAction, name: str, value: object) -> None:
    """Raise InvalidMessage unless *value* is of the type of the field *name*."""
    if name == "destination":
        if not isinstance(value, str):
            raise InvalidMessage(
                f"{action} needs destination as a text, got {value!r:.80}; give the name of a queue"
            )
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidMessage(
            f"{action} needs {name} as a whole number of microseconds, got {value!r:.80}; "
            f"BulkChange.{action} takes Python's times"
        )


class BulkState(StrEnum):
    """State of a bulk run."""

    PLANNING = "planning"
    """Its timeouts are being selected or exported; after a crash it stays in this state for
    good."""
    PLANNED = "planned"
    RUNNING = "running"
    COMPLETED = "completed"
    UNDOING = "undoing"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRun:
    """A bulk run: its *selected* timeouts, and how many of them are *changed* or *left*.

    A timeout is left if it was closed or changed after the plan, or if a dispatcher has it.
    *maybe_sent* of the changed timeouts may have been sent before.
    """

    id: str
    state: BulkState
    created: Micros
    change: BulkChange
    selection: Mapping[str, Any]
    selected: int = 0
    first_due: Micros | None = None
    last_due: Micros | None = None
    changed: int = 0
    left: int = 0
    maybe_sent: int = 0
    undone: int = 0

    @property
    def unfinished(self) -> str | None:
        """The remedy for a run that an apply or undo could not end; None for any other run."""
        if self.state not in (BulkState.RUNNING, BulkState.UNDOING):
            return None
        is_undo = self.state is BulkState.UNDOING
        most = self.changed - self.undone if is_undo else self.selected - self.changed - self.left
        return (
            f"run {self.id} is still {self.state}: another process works on up to {most} of its "
            "timeouts; give the command again"
        )


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """The selection of a plan: the planned *run*, and its first SAMPLES timeouts."""

    run: BulkRun
    samples: Sequence[Timeout]


@dataclass(frozen=True, slots=True)
class BulkStep:
    """A batch of a run: how many timeouts *changed* or were *left*; the *earliest* new due time."""

    changed: int
    left: int
    earliest: Micros | None = None


@runtime_checkable
class KeepsBulkRuns(Protocol):
    """A store that changes many timeouts by bulk runs; no store needs to."""

    def plan(
        self,
        which: TimeoutFilter | Sequence[str],
        change: BulkChange,
        by: ChangedBy,
        *,
        limit: int | None = None,
        export: Callable[[str], None] | None = None,
    ) -> BulkPlan:
        """Select the timeouts of a filter, or of ids, for a run, and change nothing.

        An id is of a timeout or of a message. The selection is frozen: a timeout that is stored, or
        changed, after the plan is not changed by the run. *limit* bounds it to the first matches.
        *export* is called with the id of the run, when the keys of the run can be read. The run
        stays PLANNING until *export* returns, and forever if it raises.
        """
        ...

    def bulk_run(self, run_id: str) -> BulkRun | None:
        """Return the run, or None."""
        ...

    def bulk_runs(self, *, limit: int = 100) -> Sequence[BulkRun]:
        """Return the newest *limit* runs, the newest first."""
        ...

    def bulk_keys(self, run_id: str, *, after: int = -1) -> Sequence[Key]:
        """Return the keys of the first batch behind number *after*; empty behind the last."""
        ...

    def begin_bulk(self, run_id: str, by: ChangedBy, *, undo: bool = False) -> BulkRun:
        """Begin to apply the run, or to *undo* it; no-op if that has begun, or is done.

        Raises InvalidMessage for a run that cannot be applied or undone.
        """
        ...

    def bulk_step(self, run_id: str) -> BulkStep | None:
        """Change the timeouts of a remaining batch in one transaction; None if no batch is left.

        Several processes may take steps of one run.
        """
        ...

    def end_bulk(self, run_id: str, by: ChangedBy) -> BulkRun:
        """End the run if no batch is left, and return it."""
        ...


def selection_document(which: TimeoutFilter | Sequence[str], limit: int | None) -> dict[str, Any]:
    """Return the selection for JSON; at most the first hundred ids."""
    if isinstance(which, TimeoutFilter):
        found = {name: value for name, value in asdict(which).items() if value not in (None, ())}
    else:
        found = {"ids": list(which[:100]), "number_of_ids": len(which)}
    return found if limit is None else {**found, "limit": limit}

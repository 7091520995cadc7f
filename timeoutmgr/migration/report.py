"""The report of a run, added up from its batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from timeoutmgr.migration.ports import MigrationLedger
from timeoutmgr.migration.runs import MigrationRun
from timeoutmgr.migration.states import BatchState, MigrationRunState


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
        """Whether each timeout that was taken is answered for, in one place."""
        return self.new + self.known + self.returned == self.collected

    def document(self) -> dict[str, Any]:
        """Return it as plain values."""
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

"""Who has which batch of a run in hand: a row of ``runs`` for each, beside the run's own.

Whoever writes a batch has to be the one whom its claim names, so that a process that lost its life
to a broken connection, and does not know, gets no further. Everything here is called by who holds
the lock on the batch's row, or on the run's.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration import Batch
from timeoutmgr.persistence.sql.context import StoreContext

CLAIM: Final = "batch"
"""The kind of the rows that say who has a batch in hand."""
_CLAIMED: Final = "claimed"


class Claims:
    """The claims on the batches of one endpoint's runs."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._runs = context.tables.runs

    def held(self, connection: Connection, run_id: str) -> dict[int, str]:
        """Return who has which batch in hand, by its number; they may be dead."""
        runs = self._runs
        statement = select(runs.c.run_id, runs.c.runner).where(
            runs.c.kind == CLAIM, runs.c.endpoint == self._context.endpoint
        )
        prefix = claim_of(run_id, "")
        return {
            int(key.removeprefix(prefix)): runner
            for key, runner in connection.execute(statement)
            if key.startswith(prefix)
        }

    def of_others(self, connection: Connection, run_id: str, name: str) -> list[int]:
        """Return the numbers of the batches that others than *name* have, who live."""
        held = self.held(connection, run_id)
        others = {owner for owner in held.values() if owner != name}
        alive = others - self._context.lives.gone(others)
        return [no for no, owner in held.items() if owner in alive]

    def put(self, connection: Connection, run_id: str, no: int, name: str) -> None:
        """Put a batch into the hands of *name*; whoever had it before is dead."""
        runs, key = self._runs, claim_of(run_id, no)
        changed = connection.execute(
            update(runs).where(runs.c.run_id == key).values(runner=name)
        ).rowcount
        if not changed:
            row = {
                "run_id": key,
                "kind": CLAIM,
                "state": _CLAIMED,
                "created": self._context.now(connection),
                "parameters": "{}",
                "endpoint": self._context.endpoint,
                "runner": name,
            }
            connection.execute(insert(runs), row)

    def hand_over(self, connection: Connection, run_id: str, batch: Batch, name: str) -> None:
        """Put *batch* into the hands of *name*, where it is in those that it names."""
        runs, key = self._runs, claim_of(run_id, batch.no)
        connection.execute(
            update(runs)
            .where(runs.c.run_id == key, runs.c.runner == batch.claim)
            .values(runner=name)
        )

    def require(self, connection: Connection, run_id: str, batch: Batch) -> None:
        """Raise MigrationFailed where *batch* is in other hands than it says."""
        runs = self._runs
        name = connection.execute(
            select(runs.c.runner).where(runs.c.run_id == claim_of(run_id, batch.no))
        ).scalar()
        if name != batch.claim:
            raise MigrationFailed(
                f"run {run_id}, batch {batch.no} is in other hands; another process moves it"
            )

    def drop(self, connection: Connection, run_id: str, no: int) -> None:
        """Forget a claim; fine if there is none."""
        connection.execute(delete(self._runs).where(self._runs.c.run_id == claim_of(run_id, no)))

    def drop_all(self, connection: Connection, run_id: str) -> None:
        """Forget all claims of a run that is over."""
        for no in self.held(connection, run_id):
            self.drop(connection, run_id, no)


def claim_of(run_id: str, no: int | str) -> str:
    """Return the key of the claim on a batch."""
    return f"{run_id}.{no}"

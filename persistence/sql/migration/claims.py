"""Claims on batches of a run: a row of ``batch_claims`` for each.

Only the owner that a claim names may write its batch: a process that lost its session lock to a
broken connection, and does not know, gets no further. The caller of each method has the row of the
batch, or of the run, locked.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, insert, select, update

from timeoutmgr.errors import MigrationFailed
from timeoutmgr.migration import Batch
from timeoutmgr.persistence.sql.context import StoreContext


class BatchClaims:
    """The claims on the batches of one endpoint's runs."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._claims = context.tables.batch_claims

    def numbers(self, connection: Connection, run_id: str) -> Collection[int]:
        """Return the numbers of the claimed batches; an owner may be dead."""
        return self._owners(connection, run_id).keys()

    def of_others(self, connection: Connection, run_id: str, owner: str) -> list[int]:
        """Return the numbers of the batches that living owners other than *owner* have claimed."""
        owners = self._owners(connection, run_id)
        others = {name for name in owners.values() if name != owner}
        alive = others - self._context.liveness.dead_owners(others)
        return [no for no, name in owners.items() if name in alive]

    def put(self, connection: Connection, run_id: str, no: int, owner: str) -> None:
        """Claim a batch for *owner*; its owner before is dead."""
        claims = self._claims
        changed = connection.execute(
            update(claims).where(claims.c.run_id == run_id, claims.c.no == no).values(owner=owner)
        ).rowcount
        if not changed:
            row = {
                "run_id": run_id,
                "no": no,
                "endpoint": self._context.endpoint,
                "owner": owner,
                "claimed_at": self._context.now(connection),
            }
            connection.execute(insert(claims), row)

    def reassign(self, connection: Connection, run_id: str, batch: Batch, owner: str) -> None:
        """Claim *batch* for *owner* if its claim still names the owner that *batch* names."""
        claims = self._claims
        connection.execute(
            update(claims)
            .where(claims.c.run_id == run_id, claims.c.no == batch.no)
            .where(claims.c.owner == batch.claim)
            .values(owner=owner)
        )

    def require(self, connection: Connection, run_id: str, batch: Batch) -> None:
        """Raise MigrationFailed unless the claim names the owner that *batch* names."""
        claims = self._claims
        name = connection.execute(
            select(claims.c.owner).where(claims.c.run_id == run_id, claims.c.no == batch.no)
        ).scalar()
        if name != batch.claim:
            raise MigrationFailed(
                f"run {run_id}, batch {batch.no} is claimed by another process, which moves it"
            )

    def drop(self, connection: Connection, run_id: str, no: int) -> None:
        """Delete the claim on a batch, if it exists."""
        claims = self._claims
        connection.execute(delete(claims).where(claims.c.run_id == run_id, claims.c.no == no))

    def drop_all(self, connection: Connection, run_id: str) -> None:
        """Delete the claims of a run that is over."""
        for no in self.numbers(connection, run_id):
            self.drop(connection, run_id, no)

    def _owners(self, connection: Connection, run_id: str) -> dict[int, str]:
        claims = self._claims
        statement = select(claims.c.no, claims.c.owner).where(claims.c.run_id == run_id)
        return {no: owner for no, owner in connection.execute(statement)}

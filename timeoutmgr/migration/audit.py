"""The audit of a migration, written in each store at its ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.endpoint.attempts import AuditedWork, audited_in
from timeoutmgr.message.routes import CLI
from timeoutmgr.migration.runs import Terms


@dataclass(frozen=True, slots=True)
class MigrationAudit:
    """The audits of the *stores* of one endpoint that a migration has opened."""

    stores: Sequence[TimeoutStore]

    @contextmanager
    def kept(self, action: str, terms: Terms) -> Iterator[AuditedWork]:
        """Record in each audit that *action* begins, and how it ends.

        The rows say what a person requested; the ledger knows where each timeout is.
        """
        work, by = AuditedWork(), ChangedBy(channel=CLI)
        with ExitStack() as stack:
            rows = [
                stack.enter_context(audited_in(store, action, by, terms.document()))
                for store in self.stores
            ]
            yield work
            for row in rows:
                row.changed = work.changed

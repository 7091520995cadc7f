"""The audit in an SQL database: insert-only rows in hash chains.

A chain has one writer at a time, so that no transaction waits for another. A process uses a
separate chain for each open transaction, and reuses it after the commit. After a rollback, or a
commit without an answer, it does not use the chain again.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as fields_of_class
from functools import partial
from typing import Final
from uuid import uuid4

from sqlalchemy import Connection, insert, select

from timeoutmgr.contracts.audit import AuditCheck, AuditEntry, AuditRecord, AuditVerdict, to_text
from timeoutmgr.crashpoints import reach
from timeoutmgr.database.commits import after_commit
from timeoutmgr.resilience.after_fork import ThreadSafe

from .context import StoreContext
from .rows import after

_PAGE: Final = 5_000
_NAMES: Final = [field.name for field in fields_of_class(AuditRecord)]


@dataclass(frozen=True, slots=True)
class _Chain:
    """The head of a chain; *number* is the number of its next row."""

    name: str
    number: int
    head: str


class Audit(ThreadSafe):
    """Writes and reads the audit of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        super().__init__()
        audit = context.tables.audit
        self._mine = audit.c.endpoint == context.endpoint
        self._insert = insert(audit)
        # Only for this order does MariaDB use an index: in another it would sort all rows.
        self._newest_first = audit.c.at.desc(), audit.c.chain.desc(), audit.c.number.desc()
        self._newest = select(audit.c.hash).where(self._mine).order_by(*self._newest_first).limit(1)

    def after_fork(self) -> None:
        """Start chains of this child's own: the parent continues its chains."""
        super().after_fork()
        self._free: list[_Chain] = []

    def write(self, connection: Connection, entry: AuditEntry) -> None:
        """Insert *entry* in the transaction of the change that it records."""
        chain = self._next_chain(connection)
        row = self._record(connection, chain, entry)
        row = replace(row, hash=row.digest())
        connection.execute(self._insert, asdict(row))
        reach("audit.written")
        next_row = _Chain(chain.name, chain.number + 1, row.hash)
        after_commit(connection, partial(self._give_back, next_row))

    def newest(self, limit: int, run_id: str | None) -> list[AuditRecord]:
        """Return the newest rows, the oldest first."""
        audit = self._context.tables.audit
        conditions = [self._mine]
        if run_id is not None:  # an expression: the index in this order has all rows
            mine = audit.c.endpoint.concat("") == self._context.endpoint
            conditions = [mine, audit.c.run_id == run_id]
        statement = (
            select(*(audit.c[name] for name in _NAMES))
            .where(*conditions)
            .order_by(*self._newest_first)
            .limit(limit)
        )
        with self._context.database.read() as connection:
            rows = connection.execute(statement).all()
        return [AuditRecord(**row._mapping) for row in reversed(rows)]

    def verify(self, heads: Mapping[str, tuple[int, str]]) -> AuditVerdict:
        """Check all rows, page by page."""
        audit, check = self._context.tables.audit, AuditCheck(heads)
        chain, number = "", -1
        with self._context.reading() as connection:  # PostgreSQL would sort the last pages anew
            while True:
                behind = after(self._context, audit.c.chain, audit.c.number, (chain, number))
                statement = (
                    select(*(audit.c[name] for name in _NAMES))
                    .where(self._mine, behind)
                    .order_by(audit.c.chain, audit.c.number)
                    .limit(_PAGE)
                )
                page = [AuditRecord(**row._mapping) for row in connection.execute(statement)]
                for record in page:
                    check.add(record)
                if len(page) < _PAGE:
                    break
                chain, number = page[-1].chain, page[-1].number
            check.found(self._existing(connection, set(check.wanted())))
        return check.verdict()

    def _existing(self, connection: Connection, hashes: set[str]) -> set[str]:
        if not hashes:
            return set()
        # No index has hashes: a search for each part of them would read all rows.
        every = select(self._context.tables.audit.c.hash).where(self._mine)
        with connection.execution_options(yield_per=_PAGE).execute(every) as rows:
            return hashes.intersection(rows.scalars())  # ends once it has found each

    def _record(self, connection: Connection, chain: _Chain, entry: AuditEntry) -> AuditRecord:
        return AuditRecord(
            chain=chain.name,
            number=chain.number,
            at=self._context.now(connection),
            endpoint=self._context.endpoint,
            actor=actor_of(self._context, entry.by.actor),
            role=entry.by.role,
            channel=entry.by.channel,
            action=entry.action,
            selection=to_text(entry.selection),
            dry_run=int(entry.dry_run),
            expected=entry.expected,
            changed=entry.changed,
            outcome=entry.outcome.value,
            run_id=entry.run_id,
            reason=entry.by.reason,
            previous_hash=chain.head,
        )

    def _next_chain(self, connection: Connection) -> _Chain:
        with self._lock:
            if self._free:
                return self._free.pop()
        # Its first row has the hash of the newest row, so that removing a whole chain is noticed.
        return _Chain(uuid4().hex, 0, connection.execute(self._newest).scalar() or "")

    def _give_back(self, chain: _Chain) -> None:
        with self._lock:
            self._free.append(chain)


def actor_of(context: StoreContext, given: str | None) -> str:
    """Return the *given* actor, or the user and host of this process."""
    if given is not None:
        return given
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{context.node}"

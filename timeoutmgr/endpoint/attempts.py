"""Attempts at changes, as the audit keeps them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.contracts.audit import (
    AuditEntry,
    AuditOutcome,
    ChangedBy,
    KeepsAudit,
    require_audited,
)
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.errors import DestinationNotAllowed, TimeoutManagerError
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class AuditedWork:
    """A change of many messages or timeouts; *changed* is the number that it has changed."""

    changed: int = 0


@contextmanager
def audited(
    parts: AssembledEndpoint, action: str, by: ChangedBy, selection: Mapping[str, Any]
) -> Iterator[AuditedWork]:
    """Have the audit of the endpoint keep a change of queues, as ``audited_in`` does."""
    store = _store_of(parts)
    if store is None:
        yield AuditedWork()
        return
    with audited_in(store, action, by, selection) as work:
        yield work


@contextmanager
def audited_in(
    store: TimeoutStore, action: str, by: ChangedBy, selection: Mapping[str, Any]
) -> Iterator[AuditedWork]:
    """Have the audit of *store* keep that a change begins, and how it ends.

    Each row is a transaction of its own: the change is many transactions, and in no database if a
    broker has the queues. After a crash the first row stays alone. A store that does not answer
    does not stop the change.
    """
    work = AuditedWork()
    begun = AuditEntry(
        action=action, by=by, selection=selection, outcome=AuditOutcome.STARTED, run_id=uuid4().hex
    )
    with attempt(store, action, by, selection, begun.run_id):
        _keep(store, begun)
        yield work
    _keep(store, replace(begun, outcome=AuditOutcome.DONE, changed=work.changed))


def _store_of(parts: AssembledEndpoint) -> TimeoutStore | None:
    """Return the store that keeps the audit; None for a store whose file is missing."""
    persistence = parts.settings.persistence
    database = None if persistence is None else persistence.database
    # To connect would create the file.
    if database is not None and database.path is not None and not database.path.exists():
        return None
    return parts.features.store


@contextmanager
def attempt(
    store: TimeoutStore,
    action: str,
    by: ChangedBy,
    selection: Mapping[str, Any],
    run_id: str | None = None,
) -> Iterator[None]:
    """Have the audit keep the attempt if the body fails: what succeeds is in it already.

    Raises InvalidMessage, before the body, for a *by* or a *selection* that no audit can keep.
    """
    require_audited(action, by, selection)
    try:
        yield
    except TimeoutManagerError as error:
        is_denied = isinstance(error, DestinationNotAllowed)
        entry = AuditEntry(
            action=action,
            by=by,
            selection={**selection, "error": f"{type(error).__name__}: {error}"[:400]},
            outcome=AuditOutcome.DENIED if is_denied else AuditOutcome.FAILED,
            changed=0,
            run_id=run_id,
        )
        _keep(store, entry)
        raise


def _keep(store: TimeoutStore, entry: AuditEntry) -> None:
    if not isinstance(store, KeepsAudit):
        return
    try:
        store.write_audit(entry)
    except TimeoutManagerError as error:
        logger.warning(
            "audit of %s could not keep that %s is %s: %s",
            store.endpoint,
            entry.action,
            entry.outcome.value,
            on_one_line(error),
            extra={"event": "audit_not_written", "endpoint": store.endpoint},
        )

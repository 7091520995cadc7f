"""Rows of the audit about attempts at changes."""

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
    """A change of many messages or timeouts; *changed* counts the changes so far."""

    changed: int = 0


@contextmanager
def audited(
    parts: AssembledEndpoint, action: str, by: ChangedBy, selection: Mapping[str, Any]
) -> Iterator[AuditedWork]:
    """Record a change of queues in the endpoint's audit, as ``audited_in`` does."""
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
    """Record the begin and the end of a change in the audit of *store*.

    Each row has its own transaction: the change itself is many transactions, or none at all if the
    queues are on a broker. After a crash only the first row exists. If the store does not answer,
    the change is made nevertheless.
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
    """Return the store that keeps the audit; None if the file of the store is missing."""
    persistence = parts.settings.persistence
    database = None if persistence is None else persistence.database
    # A connection would create the file.
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
    """Record the attempt if the body fails: a change that succeeds writes its own row.

    Raises InvalidMessage, before the body, if an audit cannot store *by* or *selection*.
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

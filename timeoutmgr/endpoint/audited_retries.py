"""Retries and deletions of failed messages and of dead letters, which the audit keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.deadletter import retry as dead_letters
from timeoutmgr.deadletter.delivery_headers import prepared_for_retry
from timeoutmgr.deadletter.queues import StoredCopyQueue
from timeoutmgr.deadletter.retry import RetriedDeadLetter, Retry
from timeoutmgr.deadletter.service import DeadLetterService
from timeoutmgr.deadletter.stored_copy import StoredCopy
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.attempts import audited
from timeoutmgr.transport import error_queue_retry
from timeoutmgr.transport.error_queue_retry import (
    EndpointErrorQueue,
    RetriedMessage,
    RetryRequest,
)


def error_queue_of(parts: AssembledEndpoint) -> EndpointErrorQueue:
    """Return the error queue of the endpoint."""
    settings = parts.settings
    return EndpointErrorQueue(
        name=settings.error_queue, endpoint=settings.name, limits=settings.limits
    )


def retry_failures(
    parts: AssembledEndpoint, request: RetryRequest, by: ChangedBy
) -> list[RetriedMessage]:
    """Retry or delete the messages of the error queue that *request* selects, by its rules."""
    queue, transport = error_queue_of(parts), parts.settings.transport

    def carry_out() -> list[RetriedMessage]:
        return error_queue_retry.retry(transport, queue, request, prepare=prepared_for_retry)

    if request.dry_run:
        return carry_out()
    action = "delete-failed" if request.delete else "retry-failed"
    ids = {"ids": sorted(request.ids or request.which.ids)[:100], "limit": request.limit}
    selection = _document({**asdict(request.which), **ids, "queue_of_errors": queue.name})
    with audited(parts, action, by, selection) as work:
        results = carry_out()
        work.changed = sum(each.result.is_success for each in results)
    return results


def retry_dead_letters(
    parts: AssembledEndpoint,
    service: DeadLetterService,
    queue: StoredCopyQueue,
    copies: Iterable[StoredCopy],
    by: ChangedBy,
    selection: Mapping[str, Any],
    *,
    dry_run: bool = False,
    progress: Callable[[RetriedDeadLetter], None] = lambda _retried: None,
) -> list[RetriedDeadLetter]:
    """Send *copies* of *queue*, which *selection* describes, to their destinations again."""
    transport = parts.settings.transport

    def carry_out() -> list[RetriedDeadLetter]:
        return dead_letters.retry(
            transport, service, queue, copies, dry_run=dry_run, progress=progress
        )

    if dry_run:
        return carry_out()
    document = _document({**selection, "queue": queue.kind.value})
    with audited(parts, "retry-dead-letters", by, document) as work:
        results = carry_out()
        work.changed = sum(each.what is Retry.RETRIED for each in results)
    return results


def _document(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given *values* for JSON."""
    given = {name: value for name, value in values.items() if value}
    return {
        name: value if isinstance(value, str | int | list) else str(value)
        for name, value in given.items()
    }

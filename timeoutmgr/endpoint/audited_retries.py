"""Retries and deletions of failed messages, recorded in the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.attempts import audited
from timeoutmgr.transport import error_queue_retry
from timeoutmgr.transport.error_queue_retry import (
    EndpointErrorQueue,
    Prepare,
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
    parts: AssembledEndpoint, request: RetryRequest, by: ChangedBy, *, prepare: Prepare
) -> list[RetriedMessage]:
    """Retry or delete the messages of the error queue that *request* selects."""
    queue, transport = error_queue_of(parts), parts.settings.transport

    def carry_out() -> list[RetriedMessage]:
        return error_queue_retry.retry(transport, queue, request, prepare=prepare)

    if request.dry_run:
        return carry_out()
    action = "delete-failed" if request.delete else "retry-failed"
    ids = {"ids": sorted(request.ids or request.which.ids)[:100], "limit": request.limit}
    selection = selection_of({**asdict(request.which), **ids, "queue_of_errors": queue.name})
    with audited(parts, action, by, selection) as work:
        results = carry_out()
        work.changed = sum(each.result.is_success for each in results)
    return results


def selection_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given *values* for JSON."""
    given = {name: value for name, value in values.items() if value}
    return {
        name: value if isinstance(value, str | int | list) else str(value)
        for name, value in given.items()
    }

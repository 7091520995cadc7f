"""The copies of a person's messages in the error queue and in dead-letter queues, for ``erase``."""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from timeoutmgr.cli.shared import Shared, assembled
from timeoutmgr.message.headers import FAILED_QUEUE, SAGA_ID
from timeoutmgr.message.message import Message

if TYPE_CHECKING:
    from timeoutmgr.endpoint.assembly import AssembledEndpoint
    from timeoutmgr.pipeline.lake_options import EraseOptions


def erase_copies(shared: Shared, options: "EraseOptions") -> dict[str, int]:
    """Delete the copies that *options* select from the endpoint's queues; return the counts.

    The error queue and the node's own dead-letter queues and journal are searched.
    """
    with assembled(shared) as parts:
        return {
            "error copies": _in_error_queue(parts, options),
            "stored copies": _in_dead_letters(parts, options),
        }


def _is_selected(options: "EraseOptions") -> Callable[[Message, str | None], bool]:
    def test(message: Message, queue: str | None) -> bool:
        given: Mapping[str, str] = message.headers
        return (
            given.get(SAGA_ID) in options.saga_ids
            or queue in options.destinations
            or any(given.get(name) == value for name, value in options.headers.items())
        )

    return test


def _in_error_queue(parts: "AssembledEndpoint", options: "EraseOptions") -> int:
    from timeoutmgr.transport.error_queue_retry import (
        EndpointErrorQueue,
        FailureFilter,
        RetryRequest,
        RetryResult,
        browse,
        retry,
    )

    settings, test = parts.settings, _is_selected(options)
    with closing(browse(settings.transport, settings.error_queue, FailureFilter())) as found:
        copies = (one.message for one in found)
        ids = [one.id for one in copies if test(one, one.headers.get(FAILED_QUEUE))]
    if not ids:
        return 0
    queue = EndpointErrorQueue(
        name=settings.error_queue, endpoint=settings.name, limits=settings.limits
    )
    # Of an id that failed twice, a run deletes a single copy.
    deleted = 0
    while done := sum(
        one.result is RetryResult.DELETED
        for one in retry(settings.transport, queue, RetryRequest(ids=frozenset(ids), delete=True))
    ):
        deleted += done
    return deleted


def _in_dead_letters(parts: "AssembledEndpoint", options: "EraseOptions") -> int:
    from timeoutmgr.deadletter.queues import StoredCopyQueue
    from timeoutmgr.deadletter.service import DeadLetterService
    from timeoutmgr.deadletter.stored_copy import NodeQueue

    service, test = parts.features.dead_letters, _is_selected(options)
    if not isinstance(service, DeadLetterService):
        return 0
    count = 0
    for kind in (NodeQueue.DEADLETTER, NodeQueue.DEADXACT, NodeQueue.JOURNAL):
        queue = StoredCopyQueue(service.manager, kind)
        copies = [one for one in queue.every() if test(one.message, one.destination)]
        count += queue.delete(copies)
    return count

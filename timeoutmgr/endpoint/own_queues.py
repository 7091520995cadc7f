"""Inspection of an endpoint's own queues: existing queues must keep their messages."""

import logging
from collections.abc import Iterator
from contextlib import closing

from timeoutmgr.contracts import InspectsQueues, QueueReport
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.errors import LossyQueue

logger = logging.getLogger(__name__)


def refuse_lossy_queues(parts: AssembledEndpoint) -> None:
    """Raise LossyQueue if a queue of the endpoint drops messages, unless loss is accepted."""
    reports = list(inspect(parts))
    lossy = {report.queue: report.losses for report in reports if report.losses}
    if lossy and not parts.settings.accept_loss:
        raise LossyQueue(lossy)
    for report in reports:
        _log(report, parts.settings.name)


def inspect(parts: AssembledEndpoint) -> Iterator[QueueReport]:
    """Yield a report on each existing queue of the endpoint, if the transport can inspect."""
    error_queue = parts.settings.error_queue
    if not parts.queues:
        return
    consumed = [satellite.consumption.queue for satellite in parts.satellites]
    rest = [name for name in dict.fromkeys([*parts.queues, *consumed]) if name != error_queue]
    with closing(parts.settings.transport.session()) as session:
        if isinstance(session, InspectsQueues):
            yield from session.inspect_queues([error_queue])
            yield from session.inspect_queues(rest, error_queue=error_queue)


def _log(report: QueueReport, endpoint: str) -> None:
    found = [("queue_may_lose", "may lose accepted messages", each) for each in report.losses]
    found += [("queue_is_weak", "is weaker than it could be", each) for each in report.doubts]
    if report.unchecked:
        found.append(("queue_unchecked", "was not checked", report.unchecked))
    for event, finding, detail in found:
        fields = {"event": event, "endpoint": endpoint}
        logger.warning("queue %.80r %s: %s", report.queue, finding, detail, extra=fields)

"""The endpoint's own queues: whether queues that exist already keep what is put into them."""

import logging
from collections.abc import Iterator
from contextlib import closing

from timeoutmgr.contracts import InspectsQueues, QueueReport
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.errors import LossyQueue

logger = logging.getLogger(__name__)


def refuse_lossy_queues(parts: AssembledEndpoint) -> None:
    """Raise LossyQueue where a queue of the endpoint drops messages, unless that is accepted."""
    reports = list(inspect(parts))
    lossy = {report.queue: report.losses for report in reports if report.losses}
    if lossy and not parts.settings.accept_loss:
        raise LossyQueue(lossy)
    for report in reports:
        _log(report)


def inspect(parts: AssembledEndpoint) -> Iterator[QueueReport]:
    """Yield a report on each queue of the endpoint that exists, where the transport can tell."""
    error_queue = parts.settings.error_queue
    if not parts.queues:
        return
    consumed = [satellite.consumption.queue for satellite in parts.satellites]
    rest = [name for name in dict.fromkeys([*parts.queues, *consumed]) if name != error_queue]
    with closing(parts.settings.transport.session()) as session:
        if isinstance(session, InspectsQueues):
            yield from session.inspect_queues([error_queue])
            yield from session.inspect_queues(rest, dead_letter_to=error_queue)


def _log(report: QueueReport) -> None:
    for each in report.losses:
        logger.warning("queue %.80r may lose accepted messages: %s", report.queue, each)
    for each in report.doubts:
        logger.warning("queue %.80r is weaker than it could be: %s", report.queue, each)
    if report.unchecked:
        logger.warning("queue %.80r was not checked: %s", report.queue, report.unchecked)
